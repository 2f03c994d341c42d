"""An engine that brings its own continuous batching: llama.cpp in this process, through xllamacpp.

In: StageRequests whose input is complete. Out: text pieces as llama.cpp makes them.
Does not know: lanes. One thread per running request waits in llama.cpp; the stage's loop only collects.
"""

import contextlib
import os
import queue
import secrets
import threading
import time
from collections import deque
from pathlib import Path
from typing import Protocol

from antiphon.errors import AntiphonError, InvalidRequestError, StageError
from antiphon.messages.client import TextDelta, TokenLogprob, Usage
from antiphon.messages.conversation import Conversation
from antiphon.stage.engine.base import EngineStatistics, StepResult
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.engine.guard import guarded, outputs_of
from antiphon.stage.engine.llama_cpp_wire import Body, Error, Event, body_of, logprobs_of
from antiphon.stage.held_logprobs import HeldLogprobs
from antiphon.stage.request import StageOutput, StageRequest

_BATCH_TOKENS = 64
"""How much of a prompt is read at once: an abort waits for it, and so does every running request's next token.

Larger ones are no faster: SmolLM2 reads 1,000 tokens in 6.6 s of one core with 64 as with 2,048; with 32 in 9.2 s.
"""
_OF_GRAMMARS = ("grammar", "JSON schema", "parser for this template")
"""What llama.cpp's complaints about a `response_format` have in them."""


class ChatModel(Protocol):
    """What a model author writes for this engine."""

    context_tokens: int

    def weights(self, context: ModelContext) -> str:
        """Path of the GGUF file."""

    def conversation(self, request: StageRequest) -> Conversation:
        """The conversation of a request whose input is complete. It has no tools: llama.cpp would drop them."""

    def output(self, request: StageRequest, delta: TextDelta) -> StageOutput:
        """Where a piece of text goes."""


class _Job:
    """One request between its worker thread, which appends, and the stage's loop, which collects."""

    def __init__(self, request: StageRequest, body: Body) -> None:
        self.request = request
        self.body = body
        self.is_cancelled = False
        self.pieces: deque[tuple[str, tuple[TokenLogprob, ...]]] = deque()
        """Texts, and the log probabilities of the tokens that came with each."""
        self.num_tokens = 0
        """Pieces collected so far; llama.cpp gives about one per token, and the exact number at the end."""
        self.finish_reason = "stop"
        self.usage = Usage()
        self.held = HeldLogprobs()
        self.error: AntiphonError | None = None
        self.is_over = False

    def on_event(self, event: Event) -> None:
        """Take in one event of llama.cpp."""
        if "error" in event:
            self.error = self._as_error(event["error"])
        for choice in event.get("choices", ()):
            text = choice["delta"].get("content") or ""
            logprobs = logprobs_of(choice, self.request.params.sampling.logprobs)
            if text or logprobs:
                self.pieces.append((text, logprobs))
            self.finish_reason = choice["finish_reason"] or self.finish_reason
        if "usage" in event:
            counted = event["usage"]
            self.usage = Usage(counted["prompt_tokens"], counted["completion_tokens"])

    def given_out(
        self, pieces: list[tuple[str, tuple[TokenLogprob, ...]]], *, is_over: bool
    ) -> tuple[str, tuple[TokenLogprob, ...]]:
        """The text of the pieces, and the tokens that end in it: llama.cpp also tells those of a stop string."""
        text = "".join(text for text, _ in pieces)
        for _, logprobs in pieces:
            for logprob in logprobs:
                self.held.push(logprob, len(logprob.token.data))
        return text, self.held.release(len(text.encode()) if self.body.get("logprobs") else 0, is_last=is_over)

    def refused(self, told: str) -> InvalidRequestError:
        """What llama.cpp cannot do with this request, in words for its client."""
        if "response_format" in self.body and any(word in told for word in _OF_GRAMMARS):
            reason = told.rpartition("\n")[2].rpartition("JSON schema error at ")[2]
            return InvalidRequestError(
                f"`response_format`: no grammar can be made of this JSON Schema ({reason}); mend or simplify it",
                param="response_format",
            )
        return InvalidRequestError(f"{self.request.request_id}: {told}", param="messages")

    def _as_error(self, error: Error) -> AntiphonError:
        if 400 <= error["code"] < 500:
            return self.refused(error["message"])
        return StageError(f"{self.request.request_id}: {error['message']}")


