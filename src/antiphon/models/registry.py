"""The one way to a pipeline: by its name, or by where a model author keeps it.

In: `voice`, `my_package.pipeline:PIPELINE`, or `path/to/file.py:PIPELINE`. Out: its PipelineSpec or one of its classes.
Does not know: what a pipeline does. Importing a pipeline's module must not import its models.
"""

import difflib
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from antiphon.config.pipeline import PipelineSpec
from antiphon.errors import ConfigError

BUILT_IN = {
    "voice": "antiphon.models.voice.pipeline:PIPELINE",
    "hf-text": "antiphon.models.hf_text.pipeline:PIPELINE",
    "qwen3-omni": "antiphon.models.qwen3_omni.pipeline:PIPELINE",
    "sim-relay": "antiphon.models.simulated.pipeline:PIPELINE",
    "sim-voice": "antiphon.models.simulated.voice_pipeline:PIPELINE",
    "sim-qwen3-omni": "antiphon.models.simulated.profiles.qwen3_omni:PIPELINE",
    "sim-qwen3-tts": "antiphon.models.simulated.profiles.qwen3_tts:PIPELINE",
    "sim-voxtral": "antiphon.models.simulated.profiles.voxtral:PIPELINE",
    "sim-indextts2": "antiphon.models.simulated.profiles.indextts2:PIPELINE",
    "sim-minicpm-o": "antiphon.models.simulated.profiles.minicpm_o:PIPELINE",
    "sim-mammoth": "antiphon.models.simulated.profiles.mammoth:PIPELINE",
}


def load_pipeline(reference: str) -> PipelineSpec:
    """The spec that `reference` names; ConfigError saying what is wrong."""
    spec = load_attribute(_full_reference(reference))
    if not isinstance(spec, PipelineSpec):
        raise ConfigError([f"{reference} is a {type(spec).__name__}, not a PipelineSpec"])
    return spec


def load_attribute(reference: str) -> object:
    """`package.module:NAME` or `file.py:NAME` -> the object; ConfigError if there is none."""
    module_name, _, attribute = reference.rpartition(":")
    is_file = module_name.endswith(".py") and module_name.isprintable()
    if not attribute or not (is_file or all(part.isidentifier() for part in module_name.split("."))):
        raise ConfigError([f"{reference!r} is not a reference; write package.module:NAME or file.py:NAME"])
    module = _load_file(module_name) if is_file else _import(module_name, reference)
    if attribute not in vars(module):
        raise ConfigError([f"{reference}: module {module_name} has no {attribute!r}"])
    return vars(module)[attribute]


def _full_reference(reference: str) -> str:
    if ":" in reference:
        return reference
    if reference not in BUILT_IN:
        close = difflib.get_close_matches(reference, BUILT_IN, n=1)
        hint = (
            f"did you mean {close[0]!r}?"
            if close
            else f"there is {', '.join(BUILT_IN)}, or give module:NAME or FILE.py:NAME"
        )
        raise ConfigError([f"there is no pipeline {reference!r}; {hint}"])
    return BUILT_IN[reference]


def _import(module_name: str, reference: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError([f"{reference}: there is no module {error.name!r}; install it, or mend the name"]) from error


def _load_file(name: str) -> ModuleType:
    """A pipeline in a file of its own; its classes' references are `<file>.py:Class` too."""
    path = Path(name).resolve()
    module_name = f"antiphon_pipeline_{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:16]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError([f"there is no pipeline file {name}"])
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError) as error:
        del sys.modules[module_name]
        raise ConfigError([f"pipeline file {name} cannot be imported: {error}"]) from error
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
