"""A checkpoint directory: each stage reads its own weights, and says which are wrong."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3OmniMoeCode2Wav, Qwen3OmniMoeForConditionalGeneration

from antiphon.errors import ConfigError
from antiphon.models.qwen3_omni.checkpoint import Checkpoint, SpeechDefaults, TalkerNetwork

CPU = torch.device("cpu")


@pytest.fixture
def copied(checkpoint_path: Path, tmp_path: Path) -> Path:
    shutil.copytree(checkpoint_path, tmp_path / "copy")
    return tmp_path / "copy"


def load_talker(path: Path) -> TalkerNetwork:
    checkpoint = Checkpoint(str(path))
    return checkpoint.load(TalkerNetwork, checkpoint.config.talker_config, "talker.", CPU, torch.float32)


def rewrite(path: Path, name: str, tensor: torch.Tensor | None, new_name: str = "") -> None:
    """Drop, replace or rename one weight."""
    index = json.loads((path / "model.safetensors.index.json").read_text())
    file = path / index["weight_map"].pop(name)
    tensors = load_file(file)
    old = tensors.pop(name)
    if tensor is not None or new_name:
        tensors[new_name or name] = old if tensor is None else tensor
        index["weight_map"][new_name or name] = file.name
    save_file(tensors, file, metadata={"format": "pt"})
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def test_the_talker_has_every_weight_of_the_checkpoint_with_its_experts_joined(checkpoint_path: Path) -> None:
    whole = Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint_path, dtype=torch.float32)
    got, want = load_talker(checkpoint_path).state_dict(), whole.talker.state_dict()
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert got["model.layers.0.mlp.experts.gate_up_proj"].shape == (4, 32, 24)


def test_a_missing_weight_is_named(copied: Path) -> None:
    rewrite(copied, "talker.codec_head.weight", None)
    with pytest.raises(ConfigError, match=r"talker\.codec_head\.weight is missing"):
        load_talker(copied)


def test_a_weight_without_a_place_is_named(copied: Path) -> None:
    rewrite(copied, "talker.codec_head.weight", None, "talker.other_head.weight")
    with pytest.raises(ConfigError, match=r"talker\.other_head\.weight is unexpected") as caught:
        load_talker(copied)
    assert len(caught.value.problems) == 2  # it is missing under its own name


def test_a_weight_of_another_shape_is_named_with_both_shapes(copied: Path) -> None:
    rewrite(copied, "talker.codec_head.weight", torch.zeros(5, 24))
    with pytest.raises(ConfigError, match=r"talker\.codec_head\.weight has shape \[5, 24\].*\[1088, 24\]"):
        load_talker(copied)


def test_one_stage_does_not_mind_what_is_wrong_with_another(copied: Path) -> None:
    rewrite(copied, "talker.codec_head.weight", None)
    checkpoint = Checkpoint(str(copied))
    checkpoint.load(Qwen3OmniMoeCode2Wav, checkpoint.config.code2wav_config, "code2wav.", CPU, torch.float32)


def test_weights_are_loaded_in_the_asked_dtype(checkpoint_path: Path) -> None:
    checkpoint = Checkpoint(str(checkpoint_path))
    talker = checkpoint.load(TalkerNetwork, checkpoint.config.talker_config, "talker.", CPU, torch.bfloat16)
    assert {weight.dtype for weight in talker.parameters()} == {torch.bfloat16}


def test_embedding_rows_are_those_of_the_thinkers_table(checkpoint_path: Path) -> None:
    whole = Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint_path, dtype=torch.float32)
    rows = Checkpoint(str(checkpoint_path)).thinker_embeddings([7, 159, 7])
    assert torch.equal(rows, whole.thinker.get_input_embeddings().weight[[7, 159, 7]])


@pytest.mark.parametrize("path", ["", "/nowhere"])
def test_a_path_that_is_no_checkpoint_says_what_to_set(path: str) -> None:
    with pytest.raises(ConfigError, match=r"stages\.<name>\.model"):
        Checkpoint(path)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="llama"):
        Checkpoint(str(tmp_path))


def test_speech_defaults_are_the_references_unless_the_checkpoint_says_otherwise(copied: Path) -> None:
    checkpoint = Checkpoint(str(copied))
    (copied / "generation_config.json").write_text('{"talker_top_k": 7, "transformers_version": "5"}')
    assert checkpoint.speech_defaults() == SpeechDefaults(talker_top_k=7)
    (copied / "generation_config.json").unlink()
    assert checkpoint.speech_defaults() == SpeechDefaults(4096, 0, 0.9, 50, 1.0, 1.05)
