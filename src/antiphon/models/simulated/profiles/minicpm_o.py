"""The `sim-minicpm-o` pipeline: thinker -> talker -> token2wav, simulated.

In: minicpm_o.yaml, which has all numbers. Out: PIPELINE. Importing this module imports no model.
"""

from pathlib import Path

from antiphon.models.simulated.profile_pipeline import build

PIPELINE = build(Path(__file__).with_suffix(".yaml"))
