"""What the autoregressive engine's tests share: tiny random networks as a model of the engine, and the reference.

A test module imports this only behind `pytest.importorskip("transformers")`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
import transformers

from antiphon.config.pipeline import EngineKind, StageSpec
from antiphon.connector.base import Chunk
from antiphon.errors import AntiphonError
from antiphon.messages.client import TokenDelta, Usage
from antiphon.messages.interstage import ChunkForm, ChunkHeader, TensorSpec
from antiphon.messages.params import RequestParams, SamplingParams
from antiphon.stage.engine.autoregressive import AutoregressiveEngine
from antiphon.stage.engine.autoregressive_model import (
    Accepted,
    KVLayout,
    SamplingRules,
    Span,
    StepTensors,
)
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.request import Arrays, EdgeInput, StageOutput, StageRequest
from antiphon.stage.runner.device import Device
from antiphon.stage.runner.paged_attention import NAME, PagedStep

SPEC = StageSpec("toy", EngineKind.AUTOREGRESSIVE, "", max_num_seqs=8, max_num_batched_tokens=64, num_kv_blocks=256)
HIDDEN, VOCABULARY = 32, 97
GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}
CONFIGS: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE),
    "mistral, window 6": lambda: transformers.MistralConfig(**SHAPE, sliding_window=6),
}


def network(name: str, attention: str) -> torch.nn.Module:
    torch.manual_seed(11)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation=attention).eval()


@dataclass
class ToyState:
    """A sequence's tokens, the rows that upstream gave for those behind the prompt, and what has been reported."""

    ids: list[int] = field(default_factory=list)
    num_prompt: int = 0
    upstream: list[np.ndarray] = field(default_factory=list)
    upstream_ended: bool = False
    first_rows: list[tuple[int, int]] = field(default_factory=list)
    hidden: list[np.ndarray] = field(default_factory=list)


class Toy:
    """A network on token ids. A request with an edge `upstream` adds that edge's row k to its k-th new token's input.

    Once the edge has ended, nothing is added. Requests named `*-bad-METHOD` raise in that method.
    """

    captures_decode = True

    def __init__(self, name: str, stop_ids: frozenset[int] = frozenset()) -> None:
        self.network = network(name, NAME)
        self.stop_ids = stop_ids
        self.states: dict[str, ToyState] = {}

    def load(self, context: ModelContext, device: Device) -> None:
        self.kv_layout = KVLayout(2, 2, 8, torch.float32)

    def open(self, request: StageRequest) -> ToyState:
        state = self.states[request.request_id] = ToyState()
        state.upstream_ended = "upstream" not in request.inputs
        return state

    def receive(self, request: StageRequest, state: ToyState, rows: dict[str, Arrays], ended: bool) -> None:
        fail_if_bad(request, "receive", bool(state.ids))
        state.ids += rows["client"].get("ids", np.empty(0, np.int64)).tolist()
        if not state.num_prompt and request.inputs["client"].exhausted:
            state.num_prompt = len(state.ids)
        state.upstream += list(rows.get("upstream", {}).get("embed", np.empty((0, HIDDEN))).copy())
        state.upstream_ended |= ended

    def rules(self, request: StageRequest, state: ToyState) -> SamplingRules:
        fail_if_bad(request, "rules")
        return SamplingRules(stop_ids=self.stop_ids, prompt_ids=tuple(state.ids[: state.num_prompt]))

    def sampling(self, request: StageRequest, state: ToyState) -> SamplingParams:
        return request.params.sampling

    def num_positions(self, state: ToyState) -> int:
        if not state.num_prompt:
            return 0
        return len(state.ids) if state.upstream_ended else min(len(state.ids), state.num_prompt + len(state.upstream))

    def forward(self, spans: list[Span[ToyState]], step: PagedStep) -> StepTensors:
        for span in spans:
            fail_if_bad(span.request, "forward", span.start > 0)
        embeds = torch.cat([self._inputs(span) for span in spans])[None]
        positions = torch.tensor([[p for span in spans for p in range(span.start, span.stop)]])
        hidden = self._hidden(embeds, positions, step)
        lasts = np.cumsum([span.stop - span.start for span in spans]) - 1
        sampling = [int(last) for last, span in zip(lasts, spans, strict=True) if span.samples]
        return StepTensors(self.network.lm_head(hidden[sampling]), {"hidden": hidden})

    def decode_inputs(self, spans: list[Span[ToyState]]) -> dict[str, torch.Tensor]:
        for span in spans:
            fail_if_bad(span.request, "forward", span.start > 0)
        embeds = torch.cat([self._inputs(span) for span in spans])
        return {"embeds": embeds, "positions": torch.tensor([span.start for span in spans])}

    def decode(self, inputs: dict[str, torch.Tensor], step: PagedStep) -> StepTensors:
        hidden = self._hidden(inputs["embeds"][None], inputs["positions"][None], step)
        return StepTensors(self.network.lm_head(hidden), {"hidden": hidden})

    def accept(self, batch: list[Accepted[ToyState]]) -> list[StageOutput]:
        for entry in batch:
            fail_if_bad(entry.request, "accept", entry.first_row > 0)
        return [self._accept(entry) for entry in batch]

    def _accept(self, entry: Accepted[ToyState]) -> StageOutput:
        state, rows = entry.state, entry.rows["hidden"]
        state.first_rows.append((entry.first_row, len(rows)))
        state.hidden.append(rows)
        if entry.token is None:
            return StageOutput()
        state.ids.append(entry.token)
        usage = Usage(state.num_prompt, len(state.ids) - state.num_prompt)
        finished, reason = entry.finish_reason is not None, entry.finish_reason or ""
        return StageOutput(client=(TokenDelta([entry.token]),), finished=finished, finish_reason=reason, usage=usage)

    def _hidden(self, embeds: torch.Tensor, positions: torch.Tensor, step: PagedStep) -> torch.Tensor:
        output = self.network.model(inputs_embeds=embeds, position_ids=positions, use_cache=False, paged_step=step)
        return output.last_hidden_state[0]

    def _inputs(self, span: Span[ToyState]) -> torch.Tensor:
        state = span.state
        return inputs_of(self.network, state.ids, state.num_prompt, state.upstream)[span.start : span.stop]


