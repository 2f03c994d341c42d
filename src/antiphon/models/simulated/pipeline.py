"""The `sim-relay` pipeline: two stages without weights that pass a text on, for tests of everything around models.

In: nothing. Out: PIPELINE. A text may begin with one of COMMANDS and a colon, which makes a stage misbehave.

    encoder   text bytes -> rows, 4 a step         decoder   rows -> the same text
"""

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
    StartWhen,
    TaskSpec,
)

ROW_WIDTH = 8
COMMANDS = ("raise-in-first", "raise-in-second", "undeclared", "empty", "slow", "exit-in-second")

ENCODER = StageSpec(
    name="encoder",
    engine=EngineKind.GENERATION,
    model="antiphon.models.simulated.relay:Encoder",
    outputs=(OutputSpec("rows", Lane.HANDOFF, "float32", (ROW_WIDTH,)),),
    entry_start_when=StartWhen.ALL_CHUNKS,
)

DECODER = StageSpec(
    name="decoder",
    engine=EngineKind.GENERATION,
    model="antiphon.models.simulated.relay:Decoder",
    outputs=(OutputSpec("text", Lane.CLIENT, "uint8", client=ClientKind.TEXT),),
)

PIPELINE = PipelineSpec(
    name="sim-relay",
    stages=(ENCODER, DECODER),
    edges=(EdgeSpec("encoder", "decoder", ("rows",), ChunkPlan(first_rows=1, rows=4)),),
    tasks=(TaskSpec("chat", entries={Modality.TEXT: "encoder"}, finals={Modality.TEXT: "decoder"}),),
    frontend="antiphon.models.simulated.frontend:RelayFrontend",
)
