"""The residual codes of a frame: the talker samples the first code, the code predictor the others.

In: the talker's hidden state and its code, for a batch of frames. Out: every frame's codes, and the sum of
their embeddings.
Does not know: requests, the KV cache of the talker.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from transformers import DynamicCache, Qwen3OmniMoeTalkerForConditionalGeneration

from antiphon.messages.params import SamplingParams
from antiphon.stage.engine.autoregressive_model import SamplingRules
from antiphon.stage.runner.sampler import SequenceSampler, sample_batch

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0, top_k=50, top_p=0.8, min_p=0.0)
"""As the reference draws them, whatever the talker's own parameters."""


def residual_sampler(*, is_greedy: bool, seed: int | None) -> SequenceSampler:
    """One per request: a request's residual codes do not depend on its neighbours in the batch."""
    params = GREEDY if is_greedy else msgspec.structs.replace(SAMPLED, seed=seed)
    return SequenceSampler(params, SamplingRules())


@dataclass(frozen=True)
class Frames:
    """codes: [num_frames, num_code_groups] int64 on the host; embeds: [num_frames, hidden_size], summed over groups."""

    codes: torch.Tensor
    embeds: torch.Tensor


def predict(
    talker: Qwen3OmniMoeTalkerForConditionalGeneration,
    hidden: torch.Tensor,
    first_codes: list[int],
    samplers: list[SequenceSampler],
) -> Frames:
    """hidden: [num_frames, hidden_size], of the positions that sampled `first_codes`. One frame per sampler."""
    network: Any = talker
    predictor = network.code_predictor
    codes = [torch.tensor(first_codes, device=hidden.device)]
    embeds = [network.get_input_embeddings()(codes[0])]
    cache = DynamicCache(config=predictor.config)
    output = predictor(inputs_embeds=torch.stack((hidden, embeds[0]), dim=1), past_key_values=cache, use_cache=True)
    for group, embedding in enumerate(predictor.get_input_embeddings(), start=1):
        tokens = sample_batch(output.logits[:, -1], samplers)
        codes.append(torch.tensor(tokens, device=hidden.device))
        embeds.append(embedding(codes[-1]))
        if group < network.config.num_code_groups - 1:
            output = predictor(
                input_ids=codes[-1][:, None], generation_steps=group, past_key_values=cache, use_cache=True
            )
    return Frames(torch.stack(codes, dim=1).cpu(), torch.stack(embeds, dim=1).sum(dim=1))
