"""`antiphon bench hf-text`: SmolLM2 on the autoregressive engine against transformers, on the same weights.

In: how often to measure. Out: a Report. The engine and `generate` take turns (A B A B ...) in this process, so that a
busy machine is busy for both; figures are medians. `generate` has a network of its own, as transformers loads it.
Does not know: how the report is shown.
"""

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from antiphon import env
from antiphon.bench.measures import Bound, Goal, Row, median_of
from antiphon.bench.report import Report, fingerprint
from antiphon.bench.workloads import Prompts
from antiphon.connector.base import Chunk
from antiphon.errors import AntiphonError
from antiphon.messages.conversation import Conversation, Turn
from antiphon.messages.interstage import ChunkForm, ChunkHeader, TensorSpec
from antiphon.messages.params import RequestParams, SamplingParams
from antiphon.models.hf_text.pipeline import THINKER
from antiphon.models.hf_text.thinker import Thinker
from antiphon.models.voice.weights import smollm2_gguf
from antiphon.stage.engine.autoregressive import AutoregressiveEngine
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.request import EdgeInput, StageRequest

_NUM_PARALLEL = 8
_MEAN_GAP_S = 0.1
_EDGE = "client->thinker"

_STATIC_GOAL = Goal(Bound.AT_LEAST, 1.0)
_BATCHING_GOAL = Goal(Bound.AT_LEAST, 4.0)
_OVERHEAD_GOAL = Goal(Bound.AT_MOST, 0.05)
_ARRIVALS_GOAL = Goal(Bound.AT_LEAST, 1.0)


@dataclass(frozen=True)
class Effort:
    """How often each thing is measured, and how long the answers are."""

    num_rounds: int = 5
    num_tokens: int = 48
    num_arrivals: int = 24


QUICK = Effort(num_rounds=2, num_tokens=24, num_arrivals=12)


@dataclass(frozen=True)
class Rivals:
    """The engine with its thinker, and the same weights as a network of transformers."""

    engine: AutoregressiveEngine
    thinker: Thinker
    network: Any


