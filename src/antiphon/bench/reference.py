"""The yardstick: the same models called in process, without antiphon, in a process of their own.

In: one Job per line of JSON on stdin. Out: one Sample per line on stdout, timed around the calls alone.
Does not know: servers, stages, goals.

`python -m antiphon.bench.reference speech|chat`
"""

import sys
import threading
import time

import msgspec
import numpy as np
import xllamacpp
from hibari import Hibari

from antiphon.bench.jobs import DECODE_JOB, ENCODE, Chat, Speak
from antiphon.bench.measures import Sample
from antiphon.models.voice.weights import smollm2_gguf


class SpeechReference:
    """Owns hibari, as its own documentation uses it."""

    def __init__(self) -> None:
        self._hibari = Hibari(threads=1)
        self.run(Speak(("Warm up, please.",)))

    def run(self, job: Speak) -> Sample:
        """G2P, network and vocoder, one sentence after the other."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        num_samples = 0
        for text in job.texts:
            rng = np.random.default_rng()
            for phonemes in self._hibari.phonemize(text):
                num_samples += len(self._hibari.from_ids(self._hibari.ids(phonemes), 1.0, rng))
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        return Sample(wall_s, cpu_s, num_samples / Hibari.sample_rate)


class ChatReference:
    """Owns llama.cpp with the thinker's settings."""

    def __init__(self, num_threads: int, num_parallel: int) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = smollm2_gguf()
        params.n_parallel = num_parallel
        params.n_ctx = 8192
        params.kv_unified = True
        params.cpuparams.n_threads = num_threads
        params.cpuparams_batch.n_threads = num_threads
        params.n_threads_http = 1
        params.verbosity = -1
        self._server = xllamacpp.Server(params)
        self.run(Chat(("Say a word.",), 4))

    def run(self, job: Chat) -> Sample:
        """llama.cpp's own continuous batching over all prompts."""
        answers = [_Answer() for _ in job.prompts]
        threads = [
            threading.Thread(target=self._ask, args=(prompt, job.max_tokens, answer))
            for prompt, answer in zip(job.prompts, answers, strict=True)
        ]
        began_s, cpu_s = time.perf_counter(), time.process_time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ended_s, cpu_s = time.perf_counter(), time.process_time() - cpu_s
        if job.until_first:
            ended_s = max(answer.first_s for answer in answers)
        return Sample(ended_s - began_s, cpu_s, float(sum(answer.num_tokens for answer in answers)))

    def _ask(self, prompt: str, max_tokens: int, answer: "_Answer") -> None:
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "top_p": 0.95,
            "top_k": 40,
            "min_p": 0.05,
            "repeat_penalty": 1.0,
            "ignore_eos": True,
            "cache_prompt": True,
        }
        self._server.handle_chat_completions(body, answer.on_event)


class _Event(msgspec.Struct, frozen=True):
    """What is read of an event of llama.cpp."""

    choices: list[dict[str, object]] = []
    usage: dict[str, object] = {}


class _Answer:
    """What one completion has said."""

    def __init__(self) -> None:
        self.first_s = 0.0
        self.num_tokens = 0

    def on_event(self, event: object) -> bool:
        """llama.cpp's callback; False: go on."""
        for one in msgspec.convert(event if isinstance(event, list) else [event], list[_Event]):
            for choice in one.choices:
                delta = choice["delta"]
                if not self.first_s and isinstance(delta, dict) and delta.get("content"):
                    self.first_s = time.perf_counter()
            if one.usage:
                self.num_tokens = msgspec.convert(one.usage["completion_tokens"], int)
        return False


def main() -> None:
    """Say ready, then serve jobs until stdin ends."""
    kind, *numbers = sys.argv[1:]
    reference = SpeechReference() if kind == "speech" else ChatReference(*map(int, numbers))
    print("ready", flush=True)
    for line in sys.stdin:
        job = DECODE_JOB.decode(line)
        match job, reference:
            case Speak(), SpeechReference():
                sample = reference.run(job)
            case Chat(), ChatReference():
                sample = reference.run(job)
            case _:
                raise SystemExit(f"the {kind} reference cannot do a {type(job).__name__}")
        print(ENCODE(sample).decode(), flush=True)


if __name__ == "__main__":
    main()
