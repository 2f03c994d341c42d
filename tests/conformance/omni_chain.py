"""The three stages of qwen3-omni in one process: real engines, real edge cursors, a connector that is a function call.

In: tokenized prompts. Out: each request's token ids, frames and samples, or the error that ended it; bytes per edge.
Does not know: the reference. Every hand-off is checked against the pipeline's declaration.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from antiphon.config.pipeline import CLIENT, WHOLE, ChunkPlan, EdgeSpec, Layout
from antiphon.connector.base import Chunk
from antiphon.connector.cursor import EdgeCursor, EdgeTarget
from antiphon.connector.layout import Arrays, layout_of
from antiphon.errors import AntiphonError
from antiphon.ids import edge_name
from antiphon.messages.client import AudioChunk, TextDelta, TokenDelta
from antiphon.messages.interstage import ChunkHeader
from antiphon.messages.params import RequestParams, SamplingParams, SpeechParams
from antiphon.models.qwen3_omni import prompts
from antiphon.models.qwen3_omni.code2wav import Code2Wav
from antiphon.models.qwen3_omni.pipeline import PIPELINE
from antiphon.models.qwen3_omni.talker import Talker
from antiphon.models.qwen3_omni.thinker import Thinker
from antiphon.stage.declared import DeclaredOutput
from antiphon.stage.engine.autoregressive import AutoregressiveEngine
from antiphon.stage.engine.base import StageEngine
from antiphon.stage.engine.generation import GenerationEngine
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.request import EdgeInput, StageOutput, StageRequest
from antiphon.stage.runner.device import Device
from antiphon.stage.scheduler.generation import GenerationScheduler

MAX_CHUNK_BYTES = 1 << 20
MAX_STEPS = 20_000
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


@dataclass
class Heard:
    """What a client has got of one request."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    frames: list[np.ndarray] = field(default_factory=list)
    pcm: bytes = b""
    error: AntiphonError | None = None
    ended: set[str] = field(default_factory=set)

    @property
    def codes(self) -> np.ndarray:
        """[num_frames, 16]; what the talker handed off."""
        return np.concatenate(self.frames) if self.frames else np.empty((0, 16), np.int16)

    @property
    def samples(self) -> np.ndarray:
        """float32 in [-1, 1]."""
        return np.frombuffer(self.pcm, np.int16).astype(np.float32) / 32767.0


class ThinkerOnce(Thinker):
    """Chains on one checkpoint share its weights, as no request changes them."""

    is_loaded = False

    def load(self, context: ModelContext, device: Device) -> None:
        if not self.is_loaded:
            super().load(context, device)
            self.is_loaded = True


class TalkerOnce(Talker):
    is_loaded = False

    def load(self, context: ModelContext, device: Device) -> None:
        if not self.is_loaded:
            super().load(context, device)
            self.is_loaded = True


class Code2WavOnce(Code2Wav):
    is_loaded = False

    def load(self, context: ModelContext) -> None:
        if not self.is_loaded:
            super().load(context)
            self.is_loaded = True


@lru_cache(maxsize=1)
def networks(checkpoint: Path) -> tuple[ThinkerOnce, TalkerOnce, Code2WavOnce]:
    return ThinkerOnce(), TalkerOnce(), Code2WavOnce()


