"""The voice pipeline as declared: what the networks behind it make, and that importing it loads none of them."""

import subprocess
import sys

from antiphon.config.pipeline import ChunkPlan, ClientKind, Lane, StartWhen
from antiphon.config.pipeline_check import check_pipeline
from antiphon.models.registry import load_attribute
from antiphon.models.voice.frontend import VoiceFrontend
from antiphon.models.voice.pipeline import PARAMS_WIDTH, PIPELINE
from antiphon.models.voice.weights import whisper_tiny

HEAVY = ("torch", "onnxruntime", "faster_whisper", "xllamacpp", "hibari", "av")


def test_importing_the_pipeline_and_its_frontend_imports_no_model() -> None:
    code = (
        "import sys, antiphon.models.voice.pipeline, antiphon.models.voice.frontend\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_the_frontend_it_names_is_the_voice_frontend() -> None:
    assert load_attribute(PIPELINE.frontend) is VoiceFrontend


def test_every_handed_off_key_is_declared_by_its_producer_and_every_client_key_by_its_kind() -> None:
    check_pipeline(PIPELINE)
    talker = PIPELINE.stage("talker")
    params = talker.output("params")
    assert params is not None and (params.dtype, params.row_shape) == ("float32", (PARAMS_WIDTH,))
    assert PARAMS_WIDTH == 3006
    text = PIPELINE.stage("thinker").output("text")
    assert text is not None and (text.lane, text.client) == (Lane.BOTH, ClientKind.TEXT)
    assert {name: set(PIPELINE.stage(name).client_kinds) for name in ("listener", "talker", "code2wav")} == {
        "listener": {ClientKind.TEXT},
        "talker": set(),
        "code2wav": {ClientKind.AUDIO},
    }


def test_speech_streams_and_a_conversation_waits_for_all_that_was_said() -> None:
    to_thinker, to_talker, to_code2wav = PIPELINE.edges
    assert to_thinker.start_when is StartWhen.ALL_CHUNKS
    assert to_talker.start_when is to_code2wav.start_when is StartWhen.FIRST_CHUNK
    assert to_code2wav.chunk_plan == ChunkPlan(16, 64)
    starts = {stage.name: stage.entry_start_when for stage in PIPELINE.stages}
    assert starts["listener"] is starts["thinker"] is StartWhen.ALL_CHUNKS
    assert starts["talker"] is StartWhen.FIRST_CHUNK


def test_openai_voice_names_are_aliases_of_a_voice() -> None:
    (heart,) = PIPELINE.voices
    assert heart.name == "heart"
    assert {"alloy", "nova", "shimmer"} <= set(heart.aliases)


def test_the_languages_that_are_taken_are_those_of_the_packaged_whisper() -> None:
    from faster_whisper import WhisperModel

    known = WhisperModel(whisper_tiny(), compute_type="int8").supported_languages
    assert tuple(known) == PIPELINE.task("transcription").languages
