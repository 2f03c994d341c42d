"""The `sim-mammoth` pipeline: autoregressive -> diffusion, one picture, simulated.

In: mammoth.yaml, which has all numbers. Out: PIPELINE. Importing this module imports no model.
"""

from pathlib import Path

from antiphon.models.simulated.profile_pipeline import build

PIPELINE = build(Path(__file__).with_suffix(".yaml"))
