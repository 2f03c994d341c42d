"""Attention over a paged KV cache, for any `transformers` model: an attention function of our own.

In: a flat batch of positions of several sequences. Out: their attention output; keys and values are kept in blocks.
Does not know: models, schedulers, requests.

Why not transformers' own PagedAttentionCache: its sdpa and eager paths attend every query to the cache of *all*
sequences of the batch under one dense mask (work grows with the square of the batch), and it is tied to its own
request states, scheduler and token-id inputs; we need embeddings as inputs and positions that are computed again.
A model made with attn_implementation="antiphon_paged" gets PagedStep as the keyword argument `paged_step`.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "antiphon_paged"
"""The value of attn_implementation."""


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
        self._sequences = sequences
        self._new_slots = torch.cat([sequence.slots[-sequence.num_new :] for sequence in sequences])
        self._masks = [_chunk_mask(sequence) for sequence in sequences]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """query [1, num_heads, n, head_dim], key, value [1, num_kv_heads, n, head_dim] -> [1, n, num_heads, head_dim].

        n: positions of all sequences, in the batch's order. layer: index in the cache.
        """
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys[self._new_slots] = key[0].transpose(0, 1)
        values[self._new_slots] = value[0].transpose(0, 1)
        outputs, first = [], 0
        for sequence, mask in zip(self._sequences, self._masks, strict=True):
            output = scaled_dot_product_attention(
                query[:, :, first : first + sequence.num_new],
                keys[sequence.slots].transpose(0, 1)[None],
                values[sequence.slots].transpose(0, 1)[None],
                attn_mask=mask,
                scale=scaling,
                enable_gqa=True,
            )
            outputs.append(output)
            first += sequence.num_new
        return torch.cat(outputs, dim=2).transpose(1, 2)


def _chunk_mask(sequence: SequenceSlots) -> torch.Tensor | None:
    """[num_new, length] bool: position i of the chunk sees everything up to itself; None for a single position."""
    if sequence.num_new == 1:
        return None
    length = len(sequence.slots)
    first = length - sequence.num_new
    device = sequence.slots.device
    positions = torch.arange(length, device=device)
    return positions[None, :] <= (first + torch.arange(sequence.num_new, device=device))[:, None]


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
    **_: object,
) -> tuple[torch.Tensor, None]:
    layer = module.layer_idx
    assert isinstance(layer, int)
    return paged_step.attend(layer, query, key, value, scaling), None


def _no_mask(*_: object, **__: object) -> None:
    """The step knows who sees whom; the model need not build a mask."""


AttentionInterface.register(NAME, _paged_attention)
AttentionMaskInterface.register(NAME, _no_mask)
