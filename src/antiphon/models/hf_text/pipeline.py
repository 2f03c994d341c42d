"""The `hf-text` pipeline: any decoder-only `transformers` checkpoint as a single stage, text in and text out.

In: nothing. Out: PIPELINE. Importing this module imports no model.
Set stages.thinker.model to a checkpoint folder or a GGUF file; without it SmolLM2-135M is served.
"""

from antiphon.config.pipeline import (
    ClientKind,
    EngineKind,
    Lane,
    Modality,
    OptionSpec,
    OutputSpec,
    PipelineSpec,
    StageSpec,
    StartWhen,
    TaskSpec,
    TextOption,
)

TEXT_OPTIONS = frozenset({TextOption.LOGPROBS, TextOption.PENALTIES, TextOption.LOGIT_BIAS, TextOption.TOOLS})
"""What `Thinker` honours; tools only if the checkpoint's chat template knows them."""
TOOL_CALLS = OptionSpec("tool_calls", "hermes", choices=("hermes", "none"))
"""How the model writes calls of tools, if it is given any; "none" leaves them in the text."""

THINKER = StageSpec(
    name="thinker",
    engine=EngineKind.AUTOREGRESSIVE,
    model="antiphon.models.hf_text.thinker:Thinker",
    outputs=(OutputSpec("text", Lane.CLIENT, "uint8", client=ClientKind.TEXT),),
    threads=2,
    captures_decode=True,
    options=(TOOL_CALLS,),
    text_options={EngineKind.AUTOREGRESSIVE: TEXT_OPTIONS},
    entry_start_when=StartWhen.ALL_CHUNKS,
)

PIPELINE = PipelineSpec(
    name="hf-text",
    stages=(THINKER,),
    edges=(),
    tasks=(TaskSpec("chat", entries={Modality.TEXT: "thinker"}, finals={Modality.TEXT: "thinker"}),),
    frontend="antiphon.models.voice.frontend:VoiceFrontend",
)
