"""The `sim-qwen3-tts` pipeline: talker -> code2wav, simulated.

In: qwen3_tts.yaml, which has all numbers. Out: PIPELINE. Importing this module imports no model.
"""

from pathlib import Path

from antiphon.models.simulated.profile_pipeline import build

PIPELINE = build(Path(__file__).with_suffix(".yaml"))
