"""A Qwen3-Omni checkpoint directory: its config, and the weights of one stage at a time.

In: a path. Out: the config, a stage's network with its weights, a few rows of the thinker's embeddings.
Does not know: requests, engines. ConfigError names every weight that is missing or unexpected.

`transformers` opens the (sharded) safetensors lazily and reads the tensors it has a place for; a stage's network has
no place for the other stages' tensors. Its conversions (experts are fused at load) are registered for the whole model
and for the thinker, not for a talker alone: TalkerNetwork is the reference's talker with them.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from safetensors import safe_open
from transformers import PreTrainedModel, Qwen3OmniMoeConfig, Qwen3OmniMoeTalkerForConditionalGeneration
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.utils import logging as transformers_logging

from antiphon.errors import ConfigError

Network = TypeVar("Network", bound=PreTrainedModel)

_EMBEDDINGS = ("thinker.model.embed_tokens.weight", "thinker.model.language_model.embed_tokens.weight")
_PARTS = ("thinker.", "talker.", "code2wav.")
_NUM_NAMED = 20  # weights that an error message lists


class TalkerNetwork(Qwen3OmniMoeTalkerForConditionalGeneration):  # type: ignore[no-untyped-call]
    """The reference's talker, under a name that conversions of its own can be registered for."""


register_checkpoint_conversion_mapping(
    TalkerNetwork.__name__,
    get_checkpoint_conversion_mapping("qwen2_moe"),  # type: ignore[no-untyped-call]
    overwrite=True,
)
transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
logging.getLogger("transformers").setLevel(logging.ERROR)  # what its load report warns of is raised here


class SpeechDefaults(msgspec.Struct, frozen=True):
    """The talker's sampling where the request does not say; generation_config.json of the checkpoint may set it.

    The defaults here are those of the reference's `generate`. Frames are 12.5 a second.
    """

    talker_max_new_tokens: int = 4096
    talker_min_new_tokens: int = 0
    talker_temperature: float = 0.9
    talker_top_k: int = 50
    talker_top_p: float = 1.0
    talker_repetition_penalty: float = 1.05


class Checkpoint:
    """Knows where the files are; reads them when asked."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        if not path or not (self.path / "config.json").is_file():
            raise ConfigError([f"{path!r} is not a checkpoint directory; set stages.<name>.model to a Qwen3-Omni one"])
        self.config: Any = Qwen3OmniMoeConfig.from_pretrained(path, local_files_only=True)
        if self.config.model_type != "qwen3_omni_moe":
            raise ConfigError([f"{path}: model_type is {self.config.model_type!r}, not 'qwen3_omni_moe'"])

    def speech_defaults(self) -> SpeechDefaults:
        """From generation_config.json, where it has them."""
        path = self.path / "generation_config.json"
        return msgspec.json.decode(path.read_bytes(), type=SpeechDefaults) if path.is_file() else SpeechDefaults()

    def load(self, network: type[Network], config: Any, part: str, device: torch.device, dtype: torch.dtype) -> Network:
        """The network of `part` ("talker."), in eval mode; ConfigError if a weight is missing or has no place in it."""
        from_pretrained: Any = network.from_pretrained  # its type leaves out output_loading_info
        loaded, report = from_pretrained(
            self.path,
            config=config,
            key_mapping={"^" + part.replace(".", r"\."): ""},
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are listed below, with the rest
            local_files_only=True,
        )
        problems = [f"{part}{key} is missing" for key in sorted(report["missing_keys"])]
        problems += [
            f"{part}{key} is unexpected" for key in sorted(report["unexpected_keys"]) if not key.startswith(_PARTS)
        ]
        problems += [
            f"{part}{key} has shape {list(found)}, and the config says {list(wanted)}"
            for key, found, wanted in sorted(report["mismatched_keys"])
        ]
        if problems:
            more = [f"and {len(problems) - _NUM_NAMED} more"] if len(problems) > _NUM_NAMED else []
            raise ConfigError([f"{self.path}: {problem}" for problem in (*problems[:_NUM_NAMED], *more)])
        placed: Network = loaded.to(device).eval()
        return placed

    def thinker_embeddings(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[len(token_ids), thinker hidden size]: those rows of the thinker's table, and nothing else, are read."""
        files = self._files_by_weight()
        name = next((name for name in _EMBEDDINGS if name in files), None)
        if name is None:
            raise ConfigError([f"{self.path}: {_EMBEDDINGS[0]} is missing"])
        with safe_open(files[name], framework="pt") as file:
            table = file.get_slice(name)
            return torch.cat([table[token : token + 1] for token in token_ids])

    def _files_by_weight(self) -> dict[str, Path]:
        index = self.path / "model.safetensors.index.json"
        if index.is_file():
            weight_map = json.loads(index.read_text())["weight_map"]
            return {name: self.path / file for name, file in weight_map.items()}
        whole = self.path / "model.safetensors"
        if not whole.is_file():
            raise ConfigError([f"{self.path}: there is no model.safetensors and no model.safetensors.index.json"])
        with safe_open(whole, framework="pt") as file:
            return dict.fromkeys(file.keys(), whole)
