"""The pipeline as declared."""

import subprocess
import sys

from antiphon.config.pipeline_check import check_pipeline
from antiphon.models.qwen3_omni.pipeline import PIPELINE
from antiphon.models.registry import load_pipeline


def test_the_pipeline_is_built_in_and_valid() -> None:
    assert load_pipeline("qwen3-omni") is PIPELINE
    check_pipeline(PIPELINE)


def test_what_crosses_is_two_rows_one_layout_and_the_codes() -> None:
    assert {edge.name: edge.keys for edge in PIPELINE.edges} == {
        "thinker->talker": ("embed", "hidden", "layout"),
        "talker->code2wav": ("codes",),
    }


def test_neither_the_pipeline_nor_the_frontend_imports_torch() -> None:
    modules = ("antiphon.models.qwen3_omni.frontend", "antiphon.models.qwen3_omni.pipeline")
    code = f"import sys, {', '.join(modules)}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
