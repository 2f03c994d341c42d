"""The events that clients send over WebSockets, for the OpenAPI document, which knows only HTTP.

In: the events of each route, as they are checked. Out: their schemas, and for each route the schema of every event.
Does not know: what events mean, what is answered.
"""

from collections.abc import Mapping

from pydantic.json_schema import models_json_schema

from antiphon.server.json_object import Json
from antiphon.server.realtime.schema import EVENTS as REALTIME_EVENTS
from antiphon.server.speech_events import EVENTS as SPEECH_STREAM_EVENTS
from antiphon.server.websocket import ClientEvent

SOCKET_EVENTS = "x-websockets"
"""Where the document has them: path -> event -> reference to its schema."""

_ROUTES: Mapping[str, tuple[str, Mapping[str, type[ClientEvent]]]] = {
    "/v1/realtime": ("Realtime", REALTIME_EVENTS),
    "/v1/audio/speech/stream": ("SpeechStream", SPEECH_STREAM_EVENTS),
}
SOCKETS = tuple(_ROUTES)
"""The paths of all WebSockets."""


def event_schemas() -> tuple[Json, Json]:
    """What `components.schemas` has of them, by names as `Realtime.SessionUpdate`; and the value of SOCKET_EVENTS."""
    schemas: Json = {}
    sockets: Json = {}
    for path, (prefix, events) in _ROUTES.items():
        place = f"#/components/schemas/{prefix}.{{model}}"
        references, found = models_json_schema([(kind, "validation") for kind in events.values()], ref_template=place)
        schemas |= {f"{prefix}.{name}": schema for name, schema in found["$defs"].items()}
        sockets[path] = {name: references[kind, "validation"] for name, kind in events.items()}
    return schemas, sockets
