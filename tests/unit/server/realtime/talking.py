"""A session without a socket: events go in as a client writes them, effects come out as a list."""

import base64
from dataclasses import dataclass, field

import numpy as np

from antiphon.config.pipeline import VoiceSpec
from antiphon.messages.client import AudioChunk, OutputEnd, TextDelta, Usage
from antiphon.server.data_url import base64_bytes
from antiphon.server.realtime.dialect import Dialect
from antiphon.server.realtime.ears import Ears
from antiphon.server.realtime.effects import Effect, Generate, Say, Stop, WriteDown
from antiphon.server.realtime.schema import EVENTS, AppendAudio
from antiphon.server.realtime.session import Session
from antiphon.server.realtime.session_config import Abilities, SessionConfig

VOICES = (VoiceSpec("anna", "en", ("alloy",)), VoiceSpec("ben", "de"))
ABLE = Abilities(
    hears=True,
    speaks=True,
    writes=True,
    hears_by_writing=True,
    detects_turns=True,
    voices=VOICES,
    languages=("en", "de"),
    max_text_chars=20_000,
)
SPEECH_MS = 640
END = OutputEnd("stop", Usage(7, 5))


class LoudIsSpeech:
    """Judges by loudness alone, so that a test says exactly when somebody speaks."""

    def judge(self, chunk: np.ndarray) -> float:
        return 0.9 if np.abs(chunk).mean() > 0.1 else 0.01


def pcm(ms: int, level: float = 0.0) -> str:
    """Base64 of 24 kHz pcm: silence, or a square wave of 200 Hz."""
    number = np.arange(ms * 24)
    wave = np.where(number // 60 % 2 == 0, level, -level) * 32_000
    return base64.b64encode(wave.astype("<i2").tobytes()).decode()


def chunk(ms: int) -> AudioChunk:
    return AudioChunk(bytes(ms * 48), 24_000)


@dataclass
class Talking:
    """One session and what it has had done."""

    abilities: Abilities = ABLE
    dialect: Dialect = Dialect.GA
    max_turn_s: float = 10.0
    taken: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ears = Ears(LoudIsSpeech(), self.max_turn_s)
        config = SessionConfig.default("voice", self.abilities)
        self.session = Session(config, self.abilities, self.ears, self.dialect)
        self.session.open(1_000)

    @property
    def effects(self) -> list[Effect]:
        """All so far, without those that a test has taken."""
        self.taken += self.session.take()
        return self.taken

    def send(self, kind: str, **fields: object) -> list[dict]:
        """What the client hears of one event."""
        before = len(self.effects)
        event = EVENTS[kind].model_validate({"type": kind, **fields})
        if isinstance(event, AppendAudio):
            self.session.on_heard(self.ears.append(base64_bytes(event.audio, "audio")))
        else:
            self.session.on_event(event)
        return [effect.event for effect in self.effects[before:] if isinstance(effect, Say)]

    def speak(self, silence_ms: int = 640) -> list[dict]:
        """A spoken turn and the silence behind it."""
        said = self.send("input_audio_buffer.append", audio=pcm(SPEECH_MS, 0.5))
        return said + self.send("input_audio_buffer.append", audio=pcm(silence_ms))

    def hear(self, text: str) -> list[dict]:
        """The words of all parts that were to be written down are known."""
        before = len(self.effects)
        for effect in self.take(WriteDown):
            self.session.on_transcript(effect.number, text, 1.0)
        return [effect.event for effect in self.effects[before:] if isinstance(effect, Say)]

    def answer(self, text: str, ms: int = 1_000) -> None:
        """The running response has said something."""
        response_id = self.generate().response_id
        self.session.on_output(response_id, TextDelta(text))
        self.session.on_output(response_id, chunk(ms))

    def finish(self, end: OutputEnd = END) -> None:
        self.session.on_end(self.generate().response_id, end)

    def ask(self, text: str, answer: str, ms: int = 1_000) -> str:
        """A written turn and its whole answer; gives the answer's item."""
        self.send("conversation.item.create", item=written("user", text))
        self.send("response.create")
        self.answer(answer, ms)
        self.finish()
        return str(self.said("response.output_item.done")[-1]["item"]["id"])

    def generate(self) -> Generate:
        """The last request to the stages."""
        return [effect for effect in self.effects if isinstance(effect, Generate)][-1]

    def take(self, kind: type[WriteDown] | type[Stop]) -> list:
        """The effects of one kind, which are done with then."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.taken[:] = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def said(self, kind: str = "") -> list[dict]:
        """All events for the client so far, or those of one kind."""
        events = [effect.event for effect in self.effects if isinstance(effect, Say)]
        return [event for event in events if not kind or event["type"] == kind]


def types(events: list[dict]) -> list[str]:
    return [str(event["type"]) for event in events]


def written(role: str, text: str, **fields: object) -> dict:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}], **fields}