def fail_if_bad(request: StageRequest, method: str, is_late: bool = True) -> None:
    if request.request_id.endswith(f"-bad-{method}") and is_late:
        raise ValueError("a fault of the model")


def inputs_of(net: torch.nn.Module, ids: list[int], num_prompt: int, upstream: list[np.ndarray]) -> torch.Tensor:
    """Embeddings [len(ids), HIDDEN], with upstream's rows added behind the prompt."""
    embeds = net.model.embed_tokens(torch.tensor(ids)).detach().clone()
    for place, row in enumerate(upstream[: len(ids) - num_prompt], num_prompt):
        embeds[place] += torch.from_numpy(row)
    return embeds


class Served:
    """An engine, and what it has said of each request."""

    def __init__(self, spec: StageSpec = SPEC, name: str = "llama", stop_ids: frozenset[int] = frozenset()) -> None:
        self.model = Toy(name, stop_ids)
        self.engine = AutoregressiveEngine(self.model, ModelContext("cpu", 1, "", ""), spec)
        self.engine.startup()
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, StageOutput | AntiphonError] = {}

    def add(self, name: str, prompt: list[int], sampling: SamplingParams = GREEDY, *, streams: bool = False) -> None:
        self.engine.add(request_of(name, prompt, sampling, streams=streams))

    def step(self) -> None:
        for result in self.engine.step():
            name, output = result.request.request_id, result.output
            assert name not in self.ends, f"a result of {name} after its end"
            if isinstance(output, AntiphonError) or output.finished:
                self.ends[name] = output
            if isinstance(output, StageOutput):
                self.tokens.setdefault(name, []).extend(i for delta in output.client for i in delta.token_ids)

    def run(self, max_steps: int = 20_000) -> dict[str, list[int]]:
        """Until there is nothing to do."""
        for _ in range(max_steps):
            if not self.engine.has_work():
                return self.tokens
            self.step()
        raise AssertionError("the engine does not come to an end")

    @property
    def num_free(self) -> int:
        return self.engine._scheduler._pool.num_free


def edge_of(key: str, array: np.ndarray) -> EdgeInput:
    edge = EdgeInput()
    if len(array):
        push(edge, key, array)
    return edge


def push(edge: EdgeInput, key: str, rows: np.ndarray) -> None:
    spec = TensorSpec(key, rows.dtype.name, rows.shape[1:], True)
    first = edge.num_rows + edge.num_rows_taken
    form = ChunkForm("r", 0, "other->toy", "other/0", (spec,))
    edge.add(Chunk(ChunkHeader(form, 0, first, len(rows)), {key: rows}))


def request_of(name: str, prompt: list[int], sampling: SamplingParams, *, streams: bool = False) -> StageRequest:
    client = edge_of("ids", np.array(prompt, np.int64))
    client.ended = True
    inputs = {"client": client}
    if streams:
        inputs["upstream"] = EdgeInput()
    return StageRequest(name, 0, "toy", RequestParams(sampling=sampling), inputs, frozenset(), True)


def prompts(count: int, longest: int = 40) -> dict[str, list[int]]:
    rng = np.random.default_rng(count)
    return {f"r{i}": rng.integers(0, VOCABULARY, rng.integers(1, longest + 1)).tolist() for i in range(count)}


def generated(name: str, asked: dict[str, list[int]], max_tokens: int = 24) -> dict[str, list[int]]:
    """What transformers' generate makes of each prompt alone."""
    return {key: list(_generated(name, tuple(prompt), max_tokens)) for key, prompt in asked.items()}


@cache
def _generated(name: str, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    wanted = {"attention_mask": torch.ones_like(ids), "max_new_tokens": max_tokens, "do_sample": False}
    with torch.no_grad():
        return tuple(_reference(name).generate(ids, **wanted)[0, len(prompt) :].tolist())


@cache
def _reference(name: str) -> torch.nn.Module:
    return network(name, "sdpa")
