"""The web page at `/`: static files that come with the package, and the JSON that the page polls.

In: GET requests. Out: html, js and css under a strict Content-Security-Policy. Does not know: what the page does.
"""

from functools import cache
from importlib.resources import files

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from antiphon.client.engine_client import EngineClient
from antiphon.server.http_errors import json_response
from antiphon.server.page.overview import overview

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""The page runs only its own files, talks only to its own server, and sits in nobody's frame."""


def page_router(client: EngineClient) -> APIRouter:
    """GET /, /page/{name}, /page/overview.json; none of them is in the OpenAPI document: they are the page's own."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def get_page() -> Response:
        return _static("index.html")

    @router.get("/page/overview.json")
    async def get_overview() -> Response:
        return json_response(overview(client), headers={"Cache-Control": "no-store"})

    @router.get("/page/{name}")
    async def get_file(name: str) -> Response:
        if name not in static_files():
            raise HTTPException(404)
        return _static(name)

    return router


@cache
def static_files() -> dict[str, bytes]:
    """Name -> content of every file of the page, read once."""
    folder = files("antiphon.server.page") / "static"
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name.rpartition(".")[2] in _TYPES}


def _static(name: str) -> Response:
    return Response(static_files()[name], media_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)
