"""The `sim-qwen3-omni` pipeline: thinker -> talker -> code2wav, simulated.

In: qwen3_omni.yaml, which has all numbers. Out: PIPELINE. Importing this module imports no model.
"""

from pathlib import Path

from antiphon.models.simulated.profile_pipeline import build

PIPELINE = build(Path(__file__).with_suffix(".yaml"))
