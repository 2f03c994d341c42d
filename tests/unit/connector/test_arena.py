"""The arena's allocator against a model that tracks every 64-byte slot."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.connector.arena import ALIGNMENT_BYTES, Arena, aligned

NUM_SLOTS = 24


class SlotModel:
    """A region as a list of slots; finds the first run of free ones by looking at all of them."""

    def __init__(self) -> None:
        self.taken = [False] * NUM_SLOTS

    def first_fit(self, num_slots: int) -> int | None:
        for start in range(NUM_SLOTS - num_slots + 1):
            if not any(self.taken[start : start + num_slots]):
                return start
        return None

    def mark(self, start: int, num_slots: int, *, taken: bool) -> None:
        self.taken[start : start + num_slots] = [taken] * num_slots


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8 * ALIGNMENT_BYTES)), max_size=60))
def test_allocations_and_frees_in_any_order_match_a_slot_by_slot_model(steps: list[tuple[bool, int]]) -> None:
    arena, model = Arena(NUM_SLOTS * ALIGNMENT_BYTES), SlotModel()
    blocks: list[tuple[int, int]] = []
    for allocates, number in steps:
        if allocates or not blocks:
            num_slots = aligned(number) // ALIGNMENT_BYTES
            start = model.first_fit(num_slots)
            assert arena.allocate(number) == (None if start is None else start * ALIGNMENT_BYTES)
            if start is not None:
                model.mark(start, num_slots, taken=True)
                blocks.append((start, num_slots))
        else:
            start, num_slots = blocks.pop(number % len(blocks))
            arena.free(start * ALIGNMENT_BYTES)
            model.mark(start, num_slots, taken=False)
        assert arena.used_bytes == sum(model.taken) * ALIGNMENT_BYTES


@given(st.permutations(range(8)))
def test_after_frees_in_any_order_the_whole_arena_is_one_hole_again(order: list[int]) -> None:
    arena = Arena(8 * ALIGNMENT_BYTES)
    offsets = [arena.allocate(ALIGNMENT_BYTES) for _ in range(8)]
    assert arena.allocate(1) is None
    for index in order:
        offset = offsets[index]
        assert offset is not None
        arena.free(offset)
    assert arena.allocate(8 * ALIGNMENT_BYTES) == 0


def test_a_size_is_rounded_up_to_64_bytes_and_an_uneven_arena_down() -> None:
    arena = Arena(3 * ALIGNMENT_BYTES + 63)
    assert arena.allocate(65) == 0
    assert arena.used_bytes == 128
    assert arena.allocate(65) is None
    assert arena.allocate(64) == 128


def test_freeing_what_is_not_allocated_is_an_error() -> None:
    arena = Arena(1024)
    offset = arena.allocate(100)
    assert offset == 0
    arena.free(offset)
    with pytest.raises(ValueError, match="no block is allocated at offset 0"):
        arena.free(offset)
    with pytest.raises(ValueError, match="offset 64"):
        arena.free(64)


def test_an_empty_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot allocate 0 bytes"):
        Arena(1024).allocate(0)
