"""Paged attention against plain attention over each sequence alone."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from antiphon.stage.runner.paged_attention import PagedKVCache, PagedStep, SequenceSlots  # noqa: E402

HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 8, 4


def cache() -> PagedKVCache:
    return PagedKVCache(
        num_layers=2,
        num_blocks=512,
        block_size=BLOCK,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


class Sequences:
    """Random queries, keys and values of several sequences, and slots in blocks that are dealt out in turns."""

    def __init__(self, lengths: list[int]) -> None:
        make = torch.Generator().manual_seed(len(lengths))
        self.query = [torch.randn(length, HEADS, DIM, generator=make) for length in lengths]
        self.key = [torch.randn(length, KV_HEADS, DIM, generator=make) for length in lengths]
        self.value = [torch.randn(length, KV_HEADS, DIM, generator=make) for length in lengths]
        self._count = len(lengths)

    def slots(self, index: int, stop: int) -> torch.Tensor:
        blocks = torch.arange(-(-stop // BLOCK)) * self._count + index
        return (blocks[:, None] * BLOCK + torch.arange(BLOCK)).flatten()[:stop]

    def step(self, cache: PagedKVCache, spans: list[tuple[int, int, int]], **how: float | None) -> list[torch.Tensor]:
        """Attend spans (sequence, start, stop) in one step on layer 1."""
        paged = PagedStep.of(cache, [SequenceSlots(self.slots(i, stop), stop - start) for i, start, stop in spans])

        def flat(rows: list[torch.Tensor]) -> torch.Tensor:
            return torch.cat([rows[i][start:stop] for i, start, stop in spans]).transpose(0, 1)[None]

        output = paged.attend(1, flat(self.query), flat(self.key), flat(self.value), **how)
        return list(output[0].split([stop - start for _, start, stop in spans]))

    def plain(self, index: int, start: int, stop: int, window: int | None = None) -> torch.Tensor:
        """The same positions by the formula, in double precision."""
        group = HEADS // KV_HEADS
        key = self.key[index][:stop].double().repeat_interleave(group, dim=1)
        value = self.value[index][:stop].double().repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", self.query[index][start:stop].double(), key) / DIM**0.5
        own, seen = torch.arange(start, stop)[:, None], torch.arange(stop)
        hidden = (seen > own) | (seen <= own - (window or stop))
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, value).float()


def assert_all_close(sequences: Sequences, got: list[torch.Tensor], spans: list[tuple[int, int, int]]) -> None:
    for output, span in zip(got, spans, strict=True):
        torch.testing.assert_close(output, sequences.plain(*span), atol=2e-6, rtol=1e-5)


def test_prefills_and_decodes_of_one_step_see_only_their_own_sequence() -> None:
    lengths = [9, 31, 6, 200, 32]
    sequences, kept = Sequences(lengths), cache()
    sequences.step(kept, [(0, 0, 8), (1, 0, 30), (3, 0, 199), (4, 0, 31)])
    mixed = [(0, 8, 9), (1, 30, 31), (2, 0, 6), (3, 199, 200), (4, 31, 32)]
    assert_all_close(sequences, sequences.step(kept, mixed), mixed)


def test_chunks_of_any_cut_give_what_the_whole_prompt_gives() -> None:
    sequences, kept = Sequences([23]), cache()
    for start, stop in [(0, 5), (5, 6), (6, 13), (13, 23)]:
        assert_all_close(sequences, sequences.step(kept, [(0, start, stop)]), [(0, start, stop)])


def test_the_order_of_the_batch_does_not_matter() -> None:
    sequences, kept = Sequences([100, 3, 64, 7]), cache()
    sequences.step(kept, [(i, 0, stop - 1) for i, stop in enumerate([100, 3, 64, 7])])
    spans = [(2, 63, 64), (0, 99, 100), (3, 6, 7), (1, 2, 3)]
    assert_all_close(sequences, sequences.step(kept, spans), spans)


@pytest.mark.parametrize("window", [1, 4, 100])
def test_a_sliding_window_hides_what_is_further_back(window: int) -> None:
    sequences, kept = Sequences([20, 12]), cache()
    spans = [(0, 0, 19), (1, 0, 11)]
    for output, span in zip(sequences.step(kept, spans, window=window), spans, strict=True):
        torch.testing.assert_close(output, sequences.plain(*span, window=window), atol=2e-6, rtol=1e-5)
    spans = [(0, 19, 20), (1, 11, 12)]
    for output, span in zip(sequences.step(kept, spans, window=window), spans, strict=True):
        torch.testing.assert_close(output, sequences.plain(*span, window=window), atol=2e-6, rtol=1e-5)


def test_the_scaling_is_the_models() -> None:
    sequences, kept = Sequences([5]), cache()
    (sharp,) = sequences.step(kept, [(0, 0, 5)], scaling=3.0)
    assert not torch.allclose(sharp, sequences.plain(0, 0, 5), atol=1e-3)
    sequences.query[0] *= 3.0 * DIM**0.5
    torch.testing.assert_close(sharp, sequences.plain(0, 0, 5), atol=2e-6, rtol=1e-5)


def test_other_layers_are_left_alone() -> None:
    sequences, kept = Sequences([5]), cache()
    sequences.step(kept, [(0, 0, 5)])
    assert kept.keys[0].count_nonzero() == 0 and kept.keys[1].count_nonzero() > 0
