"""One HTTP request's times, from its arrival to the last byte of its answer.

In: what a handler makes and sends, and the end. Out: observations. Does not know: HTTP, histograms.
"""

import time
from typing import Protocol

from antiphon.messages.client import AudioChunk


class Observer(Protocol):
    """Takes the measured seconds (rtf: seconds per second of audio) of requests of a task."""

    def ttft(self, task: str, value: float) -> None:
        """From arrival to the first text."""

    def ttfa(self, task: str, value: float) -> None:
        """From arrival to the first audio."""

    def tpot(self, task: str, value: float) -> None:
        """Per token after the first."""

    def e2e(self, task: str, value: float) -> None:
        """From arrival to the last byte."""

    def rtf(self, task: str, value: float) -> None:
        """From arrival to the last byte, per second of audio."""

    def underrun(self, task: str, value: float) -> None:
        """How long playback stood still."""


class RequestClock:
    """Owns one request's moments. Requests that no handler names a task for are not observed."""

    def __init__(self, observer: Observer) -> None:
        self.started_s = time.perf_counter()
        self._observer = observer
        self._task = ""
        self._first_text_s = self._last_text_s = 0.0
        self._first_audio_s = 0.0
        self._made_audio_s = self._sent_audio_s = 0.0
        self._underrun_s: float | None = None
        self._num_tokens = 0
        self._is_complete = False

    def another(self) -> "RequestClock":
        """A clock for a further request of the same client, from now on."""
        return RequestClock(self._observer)

    def begin(self, task: str) -> None:
        """It is a request of `task`."""
        self._task = task

    def saw_text(self) -> None:
        """Text of a streamed answer is on its way to the client."""
        self._last_text_s = time.perf_counter()
        if not self._first_text_s:
            self._first_text_s = self._last_text_s
            self._observer.ttft(self._task, self._first_text_s - self.started_s)

    def saw_audio(self, chunk: AudioChunk) -> None:
        """Audio is there. It may have to wait for more before the encoder gives bytes."""
        self._made_audio_s += chunk.duration_s

    def sent_audio(self) -> None:
        """Bytes of all audio so far are on their way to the client of a streamed answer."""
        if not self._first_audio_s:
            self._first_audio_s = time.perf_counter()
            self._observer.ttfa(self._task, self._first_audio_s - self.started_s)
        played_s = time.perf_counter() - self._first_audio_s
        self._underrun_s = max(self._underrun_s or 0.0, played_s - self._sent_audio_s if self._sent_audio_s else 0.0)
        self._sent_audio_s = self._made_audio_s

    def complete(self, num_output_tokens: int = 0) -> None:
        """The stages have given everything; what is left to send is on its way. num_output_tokens: the text's."""
        self._num_tokens = num_output_tokens
        self._is_complete = True

    def last_byte(self) -> None:
        """The answer has been sent, if it is complete."""
        if not self._is_complete:
            return
        task, e2e_s = self._task, time.perf_counter() - self.started_s
        self._observer.e2e(task, e2e_s)
        if self._first_text_s and self._num_tokens > 1:
            self._observer.tpot(task, (self._last_text_s - self._first_text_s) / (self._num_tokens - 1))
        if self._made_audio_s:
            self._observer.rtf(task, e2e_s / self._made_audio_s)
        if self._underrun_s is not None:
            self._observer.underrun(task, self._underrun_s)
