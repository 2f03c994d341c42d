"""The `sim-emitter` pipelines: stages without weights that emit as fast as the runtime lets them, to measure the lanes.

In: nothing. Out: ONE (a stage) and THREE (a -> b -> c, each also heard by the client). Importing this imports no model.
What a request emits is the text of its last chat message, see EmitterPlan.parse.
"""

import re
from enum import IntEnum, StrEnum

import msgspec

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


class Heard(StrEnum):
    """Which stages speak to the client: the first, the last, or all of them."""

    FIRST = "first"
    LAST = "last"
    ALL = "all"


class Form(IntEnum):
    """What an output is: bare token ids; text, detokenized token by token; such text that no stage joins with the next.

    What the client hears of APART are deltas with token ids between them: as many as there are outputs, in any haste.
    """

    TOKENS = 0
    TEXT = 1
    APART = 2


_PLAN = re.compile(r"(\d{1,9}) (\d{1,9}) ([012]) (first|last|all)")


class EmitterPlan(msgspec.Struct, frozen=True):
    """What a request is to emit.

    num_outputs: per stage. row_bytes: the inter-stage payload that goes with each.
    """

    num_outputs: int
    row_bytes: int = 0
    form: Form = Form.TEXT
    heard: Heard = Heard.ALL

    def __str__(self) -> str:
        return f"{self.num_outputs} {self.row_bytes} {int(self.form)} {self.heard}"

    @property
    def is_text(self) -> bool:
        """True if there is any."""
        return self.form is not Form.TOKENS

    @staticmethod
    def parse(text: str) -> "EmitterPlan":
        """What `str` gave; InvalidRequestError otherwise."""
        found = _PLAN.fullmatch(text)
        if not found:
            raise InvalidRequestError(
                'sim-emitter takes "NUM_OUTPUTS ROW_BYTES 0|1|2 first|last|all"', param="messages"
            )
        return EmitterPlan(int(found[1]), int(found[2]), Form(int(found[3])), Heard(found[4]))


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
    tasks=(TaskSpec("chat", entries=_TEXT, finals={Modality.TEXT: "a", Modality.AUDIO: "b", Modality.IMAGE: "c"}),),
    frontend=_FRONTEND,
)
