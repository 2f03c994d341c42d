"""The names of events: the GA's, which everything here uses, or the beta's for clients that were written for it.

In: an event by its GA name. Out: the same event as the beta had it, or None where the beta had none.
Does not know: what events are about, when they are sent.
"""

from enum import Enum

from antiphon.server.json_object import Json

_NAMES = {
    "conversation.item.added": "conversation.item.created",
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
}
_FORMATS = {"audio/pcm": "pcm16", "audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}
_PARTS = {"output_text": "text", "output_audio": "audio"}
_GA_ONLY = frozenset({"conversation.item.done"})


class Dialect(Enum):
    """Which names a client reads."""

    GA = "ga"
    BETA = "beta"

    def spell(self, event: Json) -> Json | None:
        """`event` in this dialect."""
        if self is Dialect.GA:
            return event
        if event["type"] in _GA_ONLY:
            return None
        spelled = {**event, "type": _NAMES.get(str(event["type"]), event["type"])}
        for name, change in (("session", _session), ("response", _response), ("item", _item)):
            given = event.get(name)
            if isinstance(given, dict):
                spelled[name] = change(given)
        return spelled


def _modalities(ga: object) -> list[str]:
    return ["text", "audio"] if ga == ["audio"] else ["text"]


def _inner(fields: Json, *path: str) -> Json:
    for name in path:
        given = fields[name]
        assert isinstance(given, dict), path
        fields = given
    return fields


def _session(session: Json) -> Json:
    heard, spoken = _inner(session, "audio", "input"), _inner(session, "audio", "output")
    kept = ("object", "id", "model", "instructions", "temperature", "tools", "tool_choice", "tracing", "expires_at")
    return {
        **{name: session[name] for name in kept},
        "modalities": _modalities(session["output_modalities"]),
        "voice": spoken["voice"],
        "speed": spoken["speed"],
        "input_audio_format": _FORMATS[str(_inner(heard, "format")["type"])],
        "output_audio_format": _FORMATS[str(_inner(spoken, "format")["type"])],
        "input_audio_noise_reduction": None,
        "input_audio_transcription": heard["transcription"],
        "turn_detection": heard["turn_detection"],
        "max_response_output_tokens": session["max_output_tokens"],
    }


def _response(response: Json) -> Json:
    spoken, output = _inner(response, "audio", "output"), response["output"]
    assert isinstance(output, list)
    kept = {name: value for name, value in response.items() if name not in ("audio", "output_modalities")}
    return {
        **kept,
        "modalities": _modalities(response["output_modalities"]),
        "voice": spoken["voice"],
        "output_audio_format": _FORMATS[str(_inner(spoken, "format")["type"])],
        "output": [_item(item) for item in output],
    }


def _item(item: Json) -> Json:
    content = item["content"]
    assert isinstance(content, list)
    return {**item, "content": [{**part, "type": _PARTS.get(part["type"], part["type"])} for part in content]}
