"""The right answers to a benchmark's questions, for pipelines whose answers follow from their questions.

In: a pipeline and a prompt. Out: an Expected. Does not know: how an answer is read.
"""

import zlib

from antiphon.bench.serve.messages import Expected, Task
from antiphon.config.pipeline import PipelineSpec
from antiphon.models.simulated.voice_pipeline import PIPELINE as SIM_VOICE
from antiphon.models.simulated.voice_values import spoken


def expected_answer(pipeline: PipelineSpec | None, task: Task, text: str) -> Expected:
    """sim-voice says the text again and speaks it; of other pipelines and servers nothing is known."""
    if pipeline is not SIM_VOICE:
        return Expected()
    pcm_crc32 = None if task is Task.CHAT else zlib.crc32(spoken(text))
    return Expected(None if task is Task.SPEECH else text, pcm_crc32)
