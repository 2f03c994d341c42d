"""Attention over a paged KV cache, for any `transformers` model: an attention function of our own.

In: a flat batch of positions of several sequences. Out: their attention output; keys and values are kept in blocks.
Does not know: models, schedulers, requests.

Why not transformers' own PagedAttentionCache: its sdpa and eager paths attend every query to the cache of *all*
sequences of the batch under one dense mask (work grows with the square of the batch), and it is tied to its own
request states, scheduler and token-id inputs; we need embeddings as inputs and positions that are computed again.
A model made with attn_implementation="antiphon_paged" gets PagedStep as the keyword argument `paged_step`.
"""

from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface

from antiphon.errors import StageError

NAME = "antiphon_paged"
"""The value of attn_implementation."""
_PADDING = 1.5
_SHORT = 64  # positions; among shorter sequences padding costs less than another call


class PagedKVCache:
    """Owns the keys and values of every layer, in blocks of `block_size` positions.

    Block b of layer l holds keys [block_size, num_kv_heads, head_dim] at keys[l][b].
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
        shape = (num_blocks * block_size, num_kv_heads, head_dim)
        self.block_size = block_size
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]


@dataclass(frozen=True)
class SequenceSlots:
    """One sequence's part of a step.

    slots: [stop] int64, the cache slot of each of its positions 0 .. stop-1; the last `num_new` are written now.
    """

    slots: torch.Tensor
    num_new: int


class PagedStep:
    """One step's batch: sequences in the order of the flat batch, and the cache they live in."""

    def __init__(self, cache: PagedKVCache, sequences: list[SequenceSlots]) -> None:
        self._cache = cache
        self._new_slots = torch.cat([sequence.slots[-sequence.num_new :] for sequence in sequences])
        self._groups = _grouped(sequences)

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

    places: their positions in the flat batch, num_sequences * num_new. is_whole: one sequence from its position 0 on.
    """

    def __init__(self, places: slice | torch.Tensor, sequences: list[SequenceSlots]) -> None:
        self.places = places
        self._num_new = sequences[0].num_new
        self._stops = [len(sequence.slots) for sequence in sequences]
        self.is_whole = len(sequences) == 1 and self._num_new == self._stops[0]
        slots = pad_sequence([sequence.slots for sequence in sequences], batch_first=True)
        self._length, self._slots = slots.shape[1], slots.flatten()
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
        num_sequences, num_heads, head_dim, num_kv_heads = len(self._stops), *query.shape[1:], keys.shape[1]
        if is_decode := self._num_new == 1:  # the heads of one group see the same keys, as its positions
            query = query.reshape(num_sequences, num_kv_heads, num_heads // num_kv_heads, head_dim)
        else:
            query = query.reshape(num_sequences, self._num_new, num_heads, head_dim).transpose(1, 2)
        shape = (num_sequences, self._length, num_kv_heads, head_dim)
        output = scaled_dot_product_attention(
            query,
            keys.index_select(0, self._slots).view(shape).transpose(1, 2),
            values.index_select(0, self._slots).view(shape).transpose(1, 2),
            attn_mask=self._masks[window],
            scale=scaling,
            enable_gqa=not is_decode,
        )
        return (output if is_decode else output.transpose(1, 2)).reshape(-1, num_heads, head_dim)

    def _mask(self, window: int | None) -> torch.Tensor | None:
        """[num_sequences, 1, num_new, length] bool: who sees whom; None if everybody sees everything."""
        length, device = self._length, self._slots.device
        if self._num_new == 1 and min(self._stops) == length and (window is None or window >= length):
            return None
        stops = torch.tensor(self._stops, device=device)[:, None, None, None]
        own = stops - self._num_new + torch.arange(self._num_new, device=device)[:, None]
        seen = torch.arange(length, device=device)
        return (seen <= own) if window is None else (seen <= own) & (seen > own - window)


def _causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None) -> torch.Tensor:
    """query [1, num_heads, n, head_dim], key, value [1, num_kv_heads, n, head_dim] -> [n, num_heads, head_dim]."""
    output = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    return output[0].transpose(0, 1)


def _grouped(sequences: list[SequenceSlots]) -> list[_Group]:
    """Chunks alone; single positions together with those whose length differs by no more than a factor of _PADDING."""
    groups, decodes, first = [], [], 0
    for sequence in sequences:
        if sequence.num_new == 1:
            decodes.append((first, sequence))
        else:
            groups.append(_Group(slice(first, first + sequence.num_new), [sequence]))
        first += sequence.num_new
    decodes.sort(key=lambda decode: len(decode[1].slots))
    while decodes:
        longest = max(len(decodes[0][1].slots), _SHORT) * _PADDING
        together = sorted((decode for decode in decodes if len(decode[1].slots) <= longest), key=itemgetter(0))
        places = _places([place for place, _ in together], together[0][1].slots.device)
        groups.append(_Group(places, [sequence for _, sequence in together]))
        decodes = decodes[len(together) :]
    return groups


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


def _no_mask(*_: object, **__: object) -> None:
    """The step knows who sees whom; the model need not build a mask."""


AttentionInterface.register(NAME, _paged_attention)
AttentionMaskInterface.register(NAME, _no_mask)
