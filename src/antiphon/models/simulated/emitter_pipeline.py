"""The `sim-emitter` pipelines: stages without weights that emit as fast as the runtime lets them, to measure the lanes.

In: nothing. Out: ONE (a stage) and THREE (a -> b -> c, each also heard by the client). Importing this imports no model.
What a request emits is the text of its last chat message, see EmitterPlan.parse.
"""

from dataclasses import dataclass

from antiphon.config.pipeline import (
    ChunkPlan,
    ClientKind,
    EdgeSpec,
    EngineKind,
    Lane,
    Modality,
    OutputSpec,
    PipelineSpec,
    StageSpec,
    TaskSpec,
)
from antiphon.errors import InvalidRequestError


@dataclass(frozen=True)
class EmitterPlan:
    """num_outputs: per stage and request. row_bytes: the inter-stage payload that goes with each. is_text: as text,
    detokenized token by token, or as bare token ids."""

    num_outputs: int
    row_bytes: int
    is_text: bool

    def __str__(self) -> str:
        return f"{self.num_outputs} {self.row_bytes} {int(self.is_text)}"

    @staticmethod
    def parse(text: str) -> "EmitterPlan":
        """What `str` gave; InvalidRequestError otherwise."""
        numbers = text.split()
        if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
            raise InvalidRequestError('sim-emitter takes "NUM_OUTPUTS ROW_BYTES IS_TEXT"', param="messages")
        num_outputs, row_bytes, is_text = map(int, numbers)
        return EmitterPlan(num_outputs, row_bytes, bool(is_text))


def _stage(name: str) -> StageSpec:
    return StageSpec(
        name=name,
        engine=EngineKind.GENERATION,
        model="antiphon.models.simulated.emitter:Emitter",
        outputs=(
            OutputSpec("tokens", Lane.CLIENT, "int64", client=ClientKind.TOKENS),
            OutputSpec("text", Lane.CLIENT, "uint8", client=ClientKind.TEXT),
            OutputSpec("sound", Lane.CLIENT, "uint8", client=ClientKind.AUDIO),
            OutputSpec("picture", Lane.CLIENT, "uint8", client=ClientKind.IMAGE),
            OutputSpec("payload", Lane.HANDOFF, "uint8", (None,)),
        ),
        max_num_seqs=64,
        max_batch_size=16,
    )


_A, _B, _C = _stage("a"), _stage("b"), _stage("c")
_FRONTEND = "antiphon.models.simulated.emitter_frontend:EmitterFrontend"
_TEXT = {Modality.TEXT: "a"}

ONE = PipelineSpec(
    name="sim-emitter-one",
    stages=(_A,),
    edges=(),
    tasks=(TaskSpec("chat", entries=_TEXT, finals=_TEXT),),
    frontend=_FRONTEND,
)

THREE = PipelineSpec(
    name="sim-emitter-three",
    stages=(_A, _B, _C),
    edges=(
        EdgeSpec("a", "b", ("payload",), ChunkPlan(first_rows=1, rows=1)),
        EdgeSpec("b", "c", ("payload",), ChunkPlan(first_rows=1, rows=1)),
    ),
    tasks=(
        TaskSpec(
            "chat", entries=_TEXT, finals={Modality.TEXT: "a", Modality.AUDIO: "b", Modality.IMAGE: "c"}
        ),
    ),
    frontend=_FRONTEND,
)
