"""The talker's prompt: the thinker's rows of what the user said, then the head of the answer.

In: rows of the thinker as they come, and the layout (see layout.py). Out: the prompt's input embeddings.
Does not know: requests, the KV cache. The rules are those of the reference's `generate`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import Qwen3OmniMoeTalkerForConditionalGeneration

from antiphon.models.qwen3_omni.layout import IS_MEDIA, NUM_HEAD, SOURCE


@dataclass
class PromptRows:
    """The thinker's rows that have come and are still needed: all until the prompt is made, then only new words."""

    embed: list[torch.Tensor] = field(default_factory=list)  # [n, thinker hidden size] each
    hidden: list[torch.Tensor] = field(default_factory=list)
    num_used: int = 0

    def add(self, embed: torch.Tensor, hidden: torch.Tensor) -> None:
        """More rows, in order."""
        self.embed.append(embed)
        self.hidden.append(hidden)

    def reach(self, layout: np.ndarray) -> bool:
        """True if every row that the layout names has come."""
        return sum(map(len, self.embed)) > int(layout[:, SOURCE].max())

    def take_words(self) -> torch.Tensor | None:
        """The `embed` rows behind the prompt's that have not been taken, [n, thinker hidden size]; None if none."""
        rows = torch.cat(self.embed)[self.num_used :] if self.embed else None
        self.embed, self.hidden, self.num_used = [], [], 0
        return rows if rows is not None and len(rows) else None


class TalkerPrompt:
    """Uses the talker's projections and codec embeddings, and two projected text markers [hidden_size]."""

    def __init__(
        self, talker: Qwen3OmniMoeTalkerForConditionalGeneration, *, bos: torch.Tensor, pad: torch.Tensor
    ) -> None:
        self._talker: Any = talker
        self._markers = torch.stack((pad, pad, pad, pad, bos))

    def inputs(self, layout: np.ndarray, rows: PromptRows, speaker_id: int) -> torch.Tensor:
        """[num_prompt, hidden_size]. The words of `rows` start behind the last row it uses."""
        embed, hidden = torch.cat(rows.embed), torch.cat(rows.hidden)
        sources = torch.from_numpy(layout[:, SOURCE].astype(np.int64)).to(embed.device)
        is_media = torch.from_numpy(layout[:, IS_MEDIA] != 0).to(embed.device)
        user = sources[:-NUM_HEAD]
        inputs = self._talker.text_projection(embed[user])
        media = is_media[:-NUM_HEAD]
        if bool(media.any()):
            inputs[media] = self._talker.hidden_projection(hidden[user[media]])
        head = sources[-NUM_HEAD:]
        rows.num_used = int(head[-1]) + 1
        return torch.cat((inputs, self._head(self._talker.text_projection(embed[head[head >= 0]]), speaker_id)))

    def _head(self, words: torch.Tensor, speaker_id: int) -> torch.Tensor:
        """words: [4, hidden_size], the assistant's three header tokens and the first word -> [9, hidden_size]."""
        config = self._talker.config
        codec_ids = [
            config.codec_nothink_id,
            config.codec_think_bos_id,
            config.codec_think_eos_id,
            speaker_id,
            config.codec_pad_id,
            config.codec_bos_id,
        ]
        text = torch.cat((words[:3], self._markers, words[3:]))
        codec = self._talker.get_input_embeddings()(torch.tensor(codec_ids, device=words.device))
        return text + torch.cat((torch.zeros_like(text[:3]), codec))
