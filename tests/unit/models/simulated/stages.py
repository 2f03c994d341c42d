"""Simulated stages on their real engines, in this process: what they are given and what they make of it."""

from dataclasses import dataclass, field, replace

import numpy as np

from antiphon.config.pipeline import PipelineSpec, StageSpec
from antiphon.connector.base import Chunk
from antiphon.errors import AntiphonError
from antiphon.messages.client import ClientData
from antiphon.messages.interstage import ChunkForm, ChunkHeader, TensorSpec
from antiphon.messages.params import RequestParams, SamplingParams
from antiphon.models.registry import load_pipeline
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.process import make_engine
from antiphon.stage.request import Arrays, EdgeInput, StageOutput, StageRequest
from antiphon.transport.channel import Poller

AT_ONCE = {"base_ms": 0.0, "per_sequence_ms": 0.0, "per_token_ms": 0.0, "jitter": 0.0, "check": "full"}
MAX_STEPS = 5000


@dataclass
class Made:
    """What one request has got out of a stage. rows: key -> rows in the order in which they were handed off."""

    outputs: list[StageOutput] = field(default_factory=list)
    error: AntiphonError | None = None

    @property
    def end(self) -> StageOutput:
        assert self.error is None, self.error
        assert self.outputs[-1].finished and not any(output.finished for output in self.outputs[:-1])
        return self.outputs[-1]

    @property
    def client(self) -> list[ClientData]:
        return [data for output in self.outputs for data in output.client]

    def rows(self, *keys: str) -> Arrays:
        pieces = [arrays for output in self.outputs for arrays in output.handoff.values()]
        return {key: np.concatenate([piece[key] for piece in pieces]) for key in keys}

    def once(self, key: str) -> np.ndarray:
        (array,) = [a[key] for output in self.outputs for a in output.handoff.values() if key in a]
        return array


class Stage:
    """One stage of a pipeline with its engine."""

    def __init__(self, pipeline: str, name: str, *, limits: dict[str, int] | None = None, **options: object) -> None:
        self.pipeline: PipelineSpec = load_pipeline(pipeline)
        self.spec: StageSpec = replace(self.pipeline.stage(name), **(limits or {}))
        declared = {option.name: option.default for option in self.spec.options}
        chosen = {key: value for key, value in {**AT_ONCE, **options}.items() if key in declared}
        context = ModelContext("cpu", 1, "", f"run/{name}.0", options={**declared, **chosen})
        self.engine = make_engine(self.spec, context)
        self.engine.startup()
        self.made: dict[str, Made] = {}
        self.producer = next((edge.producer for edge in self.pipeline.edges if edge.consumer == name), "client")
        self._consumers = frozenset(edge.consumer for edge in self.pipeline.edges if edge.producer == name)

    def open(
        self, request_id: str, sampling: SamplingParams | None = None, *, is_final: bool = True, hands_off: bool = True
    ) -> EdgeInput:
        """Bind a request; it enters the engine with its first rows, by `give`."""
        edge = EdgeInput()
        params = RequestParams(sampling=sampling or SamplingParams())
        consumers = self._consumers if hands_off else frozenset()
        self.request = StageRequest(request_id, 0, "chat", params, {self.producer: edge}, consumers, is_final)
        self.made[request_id] = Made()
        return edge

    def ask(self, request_id: str, text: str, sampling: SamplingParams | None = None, **bound: bool) -> None:
        """A request of a client, complete."""
        edge = self.open(request_id, sampling, **bound)
        give(edge, {"prompt": np.frombuffer(text.encode(), np.uint8)}, ends=True)
        self.engine.add(self.request)

    def run(self, patience_s: float = 0.0) -> None:
        """Step until nothing can be done, or only after `patience_s`."""
        poller = Poller()
        fd = self.engine.fileno()
        if fd is not None:
            poller.register(fd)
        num_steps = 0
        while self.engine.has_work() or (patience_s and poller.wait(patience_s)):
            num_steps += 1
            assert num_steps < MAX_STEPS, "the engine has work for ever"
            for result in self.engine.step():
                made = self.made[result.request.request_id]
                if isinstance(result.output, AntiphonError):
                    made.error = result.output
                else:
                    made.outputs.append(result.output)


def give(edge: EdgeInput, rows: Arrays, whole: Arrays | None = None, *, ends: bool = False) -> None:
    """Rows have arrived on an edge, as from a connector: read-only."""
    count = len(next(iter(rows.values()))) if rows else 0
    tensors = [TensorSpec(key, array.dtype.name, array.shape[1:], True) for key, array in rows.items()]
    tensors += [TensorSpec(key, array.dtype.name, array.shape, False) for key, array in (whole or {}).items()]
    arrays = {key: array.copy() for key, array in {**rows, **(whole or {})}.items()}
    for array in arrays.values():
        array.flags.writeable = False
    edge.ended = ends
    edge.add(Chunk(ChunkHeader(ChunkForm("", 0, "", "", tuple(tensors)), 0, rows=count), arrays))