class Chain:
    """Owns one engine per stage, or two. Requests are bound in turn."""

    def __init__(
        self,
        checkpoint: Path,
        *,
        is_streamed: bool = True,
        num_thinkers: int = 1,
        num_talkers: int = 1,
        num_kv_blocks: int = 256,
        max_num_batched_tokens: int = 2048,
        max_num_seqs: int = 32,
    ) -> None:
        context = ModelContext("cpu", 1, str(checkpoint), "")
        specs = {
            stage.name: replace(
                stage,
                num_kv_blocks=num_kv_blocks,
                max_num_batched_tokens=max_num_batched_tokens,
                max_num_seqs=max_num_seqs,
            )
            for stage in PIPELINE.stages
        }
        self._is_streamed = is_streamed
        thinker, talker, code2wav = networks(checkpoint)
        self.thinkers = [AutoregressiveEngine(thinker, context, specs["thinker"]) for _ in range(num_thinkers)]
        self.talkers = [AutoregressiveEngine(talker, context, specs["talker"]) for _ in range(num_talkers)]
        vocoder = GenerationEngine(code2wav, context, GenerationScheduler(max_num_seqs=64, max_batch_size=8))
        self._engines: dict[str, Sequence[StageEngine]] = {
            "thinker": self.thinkers,
            "talker": self.talkers,
            "code2wav": [vocoder],
        }
        for engines in self._engines.values():
            for engine in engines:
                engine.startup()
        self.heard: dict[str, Heard] = {}
        self.num_bytes: defaultdict[str, int] = defaultdict(int)
        self._requests: dict[tuple[str, str], StageRequest] = {}
        self._started: set[tuple[str, str]] = set()
        self._cursors: dict[tuple[str, str], EdgeCursor] = {}
        self._binding: dict[str, int] = {}

    def submit(
        self,
        name: str,
        prompt: dict[str, np.ndarray] | prompts.Prompt,
        sampling: SamplingParams = GREEDY,
        *,
        voice: str = "",
        speaks: bool = True,
    ) -> None:
        """Bind a request to one engine of each stage and send its prompt."""
        params = RequestParams(sampling, SpeechParams(voice=voice))
        stages = PIPELINE.stages if speaks else PIPELINE.stages[:1]
        names = [stage.name for stage in stages]
        self.heard[name] = Heard()
        self._binding[name] = len(self._binding)
        producer = CLIENT
        for stage in names:
            consumers = frozenset(edge.consumer for edge in PIPELINE.out_edges(stage) if edge.consumer in names)
            inputs = {producer: EdgeInput()}
            self._requests[name, stage] = StageRequest(name, 0, "chat", params, inputs, consumers, stage != "talker")
            producer = stage
        for edge in PIPELINE.edges:
            if edge.consumer in names:
                self._cursors[name, edge.name] = self._cursor(name, edge)
        if isinstance(prompt, dict):
            tensors = {key: prompts.Tensor.of(array) for key, array in prompt.items()}
            prompt = prompts.TokenizedPrompt(tensors)
        target = EdgeTarget(name, 0, edge_name(CLIENT, "thinker"), CLIENT, "thinker", WHOLE)
        cursor = EdgeCursor(target, MAX_CHUNK_BYTES)
        cursor.append({prompts.KEY: prompts.encode(prompt)}, {})
        cursor.finish()
        cursor.flush(self)  # type: ignore[arg-type]

    def run(self) -> dict[str, Heard]:
        """Step every engine in turn until every request has ended."""
        for _ in range(MAX_STEPS):
            if all(heard.error or heard.ended >= self._finals(name) for name, heard in self.heard.items()):
                return self.heard
            self.step()
        raise AssertionError("requests hang: " + ", ".join(n for n, h in self.heard.items() if not h.ended))

    def step(self) -> None:
        """One step of every engine that has work."""
        for stage, engines in self._engines.items():
            for engine in engines:
                for result in engine.step() if engine.has_work() else ():
                    self._take(stage, result.request.request_id, result.output)

    def put(self, peer: str, header: ChunkHeader, rows: Collection[Arrays], whole: Arrays) -> bool:
        """As a connector: the chunk is there at once."""
        layout = layout_of(header.form.encoded)
        places = layout.check_size(header, MAX_CHUNK_BYTES)
        self.num_bytes[header.form.edge] += places.payload_bytes
        memory = bytearray(places.size_bytes)
        layout.write(header, rows, whole, memory, 0)
        arrays = layout.read(header, bytes(memory), 0)
        request = self._requests[header.form.request_id, peer]
        edge = request.input
        edge.add(Chunk(header, arrays))
        edge.ended = header.is_terminal
        key = (header.form.request_id, peer)
        if key not in self._started and (header.is_terminal or (self._is_streamed and peer != "thinker")):
            self._started.add(key)
            self._start(peer, request)
        return True

    def _start(self, stage: str, request: StageRequest) -> None:
        engines = self._engines[stage]
        try:
            engines[self._binding[request.request_id] % len(engines)].add(request)
        except AntiphonError as error:
            self.heard[request.request_id].error = error

    def _cursor(self, name: str, edge: EdgeSpec) -> EdgeCursor:
        plan: ChunkPlan = edge.chunk_plan if self._is_streamed else WHOLE
        return EdgeCursor(EdgeTarget(name, 0, edge.name, edge.producer, edge.consumer, plan), MAX_CHUNK_BYTES)

    def _take(self, stage: str, name: str, output: StageOutput | AntiphonError) -> None:
        heard = self.heard[name]
        if isinstance(output, AntiphonError):
            heard.error = output
            return
        for data in output.client:
            match data:
                case TokenDelta(token_ids):
                    heard.token_ids += token_ids
                case TextDelta(text):
                    heard.text += text
                case AudioChunk(pcm):
                    heard.pcm += pcm
        for consumer, arrays in output.handoff.items():
            self._hand_off(name, stage, consumer, arrays)
        for edge in PIPELINE.out_edges(stage):
            if output.finished and (cursor := self._cursors.get((name, edge.name))) is not None:
                cursor.finish()
        if output.finished:
            heard.ended.add(stage)
        for edge in PIPELINE.out_edges(stage):
            if (cursor := self._cursors.get((name, edge.name))) is not None:
                cursor.flush(self)  # type: ignore[arg-type]

    def _hand_off(self, name: str, stage: str, consumer: str, arrays: dict[str, np.ndarray]) -> None:
        edge = next(edge for edge in PIPELINE.out_edges(stage) if edge.consumer == consumer)
        specs = {key: PIPELINE.stage(stage).output(key) for key in arrays}
        for key, spec in specs.items():
            assert spec is not None and key in edge.keys, f"{stage} handed off {key!r}"
            DeclaredOutput(spec).check(name, stage, arrays[key])
        whole = {key for key, spec in specs.items() if spec is not None and spec.layout is Layout.WHOLE}
        rows = {key: array for key, array in arrays.items() if key not in whole}
        if "codes" in rows:
            self.heard[name].frames.append(rows["codes"])
        self._cursors[name, edge.name].append(rows, {key: arrays[key] for key in whole})

    def _finals(self, name: str) -> set[str]:
        return {"thinker", "code2wav"} if (name, "code2wav") in self._requests else {"thinker"}
