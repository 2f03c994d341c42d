"""The pool of KV cache blocks."""

import pytest

from antiphon.stage.scheduler.block_pool import BlockPool


def test_every_block_is_given_out_once_until_it_comes_back() -> None:
    pool = BlockPool(num_blocks=5, block_size=4)
    first, second = pool.take(3), pool.take(2)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert pool.num_free == 0
    pool.give_back(first)
    assert pool.num_free == 3
    assert sorted(pool.take(3)) == sorted(first)


def test_taking_nothing_takes_nothing() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)
    assert pool.take(0) == []
    assert pool.num_free == 2


@pytest.mark.parametrize(("positions", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_begun_block_counts_as_one(positions: int, blocks: int) -> None:
    assert BlockPool(num_blocks=2, block_size=4).blocks_for(positions) == blocks
