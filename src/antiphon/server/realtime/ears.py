"""The input audio buffer: what a client has said and what is no turn yet; where a turn begins and ends.

In: bytes as they come, the session's format and turn detection. Out: SpeechStarted, SpeechStopped with the turn's
audio. Does not know: events, conversations, the network that judges.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from antiphon.errors import InvalidRequestError
from antiphon.server.realtime.turn_detection import TurnDetection
from antiphon.server.realtime.vad import CHUNK, SpeechProbability
from antiphon.server.realtime.wire_audio import HEARING_RATE, Samples, WireFormat, WireInput

_SAMPLES_PER_MS = HEARING_RATE // 1000
_MIN_COMMIT_MS = 100
_MIN_SPEECH_CHUNKS = 3
"""A turn begins with so many chunks in a row over the threshold: 96 ms, so that a click is no speech."""
_HYSTERESIS = 0.15
"""A chunk is silent below the threshold less this."""


@dataclass(frozen=True)
class SpeechStarted:
    """start_ms: of the turn's audio, on the clock of all audio that the session has been sent."""

    start_ms: int


@dataclass(frozen=True)
class SpeechStopped:
    """end_ms: of the turn's audio. samples: float32 16 kHz [samples], silence at both ends included."""

    end_ms: int
    samples: Samples


TurnBorder = SpeechStarted | SpeechStopped


class Ears:
    """Owns the audio since the last turn: all of it, or with turn detection only what a turn may begin with."""

    def __init__(self, vad: SpeechProbability | None, max_turn_s: float) -> None:
        self._vad = vad
        self._max_samples = int(max_turn_s * HEARING_RATE)
        self._max_turn_s = max_turn_s
        self._format = WireFormat.PCM
        self._turns: TurnDetection | None = None
        self._wire = WireInput(self._format)
        self._pieces: deque[Samples] = deque()
        self._num_kept = 0
        self._num_heard = 0
        self._unjudged = np.zeros(0, np.float32)
        self._num_loud = 0
        self._num_silent = 0
        self._is_speech = False

    def configure(self, format: WireFormat, turns: TurnDetection | None) -> None:
        """From now on. What is buffered stays; a turn that has begun ends by the new rules."""
        if format is not self._format:
            self._format, self._wire = format, WireInput(format)
        self._turns = turns if self._vad is not None else None
        if self._turns is None:
            self._keep(self._unjudged)
            self._unjudged, self._is_speech, self._num_loud = self._unjudged[:0], False, 0

    @property
    def is_speech(self) -> bool:
        """True between SpeechStarted and SpeechStopped."""
        return self._is_speech

    def check_length(self, samples: Samples) -> None:
        """InvalidRequestError for a turn that is longer than one may be."""
        if len(samples) > self._max_samples:
            raise InvalidRequestError(
                f"a spoken turn lasts at most {self._max_turn_s:g} s; send it in parts, or raise "
                "server.realtime_max_turn_s",
                param="audio",
            )

    def append(self, data: bytes) -> list[TurnBorder]:
        """More audio. InvalidRequestError if, without turn detection, more than the longest turn would be kept."""
        if self._turns is None:
            most = self._max_samples - self._num_kept
            if len(data) // (2 if self._format is WireFormat.PCM else 1) > most * self._format.rate / HEARING_RATE:
                raise InvalidRequestError(
                    f"the buffer holds at most {self._max_turn_s:g} s; commit or clear it, or raise "
                    "server.realtime_max_turn_s",
                    param="audio",
                    code="input_audio_buffer_full",
                )
            self._keep(self._wire.decode(data))
            return []
        self._unjudged = np.concatenate((self._unjudged, self._wire.decode(data)))
        heard: list[TurnBorder] = []
        while len(self._unjudged) >= CHUNK:
            chunk, self._unjudged = self._unjudged[:CHUNK], self._unjudged[CHUNK:]
            heard += self._judge(chunk, self._turns)
        return heard

    def commit(self) -> Samples:
        """All that is buffered, as a turn. InvalidRequestError if that is too little."""
        self._keep(self._wire.decode(b"", last=True))
        self._wire = WireInput(self._format)
        self._keep(self._unjudged)
        num_ms = self._num_kept // _SAMPLES_PER_MS
        if num_ms < _MIN_COMMIT_MS:
            raise InvalidRequestError(
                f"the buffer holds {num_ms} ms of audio; a turn has at least {_MIN_COMMIT_MS} ms",
                code="input_audio_buffer_commit_empty",
            )
        turn = np.concatenate(self._pieces)
        self._forget()
        return turn

    def clear(self) -> None:
        """Forget what is buffered."""
        self._wire = WireInput(self._format)
        self._num_heard += len(self._unjudged)
        self._forget()

    def _keep(self, samples: Samples) -> None:
        self._pieces.append(samples)
        self._num_kept += len(samples)
        self._num_heard += len(samples)

    def _forget(self) -> None:
        self._pieces.clear()
        self._unjudged = self._unjudged[:0]
        self._num_kept = self._num_loud = self._num_silent = 0
        self._is_speech = False

    def _drop_beyond(self, num_samples: int) -> None:
        """Keep the last `num_samples`."""
        while self._num_kept > num_samples:
            piece = self._pieces.popleft()
            extra = self._num_kept - num_samples
            if extra < len(piece):
                self._pieces.appendleft(piece[extra:])
            self._num_kept -= min(extra, len(piece))

    def _judge(self, chunk: Samples, turns: TurnDetection) -> list[TurnBorder]:
        assert self._vad is not None, "configure sees to it"
        probability = self._vad.judge(chunk)
        self._keep(chunk)
        self._num_loud = self._num_loud + 1 if probability >= turns.threshold else 0
        if not self._is_speech:
            padding = turns.prefix_padding_ms * _SAMPLES_PER_MS
            self._drop_beyond(padding + max(1, self._num_loud) * CHUNK)
            return [self._start()] if self._num_loud >= _MIN_SPEECH_CHUNKS else []
        is_silent = probability < max(turns.threshold - _HYSTERESIS, 0.01)
        self._num_silent = self._num_silent + 1 if is_silent else 0
        silence = turns.silence_duration_ms * _SAMPLES_PER_MS
        if self._num_silent * CHUNK >= silence or self._num_kept >= self._max_samples:
            return [self._stop()]
        return []

    def _start(self) -> SpeechStarted:
        self._is_speech, self._num_silent = True, 0
        return SpeechStarted((self._num_heard - self._num_kept) // _SAMPLES_PER_MS)

    def _stop(self) -> SpeechStopped:
        turn = SpeechStopped(self._num_heard // _SAMPLES_PER_MS, np.concatenate(self._pieces))
        rest = self._unjudged
        self._forget()
        self._unjudged = rest
        return turn
