"""Which bytes of one contiguous region are free: a first-fit allocator with coalescing.

In: sizes to allocate, offsets to free, in any order. Out: 64-byte aligned offsets.
Does not know: what memory the region is, or who asked.
"""

from bisect import bisect_left

ALIGNMENT_BYTES = 64


def aligned(num_bytes: int) -> int:
    """`num_bytes` rounded up to the alignment."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Arena:
    """Owns the free list of a region of `size_bytes`: hole offsets in ascending order, never two adjacent ones.

    First fit, so that a lightly filled arena keeps to its low, cached addresses.
    """

    def __init__(self, size_bytes: int) -> None:
        usable_bytes = size_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        self._hole_offsets: list[int] = [0] if usable_bytes else []
        self._hole_sizes: dict[int, int] = {0: usable_bytes} if usable_bytes else {}
        self._block_sizes: dict[int, int] = {}
        self.used_bytes = 0

    def allocate(self, num_bytes: int) -> int | None:
        """The offset of a block of at least `num_bytes`, or None if no hole is large enough."""
        if num_bytes <= 0:
            raise ValueError(f"cannot allocate {num_bytes} bytes")
        size = aligned(num_bytes)
        for index, offset in enumerate(self._hole_offsets):
            left = self._hole_sizes[offset] - size
            if left >= 0:
                self._take(index, offset, size, left)
                return offset
        return None

    def free(self, offset: int) -> None:
        """Give back the block at `offset`; ValueError if none is allocated there."""
        size = self._block_sizes.pop(offset, None)
        if size is None:
            raise ValueError(f"no block is allocated at offset {offset}")
        self.used_bytes -= size
        index = bisect_left(self._hole_offsets, offset)
        if index < len(self._hole_offsets) and self._hole_offsets[index] == offset + size:
            size += self._hole_sizes.pop(self._hole_offsets.pop(index))
        before = self._hole_offsets[index - 1] if index else None
        if before is not None and before + self._hole_sizes[before] == offset:
            self._hole_sizes[before] += size
            return
        self._hole_offsets.insert(index, offset)
        self._hole_sizes[offset] = size

    def _take(self, index: int, offset: int, size: int, left: int) -> None:
        """The first `size` bytes of a hole, of which `left` stay."""
        del self._hole_sizes[offset]
        if left:
            self._hole_offsets[index] = offset + size
            self._hole_sizes[offset + size] = left
        else:
            del self._hole_offsets[index]
        self._block_sizes[offset] = size
        self.used_bytes += size
