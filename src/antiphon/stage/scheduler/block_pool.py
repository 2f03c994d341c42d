"""The budget of KV cache blocks: which are free.

In: how many blocks are wanted. Out: block numbers, or none if there are not enough.
Does not know: sequences, tensors.
"""


class BlockPool:
    """Owns the free blocks out of `num_blocks` of `block_size` positions each."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free)

    def blocks_for(self, num_positions: int) -> int:
        """How many blocks hold that many positions."""
        return -(-num_positions // self.block_size)

    def take(self, count: int) -> list[int]:
        """`count` blocks; the caller has checked num_free."""
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """Blocks that are not used any more."""
        self._free += blocks
