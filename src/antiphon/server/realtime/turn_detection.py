"""When a turn begins and ends, as a client sets it: by OpenAI's `server_vad` or its `semantic_vad`.

In: the `turn_detection` of a session.update. Out: frozen values, and the JSON of what is in force.
Does not know: audio, what a pipeline can do.
"""

from dataclasses import asdict, dataclass, fields, replace

from antiphon.server.json_object import Json
from antiphon.server.realtime.schema import Eagerness, TurnPatch

_SILENCE_MS: dict[Eagerness, int] = {"high": 400, "medium": 800, "auto": 800, "low": 1_600}
"""A fifth of what OpenAI waits at most when its model thinks that more is to come: 2, 4 and 8 s."""


@dataclass(frozen=True)
class ServerVad:
    """A turn ends after a silence that the client says."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    create_response: bool = True
    interrupt_response: bool = True

    def as_json(self) -> Json:
        """As the session shows it."""
        return {"type": "server_vad", **asdict(self)}


@dataclass(frozen=True)
class SemanticVad:
    """A turn ends after a silence that follows from the eagerness: no model here judges what was said."""

    eagerness: Eagerness = "auto"
    create_response: bool = True
    interrupt_response: bool = True

    @property
    def threshold(self) -> float:
        """As server_vad's."""
        return ServerVad.threshold

    @property
    def prefix_padding_ms(self) -> int:
        """As server_vad's."""
        return ServerVad.prefix_padding_ms

    @property
    def silence_duration_ms(self) -> int:
        """The pause that ends a turn."""
        return _SILENCE_MS[self.eagerness]

    def as_json(self) -> Json:
        """As the session shows it."""
        return {"type": "semantic_vad", **asdict(self)}


TurnDetection = ServerVad | SemanticVad


def patched(before: TurnDetection | None, patch: TurnPatch) -> TurnDetection:
    """`before` with what the patch sets; another type begins with its defaults. The other type's fields are ignored."""
    kind = type(before or ServerVad()) if patch.type is None else _KINDS[patch.type]
    old = before if isinstance(before, kind) else kind()
    given = patch.model_dump(exclude_none=True, include={field.name for field in fields(kind)})
    return replace(old, **given)


_KINDS: dict[str, type[TurnDetection]] = {"server_vad": ServerVad, "semantic_vad": SemanticVad}
