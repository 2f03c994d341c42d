"""The `sim-voxtral` pipeline: generator -> audio tokenizer, simulated.

In: voxtral.yaml, which has all numbers. Out: PIPELINE. Importing this module imports no model.
"""

from pathlib import Path

from antiphon.models.simulated.profile_pipeline import build

PIPELINE = build(Path(__file__).with_suffix(".yaml"))
