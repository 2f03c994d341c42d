"""The `voice` pipeline: listener -> thinker -> talker -> code2wav, on weights that install with pip.

In: nothing. Out: PIPELINE. Importing this module imports no model.

    listener   whisper-tiny (faster-whisper)   speech -> text
    thinker    SmolLM2-135M (llama.cpp)        text -> text
    talker     hibari's acoustic network       text -> spectral frames, 80 a second, 12 kB each
    code2wav   hibari's vocoder                frames -> 24 kHz audio
"""

from antiphon.config.pipeline import (
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
    VoiceSpec,
)
from antiphon.models.hf_text.pipeline import TEXT_OPTIONS, TOOL_CALLS
from antiphon.models.voice.voices import VOICE_ALIASES, VOICES

PARAMS_WIDTH = 5 * 601 + 1  # lh, theta, ln, lr, phi (601 bins each), f0
SAMPLE_RATE = 24_000

LISTENER = StageSpec(
    name="listener",
    engine=EngineKind.GENERATION,
    model="antiphon.models.voice.listener:Listener",
    outputs=(
        OutputSpec("messages", Lane.HANDOFF, "uint8"),
        OutputSpec("transcript", Lane.CLIENT, "uint8", client=ClientKind.TEXT),
    ),
    max_num_seqs=256,
    max_batch_size=1,
    threads=2,
    takes_device=True,
    entry_start_when=StartWhen.ALL_CHUNKS,
)

THINKER = StageSpec(
    name="thinker",
    engine=EngineKind.LLAMA_CPP,
    model="antiphon.models.voice.thinker:Thinker",
    outputs=(OutputSpec("text", Lane.BOTH, "uint8", client=ClientKind.TEXT),),
    max_num_seqs=8,
    threads=2,
    alternatives={EngineKind.AUTOREGRESSIVE: "antiphon.models.hf_text.thinker:Thinker"},
    captures_decode=True,
    options=(TOOL_CALLS,),
    text_options={
        EngineKind.LLAMA_CPP: frozenset(
            {TextOption.LOGPROBS, TextOption.PENALTIES, TextOption.LOGIT_BIAS, TextOption.JSON}
        ),
        EngineKind.AUTOREGRESSIVE: TEXT_OPTIONS,
    },
    entry_start_when=StartWhen.ALL_CHUNKS,
)

TALKER = StageSpec(
    name="talker",
    engine=EngineKind.GENERATION,
    model="antiphon.models.voice.talker:Talker",
    outputs=(
        OutputSpec("params", Lane.HANDOFF, "float32", (PARAMS_WIDTH,)),
        OutputSpec("sentence_end", Lane.HANDOFF, "uint8"),
        OutputSpec("num_tokens", Lane.HANDOFF, "int64", layout=Layout.WHOLE, policy=Policy.REPLACE),
    ),
    max_num_seqs=256,
    max_batch_size=1,
)

CODE2WAV = StageSpec(
    name="code2wav",
    engine=EngineKind.GENERATION,
    model="antiphon.models.voice.code2wav:Code2Wav",
    outputs=(OutputSpec("pcm", Lane.CLIENT, "int16", client=ClientKind.AUDIO),),
    max_num_seqs=256,
    max_batch_size=4,
)

PIPELINE = PipelineSpec(
    name="voice",
    stages=(LISTENER, THINKER, TALKER, CODE2WAV),
    edges=(
        EdgeSpec("listener", "thinker", ("messages",), start_when=StartWhen.ALL_CHUNKS),
        EdgeSpec("thinker", "talker", ("text",)),
        EdgeSpec("talker", "code2wav", ("params", "sentence_end", "num_tokens"), ChunkPlan(first_rows=16, rows=64)),
    ),
    tasks=(
        TaskSpec(
            "chat",
            entries={Modality.TEXT: "thinker", Modality.AUDIO: "listener"},
            finals={Modality.TEXT: "thinker", Modality.AUDIO: "code2wav"},
        ),
        TaskSpec(
            "speech",
            entries={Modality.TEXT: "talker"},
            finals={Modality.AUDIO: "code2wav"},
            chars_per_request=1_000,  # a minute
        ),
        TaskSpec(
            "transcription",
            entries={Modality.AUDIO: "listener"},
            finals={Modality.TEXT: "listener"},
            languages=("en",),
        ),
    ),
    frontend="antiphon.models.voice.frontend:VoiceFrontend",
    voices=tuple(
        VoiceSpec(name, "en-US", tuple(alias for alias, target in VOICE_ALIASES.items() if target == name))
        for name in VOICES
    ),
    sample_rate=SAMPLE_RATE,
)