class LlamaCppEngine:
    """Owns llama.cpp's server object, `max_num_seqs` worker threads, and the jobs they run."""

    def __init__(self, model: ChatModel, context: ModelContext, *, max_num_seqs: int) -> None:
        self._model = model
        self._context = context
        self._max_num_seqs = max_num_seqs
        self._jobs: dict[str, _Job] = {}
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._changed: deque[_Job] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._workers: list[threading.Thread] = []
        self._num_steps = 0
        self._num_tokens = 0
        self._busy_s = 0.0
        self._busy_since_s: float | None = None

    def startup(self) -> None:
        """Load the weights and start the workers."""
        import xllamacpp

        # llama.cpp always listens; in the private run directory and behind a random key nobody else can use it.
        socket_path = Path(f"{self._context.private_path}.llama.sock")
        socket_path.unlink(missing_ok=True)  # of a process that was killed: llama.cpp would not start
        params = xllamacpp.CommonParams()
        params.model.path = self._model.weights(self._context)
        params.n_parallel = self._max_num_seqs
        params.n_ctx = self._model.context_tokens
        params.kv_unified = True
        params.n_batch = max(_BATCH_TOKENS, self._max_num_seqs)
        params.cpuparams.n_threads = self._context.num_threads
        params.cpuparams_batch.n_threads = self._context.num_threads
        params.hostnames = [str(socket_path)]
        params.api_keys = [secrets.token_hex(32)]
        params.endpoint_slots = False
        params.ui = False
        params.n_threads_http = 1
        params.verbosity = -1
        self._server = xllamacpp.Server(params)
        self._workers = [threading.Thread(target=self._work, daemon=True) for _ in range(self._max_num_seqs)]
        for worker in self._workers:
            worker.start()

    def add(self, request: StageRequest) -> None:
        """Queue a request for the next free worker; StageError if the model cannot read its input."""
        conversation = guarded([request], self._model.conversation, request)
        if isinstance(conversation, AntiphonError):
            raise conversation
        job = _Job(request, body_of(conversation, request.params.sampling))
        self._jobs[request.request_id] = job
        self._note_busy()
        self._queue.put(job)

    def abort(self, request_id: str) -> None:
        """Forget a request; its worker stops llama.cpp at the next token or batch of the prompt."""
        job = self._jobs.pop(request_id, None)
        if job is not None:
            job.is_cancelled = True
            self._note_busy()

    def has_work(self) -> bool:
        """True if a worker has something new."""
        return bool(self._changed)

    def step(self) -> list[StepResult]:
        """Collect what the workers have made since the last step, one result per request."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        changed: dict[str, _Job] = {}
        while self._changed:
            job = self._changed.popleft()
            if self._jobs.get(job.request.request_id) is job:
                changed[job.request.request_id] = job
        self._num_steps += 1
        return [result for job in changed.values() for result in self._collect(job)]

    def fileno(self) -> int | None:
        """Readable when a worker has something new."""
        return self._wake_fd

    def statistics(self) -> EngineStatistics:
        """Counts for the monitor; a step is one collection, busy is the time in which there was a request."""
        self._note_busy()
        num_running = min(len(self._jobs), self._max_num_seqs)
        num_waiting = len(self._jobs) - num_running
        return EngineStatistics(
            num_running, num_waiting, self._num_steps, self._busy_s, self._max_num_seqs, num_tokens=self._num_tokens
        )

    def close(self) -> None:
        """Stop the workers, which takes as long as a batch of a prompt; only then can the model be freed."""
        for job in self._jobs.values():
            job.is_cancelled = True
        for _ in self._workers:
            self._queue.put(None)
        for worker in self._workers:
            worker.join()
        del self._server

    def _collect(self, job: _Job) -> list[StepResult]:
        is_over = job.is_over  # read before the pieces: the worker appends first and sets it last
        num_pieces = len(job.pieces)
        pieces = [job.pieces.popleft() for _ in range(num_pieces)]
        text, logprobs = job.given_out(pieces, is_over=is_over)
        job.num_tokens += num_pieces
        self._num_tokens += num_pieces
        results: list[StepResult] = []
        if text:
            delta = TextDelta(text, logprobs)
            results += outputs_of([job], lambda jobs: [self._model.output(jobs[0].request, delta)])
        if is_over:
            self._jobs.pop(job.request.request_id, None)
            self._note_busy()
            self._num_tokens += max(0, job.usage.num_output_tokens - job.num_tokens)
            end = StageOutput(finished=True, finish_reason=job.finish_reason, usage=job.usage)
            results.append(StepResult(job.request, job.error or end))
        for result in results:
            if isinstance(result.output, AntiphonError):
                self.abort(job.request.request_id)
        return results

    def _note_busy(self) -> None:
        """Add the time since the last call, if there was a request."""
        now_s = time.monotonic()
        if self._busy_since_s is not None:
            self._busy_s += now_s - self._busy_since_s
        self._busy_since_s = now_s if self._jobs else None

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            if not job.is_cancelled:
                self._run(job)

    def _run(self, job: _Job) -> None:
        def on_event(event: Event | list[Event]) -> bool:
            """Called by llama.cpp in this thread; True tells it to stop."""
            for one in event if isinstance(event, list) else [event]:
                job.on_event(one)
            self._tell(job)
            return job.is_cancelled

        job.request.timeline.step(time.monotonic())
        try:
            self._server.handle_chat_completions(job.body, on_event)
        except ValueError as error:
            job.error = job.refused(str(error))
        except RuntimeError as error:
            job.error = StageError(f"{job.request.request_id}: llama.cpp failed: {error}")
        job.is_over = True
        self._tell(job)

    def _tell(self, job: _Job) -> None:
        self._changed.append(job)
        os.eventfd_write(self._wake_fd, 1)
