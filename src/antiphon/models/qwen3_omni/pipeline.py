"""The `qwen3-omni` pipeline: thinker -> talker -> code2wav, on a Qwen3-Omni checkpoint directory.

In: nothing. Out: PIPELINE. Importing this module imports no model.
Set stages.thinker.model, stages.talker.model and stages.code2wav.model to the checkpoint; each reads only its part.

    thinker    text, sound, pictures -> text        per position: its embedding and one hidden layer, to the talker
    talker     those two rows -> codec frames       per frame: 16 codes, to code2wav
    code2wav   codes -> 24 kHz audio
"""

from antiphon.config.pipeline import (
    FLOATING,
    ChunkPlan,
    ClientKind,
    EdgeSpec,
    EngineKind,
    Lane,
    Layout,
    Modality,
    OutputSpec,
    PipelineSpec,
    Policy,
    StageSpec,
    StartWhen,
    TaskSpec,
    TextOption,
)

SAMPLE_RATE = 24_000

THINKER = StageSpec(
    name="thinker",
    engine=EngineKind.AUTOREGRESSIVE,
    model="antiphon.models.qwen3_omni.thinker:Thinker",
    outputs=(
        OutputSpec("embed", Lane.HANDOFF, FLOATING, (None,)),
        OutputSpec("hidden", Lane.HANDOFF, FLOATING, (None,)),
        OutputSpec("layout", Lane.HANDOFF, "float32", (5,), layout=Layout.WHOLE, policy=Policy.REPLACE),
        OutputSpec("text", Lane.CLIENT, "uint8", client=ClientKind.TEXT),
        OutputSpec("token_ids", Lane.CLIENT, "int64", client=ClientKind.TOKENS),
    ),
    max_num_seqs=32,
    threads=2,
    entry_start_when=StartWhen.ALL_CHUNKS,
    text_options={
        EngineKind.AUTOREGRESSIVE: frozenset({TextOption.LOGPROBS, TextOption.PENALTIES, TextOption.LOGIT_BIAS})
    },
)

TALKER = StageSpec(
    name="talker",
    engine=EngineKind.AUTOREGRESSIVE,
    model="antiphon.models.qwen3_omni.talker:Talker",
    outputs=(OutputSpec("codes", Lane.HANDOFF, "int16", (None,)),),
    max_num_seqs=32,
    threads=2,
)

CODE2WAV = StageSpec(
    name="code2wav",
    engine=EngineKind.GENERATION,
    model="antiphon.models.qwen3_omni.code2wav:Code2Wav",
    outputs=(OutputSpec("pcm", Lane.CLIENT, "int16", client=ClientKind.AUDIO),),
    max_num_seqs=64,
    max_batch_size=8,
    threads=2,
    takes_device=True,
)

PIPELINE = PipelineSpec(
    name="qwen3-omni",
    stages=(THINKER, TALKER, CODE2WAV),
    edges=(
        EdgeSpec("thinker", "talker", ("embed", "hidden", "layout")),
        EdgeSpec("talker", "code2wav", ("codes",), ChunkPlan(first_rows=4, rows=25)),
    ),
    tasks=(
        TaskSpec(
            "chat",
            entries=dict.fromkeys((Modality.TEXT, Modality.AUDIO, Modality.IMAGE, Modality.VIDEO), "thinker"),
            finals={Modality.TEXT: "thinker", Modality.AUDIO: "code2wav"},
        ),
    ),
    frontend="antiphon.models.qwen3_omni.frontend:OmniFrontend",
    sample_rate=SAMPLE_RATE,
)
