"""Recorded decode, on a cpu: the shapes, the buffers and the results are those that a device would replay.

What is recorded is emulated by `Replayed`: run once to record, and from then on into the memory of that first result.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers  # noqa: E402

from antiphon.config.pipeline import StageSpec  # noqa: E402
from antiphon.models.hf_text.thinker import Thinker, _has_fixed_work  # noqa: E402
from antiphon.stage.engine.autoregressive_model import StepTensors  # noqa: E402
from antiphon.stage.runner.decode_graphs import batch_size_for, width_for  # noqa: E402
from antiphon.stage.runner.device import Device, pack, unpack  # noqa: E402
from antiphon.stage.runner.paged_attention import NAME, PagedKVCache, PagedStep  # noqa: E402
from tests.unit.stage.engine.toy_transformer import SHAPE, SPEC, Served, generated, network, prompts  # noqa: E402

RECORDED = replace(SPEC, captures_decode=True)


class Replayed(Device):
    """A cpu that records."""

    @property
    def has_graphs(self) -> bool:
        return True

    def record(self, run: Callable[[], StepTensors]) -> Callable[[], StepTensors]:
        recorded = run()

        def replay() -> StepTensors:
            now = run()
            recorded.logits.copy_(now.logits)
            for name, rows in now.rows.items():
                recorded.rows[name].copy_(rows)
            return recorded

        return replay


@pytest.fixture
def _records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.stage.engine.autoregressive.Device", Replayed)


def test_few_shapes_serve_every_batch() -> None:
    assert [batch_size_for(n) for n in (1, 2, 3, 5, 8, 9, 16, 17, 30)] == [1, 2, 4, 8, 8, 16, 16, 24, 32]
    assert [width_for(n) for n in (1, 8, 9, 16, 17, 100)] == [8, 8, 16, 16, 32, 128]


@pytest.mark.usefixtures("_records")
@pytest.mark.parametrize("architecture", ["llama", "mistral, window 6"])
@pytest.mark.parametrize("num_kv_blocks", [256, 6])
def test_replayed_tokens_are_those_of_generate(architecture: str, num_kv_blocks: int) -> None:
    asked = prompts(13)
    served = Served(replace(RECORDED, num_kv_blocks=num_kv_blocks), architecture)
    for name, prompt in asked.items():
        served.add(name, prompt)
    assert served.run() == generated(architecture, asked)
    assert (served.engine.num_preemptions > 0) == (num_kv_blocks == 6)
    graphs = served.engine._runner.graphs
    assert graphs is not None and {1, 4} <= {batch_size for batch_size, _ in graphs.shapes}


@pytest.mark.usefixtures("_records")
def test_replayed_rows_are_those_of_their_positions() -> None:
    asked = prompts(5)
    served = Served(RECORDED)
    for name, prompt in asked.items():
        served.add(name, prompt)
    answers, reference = served.run(), network("llama", "sdpa")
    for name, prompt in asked.items():
        ids = [*prompt, *answers[name]][:-1]
        with torch.no_grad():
            expected = reference.model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
        np.testing.assert_allclose(np.concatenate(served.model.states[name].hidden), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.usefixtures("_records")
def test_what_pads_a_batch_is_written_to_the_scrap_block_only() -> None:
    served = Served(RECORDED)
    for name in ("a", "b", "c"):
        served.add(name, [1, 2, 3, 4])
    served.step()  # the prompts
    cache, sequences = served.engine._runner._cache, served.engine._sequences.values()
    scrap = range(cache.scrap_block * cache.block_size, (cache.scrap_block + 1) * cache.block_size)
    new = {sequence.blocks[0] * cache.block_size + 4 for sequence in sequences}
    cache.keys[0][scrap.start : scrap.stop] = 7.0
    before = cache.keys[0].clone()
    served.step()  # three tokens, in a batch of four
    changed = set((cache.keys[0] != before).any(dim=(1, 2)).nonzero()[:, 0].tolist())
    assert new < changed and changed - new <= set(scrap)


@pytest.mark.usefixtures("_records")
@pytest.mark.parametrize("spec", [SPEC, RECORDED], ids=["computed", "replayed"])
def test_what_an_earlier_owner_of_a_block_left_does_not_reach_the_next(spec: StageSpec) -> None:
    asked = prompts(13)
    served = Served(spec)
    cache = served.engine._runner._cache
    for of_layer in (*cache.keys, *cache.values):
        of_layer[: cache.scrap_block * cache.block_size] = float("nan")
    for name, prompt in asked.items():
        served.add(name, prompt)
    assert served.run() == generated("llama", asked)


@pytest.mark.usefixtures("_records")
def test_a_step_with_a_prompt_is_not_replayed() -> None:
    served = Served(RECORDED)
    served.add("a", [1, 2, 3])
    served.step()
    assert served.engine._runner.graphs.shapes == []
    served.add("b", [4, 5, 6])
    served.step()
    assert served.engine._runner.graphs.shapes == []
    served.step()
    assert served.engine._runner.graphs.shapes == [(2, 8)]


@pytest.mark.usefixtures("_records")
def test_a_model_that_does_not_declare_it_is_not_recorded_nor_is_one_on_a_cpu() -> None:
    assert Served(SPEC).engine._runner.graphs is None
    assert not Device("cpu").has_graphs
    assert not torch.cuda.is_available() or Device("cuda").has_graphs


def test_the_thinkers_decode_reads_no_value() -> None:
    """Tensors on `meta` have shapes and no values: whoever asks for one raises."""
    meta = torch.device("meta")
    with meta:
        thinker = Thinker()
        config = transformers.LlamaConfig(**SHAPE)
        thinker.network = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
    cache = PagedKVCache(
        num_layers=2, num_blocks=8, block_size=16, num_kv_heads=2, head_dim=8, dtype=torch.float32, device=meta
    )
    blocks, stops = torch.zeros((4, 8), dtype=torch.int64, device=meta), torch.ones(4, dtype=torch.int64, device=meta)
    inputs = {name: torch.ones(4, dtype=torch.int64, device=meta) for name in ("ids", "positions")}
    with torch.inference_mode():
        tensors = thinker.decode(inputs, PagedStep.of_decode(cache, blocks, stops))
    assert tensors.logits.shape == (4, SHAPE["vocab_size"])


def test_checkpoints_whose_work_depends_on_values_say_so() -> None:
    assert _has_fixed_work(transformers.LlamaConfig(**SHAPE))
    assert _has_fixed_work(transformers.Qwen3Config(**SHAPE))
    assert not _has_fixed_work(transformers.Qwen3MoeConfig(**SHAPE))
    assert not _has_fixed_work(transformers.MixtralConfig(**SHAPE))
    growing = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    assert not _has_fixed_work(transformers.LlamaConfig(**SHAPE, rope_parameters=growing))


def test_tensors_of_any_width_share_one_copy() -> None:
    tensors = {
        "flags": torch.tensor([True, False, True]),
        "rows": torch.randn(3, 5),
        "half": torch.randn(3, 1, 7).to(torch.bfloat16),
        "ids": torch.tensor([1, -1, 1 << 40]),
        "none": torch.empty(0, 4),
    }
    back = unpack(pack(tensors), tensors)
    assert set(back) == set(tensors)
    for name, tensor in tensors.items():
        assert back[name].dtype is tensor.dtype and torch.equal(back[name], tensor)
