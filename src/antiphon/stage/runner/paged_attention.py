"""Attention over a paged KV cache, for any `transformers` model: an attention function of our own.

In: a flat batch of positions of several sequences. Out: their attention output; keys and values are kept in blocks.
Does not know: models, schedulers, requests.

Why not transformers' own PagedAttentionCache: its sdpa and eager paths attend every query to the cache of *all*
sequences of the batch under one dense mask (work grows with the square of the batch), and it is tied to its own
request states, scheduler and token-id inputs; we need embeddings as inputs and positions that are computed again.
A model made with attn_implementation="antiphon_paged" gets PagedStep as the keyword argument `paged_step`. As no mask
is registered under that name, transformers makes none: the step knows who sees whom.
"""

from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface

from antiphon.errors import StageError

NAME = "antiphon_paged"
"""The value of attn_implementation."""
_PADDING = 1.5
_SHORT = 64  # positions; among shorter sequences padding costs less than another call


class PagedKVCache:
    """Owns the keys and values of every layer, in blocks of `block_size` positions.

    Block b of layer l holds keys [block_size, num_kv_heads, head_dim] from slot b * block_size of keys[l] on. The block
    behind the last, scrap_block, is nobody's: what pads a batch is written there.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (2, num_layers, num_blocks + 1, block_size, num_kv_heads, head_dim)
        self.block_size = block_size
        self.scrap_block = num_blocks
        self._memory = torch.zeros(shape, dtype=dtype, device=device)
        self.keys = [self._memory[0, layer].flatten(0, 1) for layer in range(num_layers)]
        self.values = [self._memory[1, layer].flatten(0, 1) for layer in range(num_layers)]

    def clear(self, blocks: list[int]) -> None:
        """Forget what earlier owners left: a mask hides numbers, but not what is none (0 x NaN is NaN)."""
        if blocks:
            self._memory.index_fill_(2, torch.tensor(blocks, device=self._memory.device), 0.0)


@dataclass(frozen=True)
class SequenceSlots:
    """One sequence's part of a step.

    slots: [stop] int64, the cache slot of each of its positions 0 .. stop-1; the last `num_new` are written now.
    """

    slots: torch.Tensor
    num_new: int


class PagedStep:
    """One step's batch: the cache, the slots of its positions in the flat batch's order, and who attends together."""

    def __init__(self, cache: PagedKVCache, new_slots: torch.Tensor, groups: list["_Group"]) -> None:
        self._cache = cache
        self._new_slots = new_slots
        self._groups = groups

    @classmethod
    def of(cls, cache: PagedKVCache, sequences: list[SequenceSlots]) -> "PagedStep":
        """Any spans; `sequences` in the order of the flat batch."""
        new_slots = torch.cat([sequence.slots[-sequence.num_new :] for sequence in sequences])
        return cls(cache, new_slots, _grouped(sequences, padding=cache.scrap_block * cache.block_size))

    @classmethod
    def of_decode(cls, cache: PagedKVCache, blocks: torch.Tensor, stops: torch.Tensor) -> "PagedStep":
        """One new position per sequence, by device work whose shapes depend on no value, so that it can be recorded.

        blocks: [num_sequences, width] int64, each sequence's blocks, then any. stops: [num_sequences] int64, its
        positions with the new one.
        """
        size, last = cache.block_size, (stops - 1)[:, None]
        new_slots = blocks.gather(1, last // size) * size + last % size
        slots = (blocks[:, :, None] * size + torch.arange(size, device=blocks.device)).flatten(1)
        return cls(cache, new_slots[:, 0], [_Group(slice(0, len(blocks)), slots, stops, num_new=1)])

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float | None = None,
        window: int | None = None,
    ) -> torch.Tensor:
        """query [1, num_heads, n, head_dim], key, value [1, num_kv_heads, n, head_dim] -> [1, n, num_heads, head_dim].

        n: positions of all sequences, in the batch's order. layer: index in the cache. window: a position sees itself
        and the window - 1 before it.
        """
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys[self._new_slots] = key[0].transpose(0, 1)
        values[self._new_slots] = value[0].transpose(0, 1)
        by_position = query[0].transpose(0, 1)  # [n, num_heads, head_dim]
        if len(self._groups) == 1 and not self._groups[0].is_whole:
            return self._groups[0].attend(by_position, keys, values, scaling, window)[None]
        output = torch.empty_like(by_position)
        for group in self._groups:
            if group.is_whole and window is None:  # nothing is in the cache that is not here
                span = group.places
                output[span] = _causal(query[:, :, span], key[:, :, span], value[:, :, span], scaling)
            else:
                output[group.places] = group.attend(by_position[group.places], keys, values, scaling, window)
        return output[None]


class _Group:
    """Sequences with the same number of new positions, attended in one call.

    places: their positions in the flat batch, num_sequences * num_new. slots: [num_sequences, length] of the cache.
    stops: [num_sequences], how many of a sequence's slots are its own. is_whole: one sequence from its position 0 on.
    is_full: all slots are.
    """

    def __init__(
        self,
        places: slice | torch.Tensor,
        slots: torch.Tensor,
        stops: torch.Tensor,
        *,
        num_new: int,
        is_full: bool = False,
    ) -> None:
        self.places = places
        self.is_whole = is_full and len(slots) == 1 and num_new == slots.shape[1]
        self._slots, self._stops, self._num_new, self._is_full = slots, stops, num_new, is_full
        self._masks: dict[int | None, torch.Tensor | None] = {}

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scaling: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """query [num_sequences * num_new, num_heads, head_dim] -> the same shape."""
        if window not in self._masks:
            self._masks[window] = self._mask(window)
        num_sequences, num_heads, head_dim, num_kv_heads = len(self._slots), *query.shape[1:], keys.shape[1]
        if is_decode := self._num_new == 1:  # the heads of one group see the same keys, as its positions
            query = query.reshape(num_sequences, num_kv_heads, num_heads // num_kv_heads, head_dim)
        else:
            query = query.reshape(num_sequences, self._num_new, num_heads, head_dim).transpose(1, 2)
        slots, shape = self._slots.flatten(), (*self._slots.shape, num_kv_heads, head_dim)
        output = scaled_dot_product_attention(
            query,
            keys.index_select(0, slots).view(shape).transpose(1, 2),
            values.index_select(0, slots).view(shape).transpose(1, 2),
            attn_mask=self._masks[window],
            scale=scaling,
            enable_gqa=not is_decode,
        )
        return (output if is_decode else output.transpose(1, 2)).reshape(-1, num_heads, head_dim)

    def _mask(self, window: int | None) -> torch.Tensor | None:
        """[num_sequences, 1, num_new, length] bool: who sees whom; None if everybody sees everything."""
        length, device = self._slots.shape[1], self._slots.device
        if self._num_new == 1 and self._is_full and (window is None or window >= length):
            return None
        own = self._stops[:, None, None, None] - self._num_new + torch.arange(self._num_new, device=device)[:, None]
        seen = torch.arange(length, device=device)
        return (seen <= own) if window is None else (seen <= own) & (seen > own - window)


def _causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None) -> torch.Tensor:
    """query [1, num_heads, n, head_dim], key, value [1, num_kv_heads, n, head_dim] -> [n, num_heads, head_dim]."""
    output = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    return output[0].transpose(0, 1)


def _grouped(sequences: list[SequenceSlots], padding: int) -> list[_Group]:
    """Chunks alone; single positions together with those whose length differs by no more than a factor of _PADDING.

    padding: the slot that shorter sequences are filled up with; nobody's.
    """
    groups, decodes, first = [], [], 0
    for sequence in sequences:
        if sequence.num_new == 1:
            decodes.append((first, sequence))
        else:
            groups.append(_group(slice(first, first + sequence.num_new), [sequence], padding))
        first += sequence.num_new
    decodes.sort(key=lambda decode: len(decode[1].slots))
    while decodes:
        longest = max(len(decodes[0][1].slots), _SHORT) * _PADDING
        together = sorted((decode for decode in decodes if len(decode[1].slots) <= longest), key=itemgetter(0))
        places = _places([place for place, _ in together], together[0][1].slots.device)
        groups.append(_group(places, [sequence for _, sequence in together], padding))
        decodes = decodes[len(together) :]
    return groups


def _group(places: slice | torch.Tensor, sequences: list[SequenceSlots], padding: int) -> _Group:
    lengths = [len(sequence.slots) for sequence in sequences]
    slots = pad_sequence([sequence.slots for sequence in sequences], batch_first=True, padding_value=padding)
    stops = torch.tensor(lengths, device=slots.device)
    return _Group(places, slots, stops, num_new=sequences[0].num_new, is_full=min(lengths) == max(lengths))


def _places(places: list[int], device: torch.device) -> slice | torch.Tensor:
    """A slice, which copies nothing, if the places are neighbours."""
    if places[-1] - places[0] == len(places) - 1:
        return slice(places[0], places[-1] + 1)
    return torch.tensor(places, device=device)


def _paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged_step: PagedStep,
    layer_idx: int | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    if softcap is not None or s_aux is not None:
        raise StageError("attention with a soft cap or with sinks is not served; use another checkpoint")
    layer = module.layer_idx
    assert isinstance(layer, int)
    return paged_step.attend(layer, query, key, value, scaling=scaling, window=sliding_window), None


AttentionInterface.register(NAME, _paged_attention)
