"""Every failure as one answer of one shape: {"error": {"message", "type", "param", "code"}}.

In: AntiphonErrors, validation errors, unknown routes. Out: a status, the envelope and Retry-After.
Does not know: what the request wanted, or which stage failed it.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import AntiphonError, InvalidRequestError, OverloadedError, UnauthorizedError, UpgradeRequiredError
from antiphon.server.wrong_value import wrong_value

_INSTEAD = {
    "/v1/responses": "send the conversation to POST /v1/chat/completions",
    "/v1/completions": "send the prompt as a message to POST /v1/chat/completions",
    "/v1/realtime": "connect a WebSocket to /v1/realtime (ws:// or wss://)",
}
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


def envelope(error: AntiphonError) -> dict[str, dict[str, str | None]]:
    """The error as OpenAI's clients read it."""
    return _envelope(error.message, error.openai_type, error.code, error.param)


def internal_error(request_id: str) -> AntiphonError:
    """What a client hears of a fault of ours: the id under which the log has the rest."""
    return AntiphonError(f"internal error in request {request_id}; the server's log has the details under this id")


def internal_envelope(request_id: str) -> dict[str, dict[str, str | None]]:
    """`internal_error` as OpenAI's clients read it."""
    return envelope(internal_error(request_id))


def error_response(error: AntiphonError) -> Response:
    """The error's status and envelope; an OverloadedError says Retry-After in whole seconds, a 401 what it wants."""
    headers = {}
    if isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = 'Bearer realm="antiphon"'
    if isinstance(error, UpgradeRequiredError):
        headers["Upgrade"] = "websocket"
    if isinstance(error, OverloadedError):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return json_response(envelope(error), status=error.http_status, headers=headers)


def json_response(content: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`content` (plain values, or anything msgspec encodes) as a JSON response."""
    return Response(msgspec.json.encode(content), status_code=status, headers=headers, media_type="application/json")


async def on_validation_error(request: Request, error: Exception) -> Response:
    """FastAPI's handler for a body, form or path that does not fit: a 400 that names the field."""
    assert isinstance(error, RequestValidationError)
    return error_response(invalid_request(error.errors()))


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own refusals: unknown routes, wrong methods, bodies that cannot be parsed."""
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            return no_such_route(request.url.path)
        case 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            message = f"{request.url.path} does not take {request.method}; use {allowed} (GET /docs lists the routes)"
        case 400 if "json" in request.headers.get("content-type", ""):  # FastAPI does not say what is wrong with it
            return error_response(
                InvalidRequestError(
                    "the body cannot be read; send one JSON object in UTF-8, not compressed, of moderate depth",
                    code="invalid_json",
                )
            )
        case 400:
            message = f"the form cannot be read ({error.detail.rstrip('.')}); send multipart/form-data as it is defined"
        case _:
            message = error.detail
    content = _envelope(message, "invalid_request_error", _HTTP_CODES.get(error.status_code, "invalid_request"))
    return json_response(content, status=error.status_code, headers=dict(error.headers or {}))


def no_such_route(path: str) -> Response:
    """A 404 for a path that is not ours, with what to use instead of a path of OpenAI's."""
    instead = next((use for known, use in _INSTEAD.items() if f"{path}/".startswith(f"{known}/")), "")
    message = f"there is no {path} here; {instead or 'GET /docs lists the routes'}"
    return json_response(_envelope(message, "invalid_request_error", _HTTP_CODES[404]), status=404)


def invalid_request(problems: Sequence[dict[str, Any]]) -> InvalidRequestError:
    """The first of pydantic's problems as an error with a param such as `messages[0].content`."""
    first = problems[0]
    location, context = first["loc"], first.get("ctx", {})
    if first["type"] == "json_invalid":
        return InvalidRequestError(
            f"the body is not valid JSON: {context['error']} at character {location[-1]}", code="invalid_json"
        )
    param = _field_path(location[1:])
    if not param:
        return InvalidRequestError(
            "the body must be one JSON object, sent with `Content-Type: application/json`", code="invalid_json"
        )
    if first["type"] == "missing":
        return InvalidRequestError(f"`{param}` is required", param=param, code="missing_field")
    return InvalidRequestError(wrong_value(param, first), param=param)


def _field_path(location: Sequence[str | int]) -> str:
    path = ""
    for part in location:
        if isinstance(part, str):
            path += f".{part}"
        elif not path.endswith("[]"):  # that is how OpenAI spells a form's list
            path += f"[{part}]"
    return path.removeprefix(".")


def _envelope(message: str, kind: str, code: str, param: str = "") -> dict[str, dict[str, str | None]]:
    return {"error": {"message": message, "type": kind, "param": param or None, "code": code}}
