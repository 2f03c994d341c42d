"""One tiny random checkpoint for all tests here."""

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tests.conformance.tiny_qwen3_omni import Reference


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The networks are tiny: more threads only wait for one another."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    Reference(0, path)
    return path
