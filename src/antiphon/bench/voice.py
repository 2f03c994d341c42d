"""`antiphon bench voice`: the voice pipeline against the same models called in process.

In: how often to measure. Out: a Report. Server and references take turns (A B A B ...), so that a busy
machine is busy for both; figures are medians. Does not know: how the report is shown.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import uvloop

from antiphon import env
from antiphon.bench.jobs import Chat, Speak
from antiphon.bench.load import Post, Reply, send, send_all
from antiphon.bench.measures import Bound, Goal, Row, Sample, median_of
from antiphon.bench.processes import BenchServer, Reference
from antiphon.bench.report import Report, fingerprint
from antiphon.bench.workloads import SPOKEN, Prompts, long_texts
from antiphon.ids import stage_of

_WAV_HEADER_BYTES = 44
_PCM_BYTES_PER_S = 48_000
_CONTENT_MARK = b'"delta":{"content":"'  # the first chunk, which tells the role, looks otherwise
_TWO_REPLICAS = ("stages.talker.replicas=2", "stages.code2wav.replicas=2")
_NUM_PARALLEL_CHATS = 8
_SETTLE_S = 0.05

_TTFA_GOAL = Goal(Bound.AT_MOST, 1.5, 15.0)
_SPEECH_GOAL = Goal(Bound.AT_LEAST, 0.8)
_GROWTH_GOAL = Goal(Bound.AT_LEAST, 1.0)
_TTFT_GOAL = Goal(Bound.AT_MOST, 1.3)
_CHAT_GOAL = Goal(Bound.AT_LEAST, 0.8)


@dataclass(frozen=True)
class Effort:
    """How often each thing is measured."""

    num_ttfa: int = 15
    num_ttft: int = 20
    num_batches: int = 5
    num_speeches: int = 16
    chat_tokens: int = 64


QUICK = Effort(num_ttfa=5, num_ttft=8, num_batches=2)


@dataclass
class VoiceBench:
    """Owns what has been measured so far."""

    effort: Effort
    say: Callable[[str], None]
    rows: list[Row] = field(default_factory=list)
    values: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    prompts: Prompts = field(default_factory=Prompts)

    def run(self) -> Report:
        """Start servers and references, measure everything, end them."""
        machine = fingerprint()
        self.say("starting two servers: one replica of each stage; two of talker and code2wav")
        with BenchServer() as server, BenchServer(*_TWO_REPLICAS) as wide_server:
            with Reference("speech") as reference, Reference("speech") as second:
                self._first_audio(server, reference)
                self._speech_throughput((server, wide_server), (reference, second))
            with Reference("chat", str(_thinker_threads()), str(_NUM_PARALLEL_CHATS)) as reference:
                self._first_token(server, reference)
                self._chat_throughput(server, reference)
        return Report(tuple(self.rows), dict(self.values), machine)

    def _first_audio(self, server: BenchServer, reference: Reference) -> None:
        self.say("first audio (audio_ttfp)")
        for spoken in SPOKEN:
            name = f'TTFA "{spoken.first_clause[:24]}"'
            _post(server, _speech(spoken.text, "pcm"))
            for _ in range(self.effort.num_ttfa):
                for audio_format in ("pcm", "wav"):
                    first_s = _post(server, _speech(spoken.text, audio_format)).first_s
                    self.values[f"{name} {audio_format}, ms"].append(first_s * 1000)
                    time.sleep(_SETTLE_S)  # the rest of the text is spoken; nothing of it may be left over
                sample = reference.run(Speak((spoken.first_clause,)))
                self.values[f"{name} hibari, ms"].append(sample.wall_s * 1000)
            for audio_format in ("pcm", "wav"):
                ours, theirs = self._median(f"{name} {audio_format}, ms"), self._median(f"{name} hibari, ms")
                self.rows.append(Row(f"{name} {audio_format}", "ms", ours, theirs, _TTFA_GOAL))

    def _speech_throughput(
        self, servers: tuple[BenchServer, BenchServer], references: tuple[Reference, Reference]
    ) -> None:
        self.say(f"{self.effort.num_speeches} concurrent speech requests")
        texts = long_texts(self.effort.num_speeches)
        posts = [_speech(text, "pcm") for text in texts]
        for _ in range(self.effort.num_batches):
            self._batch("speech 1 replica", servers[0], posts, _audio_s)
            self._reference("speech hibari", references[0].run(Speak(texts)))
            self._batch("speech 2 replicas", servers[1], posts, _audio_s)
            self._reference("speech hibari x 2", _both(references, Speak(texts[::2]), Speak(texts[1::2])))
        hibari = self._median("speech hibari, per wall s")
        for name in ("speech 1 replica", "speech 2 replicas"):
            self._row(f"{name}: audio s / s", "audio s/s", f"{name}, per wall s", "speech hibari, per wall s")
            cores = self._median(f"{name}, stage cores used")
            ours = self._median(f"{name}, per wall s")
            label = f"{name}: audio s / s of {cores:.2f} stage cores"
            self.rows.append(Row(label, "audio s/s", ours, hibari * cores, _SPEECH_GOAL))
            self._row(
                f"{name}: audio s / CPU s, all processes", "audio s/s", f"{name}, per CPU s", "speech hibari, per CPU s"
            )
            label = f"{name}: audio s / s, against two hibari processes at once"
            self._row(label, "audio s/s", f"{name}, per wall s", "speech hibari x 2, per wall s")
        growth = "speech 2 replicas, per wall s", "speech 1 replica, per wall s"
        self._row("speech: 2 replicas against 1", "audio s/s", *growth, _GROWTH_GOAL)

    def _first_token(self, server: BenchServer, reference: Reference) -> None:
        self.say("first token (ttft)")
        for prompts in (self.prompts.take(1) for _ in range(self.effort.num_ttft)):
            reply = _post(server, _chat(prompts[0], 8))
            self.values["TTFT, ms"].append(reply.first_s * 1000)
            time.sleep(_SETTLE_S)
            sample = reference.run(Chat(prompts, 8, until_first=True))
            self.values["TTFT llama.cpp, ms"].append(sample.wall_s * 1000)
        self._row("TTFT of a chat", "ms", "TTFT, ms", "TTFT llama.cpp, ms", _TTFT_GOAL)

    def _chat_throughput(self, server: BenchServer, reference: Reference) -> None:
        self.say(f"{_NUM_PARALLEL_CHATS} concurrent chats")
        for _ in range(self.effort.num_batches):
            prompts = self.prompts.take(_NUM_PARALLEL_CHATS)
            posts = [_chat(prompt, self.effort.chat_tokens) for prompt in prompts]
            self._batch("chat", server, posts, _num_tokens)
            self._reference("chat llama.cpp", reference.run(Chat(prompts, self.effort.chat_tokens)))
        self._row("8 chats: tokens / s", "tok/s", "chat, per wall s", "chat llama.cpp, per wall s", _CHAT_GOAL)
        self._row("8 chats: tokens / CPU s, all processes", "tok/s", "chat, per CPU s", "chat llama.cpp, per CPU s")

    def _batch(self, name: str, server: BenchServer, posts: list[Post], amount: Callable[[Reply], float]) -> None:
        """Send `posts` at once and note what came per second and per CPU second."""
        before, began_s = server.cpu_s(), time.perf_counter()
        replies = uvloop.run(send_all(server.host, server.port, posts))
        wall_s, after = time.perf_counter() - began_s, server.cpu_s()
        used = {process: after[process] - before[process] for process in after}
        sample = Sample(wall_s, sum(used.values()), sum(map(amount, replies)))
        self._reference(name, sample)
        stages = sum(cpu_s for process, cpu_s in used.items() if "/" in process and stage_of(process) != "api-server")
        self.values[f"{name}, stage cores used"].append(stages / wall_s)
        for process, cpu_s in used.items():
            self.values[f"{name}, CPU s of {process}"].append(cpu_s)

    def _reference(self, name: str, sample: Sample) -> None:
        self.values[f"{name}, per wall s"].append(sample.per_wall_s)
        self.values[f"{name}, per CPU s"].append(sample.per_cpu_s)

    def _row(self, label: str, unit: str, ours: str, reference: str, goal: Goal | None = None) -> None:
        self.rows.append(Row(label, unit, self._median(ours), self._median(reference), goal))

    def _median(self, name: str) -> float:
        return median_of(self.values[name])


def _both(references: tuple[Reference, Reference], *jobs: Speak) -> Sample:
    """What two processes do at once: the most that two cores give, with nothing between them."""
    with ThreadPoolExecutor(len(references)) as pool:
        samples = list(pool.map(lambda reference, job: reference.run(job), references, jobs))
    wall_s = max(sample.wall_s for sample in samples)
    return Sample(wall_s, sum(sample.cpu_s for sample in samples), sum(sample.amount for sample in samples))


def _post(server: BenchServer, post: Post) -> Reply:
    return uvloop.run(send(server.host, server.port, post))


def _speech(text: str, audio_format: str) -> Post:
    body: dict[str, object] = {"model": "voice", "input": text, "response_format": audio_format}
    return Post("/v1/audio/speech", body, skip_bytes=_WAV_HEADER_BYTES if audio_format == "wav" else 0)


def _chat(prompt: str, max_tokens: int) -> Post:
    body: dict[str, object] = {
        "model": "voice",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return Post("/v1/chat/completions", body, first_mark=_CONTENT_MARK)


def _audio_s(reply: Reply) -> float:
    return len(reply.body) / _PCM_BYTES_PER_S


def _num_tokens(reply: Reply) -> float:
    _, _, counted = reply.body.rpartition(b'"completion_tokens":')
    return float(counted.partition(b",")[0])


def _thinker_threads() -> int:
    return min(2, env.cpu_count())
