"""Which of the thinker's prompt positions the talker's prompt is made of, and where they stand in its rotary grid.

In: the prompt's token ids and the sizes of its pictures and videos. Out: float32 [n, 5], one row per talker position:
the thinker position (-1 for none), 1 if its hidden state is taken instead of its embedding, then t, h, w.
Does not know: networks, requests. The rules are those of the reference's `generate`.

The talker hears every user turn, then the head of the answer: nine positions that take the assistant's three header
tokens and the first word that the thinker writes, with the text markers between. This one small array crosses once
per request, because the talker sees rows of numbers only: it cannot tell from them who spoke, or how wide a picture is.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoePreTrainedModelForConditionalGeneration

from antiphon.errors import InvalidRequestError

NUM_HEAD = 9
HEAD_SOURCES = (0, 1, 2, -1, -1, -1, -1, -1, 3)
"""Of the head's positions, as an offset from the assistant's first header token; -1: a text marker."""
SOURCE, IS_MEDIA, FIRST_AXIS = 0, 1, 2


@dataclass(frozen=True)
class Media:
    """What the rotary grid depends on beside the tokens; None where the prompt has none of the kind."""

    image_grid_thw: torch.Tensor | None = None
    video_grid_thw: torch.Tensor | None = None
    video_second_per_grid: torch.Tensor | None = None
    audio_lengths: torch.Tensor | None = None


class _TalkerGrid:
    """As much of the talker as the reference's `get_rope_index` asks for; its weights are elsewhere."""

    get_rope_index: Any = Qwen3OmniMoePreTrainedModelForConditionalGeneration.get_rope_index
    get_llm_pos_ids_for_vision: Any = Qwen3OmniMoePreTrainedModelForConditionalGeneration.get_llm_pos_ids_for_vision

    def __init__(self, thinker: Any, talker: Any) -> None:
        self.config = talker
        self.config.audio_config = thinker.audio_config  # asked for where sound and pictures meet
        self.spatial_merge_size = thinker.vision_config.spatial_merge_size


class TalkerLayout:
    """Knows the config's token ids."""

    def __init__(self, config: Qwen3OmniMoeConfig) -> None:
        self._config: Any = config
        self._grid = _TalkerGrid(config.thinker_config, config.talker_config)

    def of_prompt(self, ids: np.ndarray, media: Media) -> np.ndarray:
        """ids: [n] int64. InvalidRequestError if no assistant turn is open at the end."""
        config = self._config
        head = self._head(ids)
        user = np.flatnonzero(self._roles(ids) == config.user_token_id)
        thinker = config.thinker_config
        kinds = (thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id)
        layout = np.zeros((len(user) + NUM_HEAD, 5), np.float32)
        layout[: len(user), SOURCE] = user
        layout[: len(user), IS_MEDIA] = np.isin(ids[user], kinds)
        layout[len(user) :, SOURCE] = [-1 if offset < 0 else head + offset for offset in HEAD_SOURCES]
        talker_ids = np.concatenate((ids[user], np.full(NUM_HEAD, config.tts_pad_token_id)))
        layout[:, FIRST_AXIS:] = self._positions(talker_ids, media).T
        return layout

    def _roles(self, ids: np.ndarray) -> np.ndarray:
        """[n]: the token behind the last im_start up to each position, which names the turn's role."""
        starts = np.where(ids == self._config.im_start_token_id, np.arange(len(ids)), 0)
        of_turn = np.maximum.accumulate(starts) + 1
        roles: np.ndarray = ids[np.minimum(of_turn, len(ids) - 1)]
        return roles

    def _head(self, ids: np.ndarray) -> int:
        config = self._config
        starts = np.flatnonzero((ids[:-1] == config.im_start_token_id) & (ids[1:] == config.assistant_token_id))
        if not len(starts):
            raise InvalidRequestError("the prompt opens no assistant turn, so nothing can be spoken", param="messages")
        return int(starts[-1])

    def _positions(self, ids: np.ndarray, media: Media) -> np.ndarray:
        """[3, n] float32."""
        if media.image_grid_thw is None and media.video_grid_thw is None:
            return np.broadcast_to(np.arange(len(ids), dtype=np.float32), (3, len(ids)))
        tokens = torch.from_numpy(ids)[None]
        positions, _ = self._grid.get_rope_index(
            tokens,
            media.image_grid_thw,
            media.video_grid_thw,
            torch.ones_like(tokens),
            False,  # the reference never tells the talker that a video's sound is interleaved
            media.audio_lengths,
            media.video_second_per_grid,
        )
        array: np.ndarray = positions[:, 0].numpy()
        return array
