"""The OpenAPI document: what FastAPI reads off the handlers, and from here what each route answers, errors included.

In: FastAPI's document. Out: the same, with every answer's status, content types and schema.
Does not know: how requests are handled. A test sees to it that no route is missing here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from antiphon.server.answer_schema import (
    ChatCompletion,
    ErrorEnvelope,
    Health,
    Model,
    ModelList,
    Readiness,
    SpeechOutcome,
    StreamEvent,
    Transcription,
    VoiceList,
)
from antiphon.server.audio_encode import AudioFormat
from antiphon.server.event_schema import SOCKET_EVENTS, event_schemas

Json = dict[str, Any]
_REF = "#/components/schemas/{model}"


def _reference(kind: type[BaseModel]) -> Json:
    return {"$ref": _REF.format(model=kind.__name__)}


_PCM_RATE = 24_000
_TEXT: Json = {"type": "string"}
_BYTES: Json = {"type": "string", "contentMediaType": "application/octet-stream"}
_EVENTS = {"text/event-stream": _reference(StreamEvent)}
_AUDIO = {audio.content_type(_PCM_RATE).partition(";")[0]: _BYTES for audio in AudioFormat}
_SUBTITLES = dict.fromkeys(("text/plain", "application/x-subrip", "text/vtt"), _TEXT)
_DESCRIPTION = (
    "OpenAI's API for speech, chat and transcription. docs/http_api.md says where this server differs, and describes "
    "its WebSockets, /v1/realtime and /v1/audio/speech/stream, which have no place in this document. "
    "Every error is an ErrorEnvelope."
)
_REASONS = {
    400: "A bad request; `param` names the field.",
    401: "The server has API keys, and the request carries none of them.",
    403: "The web page, or the name by which the server was called, is not one that the operator lets in.",
    404: "There is no such model or request.",
    408: "The body did not come in time.",
    413: "The body, or the media in it, is over a limit.",
    500: "A fault of the server's.",
    502: "A process that had the request has ended.",
    503: "No place, not ready, or shutting down; `Retry-After` says when to come back.",
    504: "A stage said nothing in time.",
}
_EXAMPLES: dict[str, Json] = {
    "/v1/audio/speech": {"input": "Hello there.", "response_format": "wav"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello there."}], "max_tokens": 20},
}
_ANSWERING_MODELS = (ChatCompletion.__name__,)
_WORK = (400, 401, 403, 404, 408, 413, 500, 502, 503, 504)


@dataclass(frozen=True)
class Answer:
    """What a route answers when all is well, by content type; and the statuses of its errors."""

    text: str
    json: type[BaseModel] | None = None
    other: dict[str, Json] = field(default_factory=dict)
    errors: tuple[int, ...] = (401, 403, 503)

    def content(self) -> Json:
        """As OpenAPI has it."""
        own = {"application/json": _reference(self.json)} if self.json is not None else {}
        return {kind: {"schema": schema} for kind, schema in (own | self.other).items()}


ANSWERS = {
    "post /v1/audio/speech": Answer(
        "The bytes of one audio file as they are made, or events with base64 audio.", None, _AUDIO | _EVENTS, _WORK
    ),
    "get /v1/audio/speech/{request_id}": Answer("How the request went.", SpeechOutcome, errors=(401, 403, 404, 503)),
    "post /v1/chat/completions": Answer("The answer, or its pieces as events.", ChatCompletion, _EVENTS, _WORK),
    "post /v1/audio/transcriptions": Answer(
        "What is said, in the format that was asked for; or events.", Transcription, _SUBTITLES | _EVENTS, _WORK
    ),
    "post /v1/audio/translations": Answer("What is said, in English.", Transcription, _SUBTITLES, _WORK),
    "get /v1/models": Answer("All names.", ModelList),
    "get /v1/models/{model}": Answer("The name.", Model, errors=(401, 403, 404, 503)),
    "get /v1/audio/voices": Answer("All voices.", VoiceList),
    "get /health": Answer("The process is up.", Health, errors=(403,)),
    "get /ready": Answer("Every stage has a live replica.", Readiness, errors=(403, 503)),
    "get /metrics": Answer("Prometheus text.", None, {"text/plain": _TEXT}, (403,)),
}


_UNKNOWN = Answer("See docs/http_api.md.")


class DescribedApp(FastAPI):
    """A FastAPI app whose document says what the routes answer. models: the values that every `model` may have."""

    def __init__(self, models: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self._models = list(models)

    def openapi(self) -> Json:
        """The document; made at the first call."""
        if self.openapi_schema is None:
            document = _described(super().openapi())
            _name_models(document, self._models)
            _give_examples(document, self._models[0])
            schemas, document[SOCKET_EVENTS] = event_schemas()
            document["components"]["schemas"] |= schemas
            self.openapi_schema = document
        return self.openapi_schema


def _described(document: Json) -> Json:
    document["info"]["description"] = _DESCRIPTION
    models: list[type[BaseModel]] = [
        ErrorEnvelope,
        StreamEvent,
        *(answer.json for answer in ANSWERS.values() if answer.json is not None),
    ]
    _, definitions = models_json_schema([(kind, "serialization") for kind in models], ref_template=_REF)
    components = document["components"]
    components["schemas"] = {
        name: schema
        for name, schema in (components["schemas"] | definitions["$defs"]).items()
        if name not in ("HTTPValidationError", "ValidationError")  # FastAPI's 422, which this server never says
    }
    components["securitySchemes"] = {
        "api_key": {"type": "http", "scheme": "bearer", "description": "Wanted if the server has API keys."}
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _describe(operation, ANSWERS.get(f"{method} {path}", _UNKNOWN))
    return document


def _name_models(document: Json, names: list[str]) -> None:
    schemas = (body for body in document["components"]["schemas"].values() if body["title"] not in _ANSWERING_MODELS)
    fields = [body["properties"]["model"] for body in schemas if "model" in body.get("properties", {})]
    parameters = document["paths"]["/v1/models/{model}"]["get"]["parameters"]
    for schema in (*fields, *(parameter["schema"] for parameter in parameters)):
        schema["enum"] = names


def _give_examples(document: Json, model: str) -> None:
    for path, example in _EXAMPLES.items():
        document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"] = {
            "model": model,
            **example,
        }


def _describe(operation: Json, answer: Answer) -> None:
    operation["responses"] = {
        "200": {"description": answer.text, "headers": _headers(200), "content": answer.content()},
        **{str(status): _error(status) for status in answer.errors},
    }
    if 401 in answer.errors:
        operation["security"] = [{}, {"api_key": []}]


def _error(status: int) -> Json:
    content = {"application/json": {"schema": _reference(ErrorEnvelope)}}
    return {"description": _REASONS[status], "headers": _headers(status), "content": content}


def _headers(status: int) -> Json:
    texts = {"x-request-id": "The client's own, else the server's id of the request."}
    if status == 401:
        texts["WWW-Authenticate"] = "Bearer"
    if status == 503:
        texts["Retry-After"] = "Seconds."
    return {name: {"description": text, "schema": _TEXT} for name, text in texts.items()}
