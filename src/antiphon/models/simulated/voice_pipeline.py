"""The `sim-voice` pipeline: three stages without weights, shaped as the voice pipeline is: text and audio stream out.

In: nothing. Out: PIPELINE. Importing this module imports no model. A text may begin with one of COMMANDS and a colon.

    thinker   text bytes -> the same text, and a code for every byte
    talker    codes (or a text to be spoken) -> frames, 2 KiB each: chunks of them lie in the arena
    code2wav  frames -> samples
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

CODE_WIDTH = 8
FRAME_WIDTH = 512
COMMANDS = (
    "raise-in-thinker",
    "raise-in-talker",
    "raise-in-code2wav",
    "exit-in-thinker",
    "exit-in-talker",
    "exit-in-code2wav",
)
"""Fail the request in that stage at its row 5; or end the stage's process at the request's first row."""

THINKER = StageSpec(
    name="thinker",
    engine=EngineKind.GENERATION,
    model="antiphon.models.simulated.voice_stages:Thinker",
    outputs=(
        OutputSpec("text", Lane.CLIENT, "uint8", client=ClientKind.TEXT),
        OutputSpec("codes", Lane.HANDOFF, "int32", (CODE_WIDTH,)),
    ),
    entry_start_when=StartWhen.ALL_CHUNKS,
)

TALKER = StageSpec(
    name="talker",
    engine=EngineKind.GENERATION,
    model="antiphon.models.simulated.voice_stages:Talker",
    outputs=(OutputSpec("frames", Lane.HANDOFF, "float32", (FRAME_WIDTH,)),),
)

CODE2WAV = StageSpec(
    name="code2wav",
    engine=EngineKind.GENERATION,
    model="antiphon.models.simulated.voice_stages:Code2Wav",
    outputs=(OutputSpec("pcm", Lane.CLIENT, "int16", client=ClientKind.AUDIO),),
)

PIPELINE = PipelineSpec(
    name="sim-voice",
    stages=(THINKER, TALKER, CODE2WAV),
    edges=(
        EdgeSpec("thinker", "talker", ("codes",), ChunkPlan(first_rows=1, rows=8)),
        EdgeSpec("talker", "code2wav", ("frames",), ChunkPlan(first_rows=2, rows=16)),
    ),
    tasks=(
        TaskSpec(
            "chat",
            entries={Modality.TEXT: "thinker"},
            finals={Modality.TEXT: "thinker", Modality.AUDIO: "code2wav"},
        ),
        TaskSpec("speech", entries={Modality.TEXT: "talker"}, finals={Modality.AUDIO: "code2wav"}),
    ),
    frontend="antiphon.models.simulated.voice_frontend:SimVoiceFrontend",
)