@dataclass
class HfTextBench:
    """Owns what has been measured so far."""

    effort: Effort
    say: Callable[[str], None]
    values: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    prompts: Prompts = field(default_factory=Prompts)

    def run(self) -> Report:
        """Load the model for both, and let engine and transformers take turns."""
        machine = fingerprint()
        self.say("loading SmolLM2")
        rivals = _load()
        self._engine_batch(rivals.engine, self.prompts.take(1))  # warms up
        self._generate(rivals, self.prompts.take(1))
        self.values.clear()
        for number in range(1, self.effort.num_rounds + 1):
            self.say(f"round {number} of {self.effort.num_rounds}")
            self._batches(rivals)
            self._arrivals(rivals)
        return Report(self._rows(), dict(self.values), machine)

    def _batches(self, rivals: Rivals) -> None:
        prompts, engine = self.prompts.take(_NUM_PARALLEL), rivals.engine
        before, model_s = engine.statistics(), engine.model_s
        self.values["8 requests, tok/s"].append(self._engine_batch(engine, prompts))
        after = engine.statistics()
        num_steps, busy_s = after.num_steps - before.num_steps, after.busy_s - before.busy_s
        self.values["8 requests, ms per step"].append(1000 * busy_s / num_steps)
        outside_s = busy_s - (engine.model_s - model_s)
        self.values["8 requests, ms per step outside the model"].append(1000 * outside_s / num_steps)
        self.values["generate of 8, tok/s"].append(self._generate(rivals, prompts))
        self.values["1 request, tok/s"].append(self._engine_batch(engine, prompts[:1]))

    def _arrivals(self, rivals: Rivals) -> None:
        prompts = self.prompts.take(self.effort.num_arrivals)
        gaps = random.Random(len(self.values["arrivals, tok/s"]))
        times_s = np.cumsum([0.0, *(gaps.expovariate(1 / _MEAN_GAP_S) for _ in prompts[1:])]).tolist()
        self.values["arrivals, tok/s"].append(self._engine_batch(rivals.engine, prompts, times_s))
        self.values["arrivals generate_batch, tok/s"].append(self._generate_batch(rivals, prompts, times_s))

    def _engine_batch(
        self, engine: AutoregressiveEngine, prompts: Sequence[str], times_s: Sequence[float] | None = None
    ) -> float:
        """Tokens per second of prompts that arrive at `times_s` (all at once if None)."""
        waiting = [
            (at_s, self._request(prompt)) for at_s, prompt in zip(times_s or [0.0] * len(prompts), prompts, strict=True)
        ]
        began_s = time.perf_counter()
        while waiting or engine.has_work():
            while waiting and waiting[0][0] <= time.perf_counter() - began_s:
                engine.add(waiting.pop(0)[1])
            if not engine.has_work():
                time.sleep(max(0.0, waiting[0][0] - (time.perf_counter() - began_s)))
            for result in engine.step():
                if isinstance(result.output, AntiphonError):
                    raise result.output
        return len(prompts) * self.effort.num_tokens / (time.perf_counter() - began_s)

    def _generate(self, rivals: Rivals, prompts: Sequence[str]) -> float:
        """Tokens per second of one static batch, padded on the left."""
        thinker = rivals.thinker
        began_s = time.perf_counter()
        ids = [thinker.tokenize(_conversation(prompt)) for prompt in prompts]
        inputs = thinker.tokenizer.pad({"input_ids": ids}, padding_side="left", return_tensors="pt")
        with torch.inference_mode():
            rivals.network.generate(**inputs, generation_config=self._greedy())
        return len(prompts) * self.effort.num_tokens / (time.perf_counter() - began_s)

    def _generate_batch(self, rivals: Rivals, prompts: Sequence[str], times_s: Sequence[float]) -> float:
        """Tokens per second of transformers' continuous batching; its start is not counted."""
        cache = ContinuousBatchingConfig(page_size=32, num_blocks=256, max_batch_tokens=256, use_async_batching=False)
        manager = rivals.network.init_continuous_batching(self._greedy(), cache)
        manager.start()
        manager.add_request([1, 2, 3], max_new_tokens=2)
        manager.get_result(timeout=60)
        began_s = time.perf_counter()
        for at_s, prompt in zip(times_s, prompts, strict=True):
            time.sleep(max(0.0, at_s - (time.perf_counter() - began_s)))
            ids = rivals.thinker.tokenize(_conversation(prompt))
            manager.add_request(ids, max_new_tokens=self.effort.num_tokens)
        answers = [manager.get_result(timeout=600) for _ in prompts]
        elapsed_s = time.perf_counter() - began_s
        manager.stop(block=True)
        return sum(len(answer.generated_tokens) for answer in answers) / elapsed_s

    def _greedy(self) -> GenerationConfig:
        """As long as the engine's answers: no end token counts."""
        num_tokens = self.effort.num_tokens
        config: GenerationConfig = GenerationConfig.from_dict(
            {"do_sample": False, "max_new_tokens": num_tokens, "eos_token_id": None, "pad_token_id": 0}
        )
        return config

    def _request(self, prompt: str) -> StageRequest:
        document = _conversation(prompt).encode()
        edge = EdgeInput()
        form = ChunkForm(prompt, 0, _EDGE, "api-server/0", (TensorSpec("messages", "uint8", (), True),))
        edge.add(Chunk(ChunkHeader(form, 0, 0, len(document), 1), {"messages": document}))
        edge.ended = True
        sampling = SamplingParams(max_tokens=self.effort.num_tokens, temperature=0.0, ignore_eos=True)
        return StageRequest(prompt, 0, "chat", RequestParams(sampling), {"client": edge}, frozenset(), True)

    def _rows(self) -> tuple[Row, ...]:
        ours = self._median("8 requests, tok/s")
        return (
            Row("8 requests against generate on 8", "tok/s", ours, self._median("generate of 8, tok/s"), _STATIC_GOAL),
            Row("8 requests against 1", "tok/s", ours, self._median("1 request, tok/s"), _BATCHING_GOAL),
            Row(
                "8 requests: outside the model, of a step",
                "ms",
                self._median("8 requests, ms per step outside the model"),
                self._median("8 requests, ms per step"),
                _OVERHEAD_GOAL,
            ),
            Row(
                f"{self.effort.num_arrivals} arrivals against generate_batch",
                "tok/s",
                self._median("arrivals, tok/s"),
                self._median("arrivals generate_batch, tok/s"),
                _ARRIVALS_GOAL,
            ),
        )

    def _median(self, name: str) -> float:
        return median_of(self.values[name])


def _conversation(prompt: str) -> Conversation:
    return Conversation((Turn("user", prompt),))


def _load() -> Rivals:
    thinker = Thinker()
    engine = AutoregressiveEngine(thinker, ModelContext("cpu", min(2, env.cpu_count()), "", ""), THINKER)
    engine.startup()
    path = smollm2_gguf()
    network = AutoModelForCausalLM.from_pretrained(
        os.path.dirname(path), gguf_file=os.path.basename(path), dtype=torch.float32, local_files_only=True
    )
    return Rivals(engine, thinker, network)
