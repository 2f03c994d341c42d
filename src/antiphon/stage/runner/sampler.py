"""Sampling: logits of a batch -> one token per sequence, by each request's own parameters and random stream.

In: logits [num_sequences, vocab_size]. Out: token ids. A sequence's stream depends on its seed and its own draws only.
Does not know: models, scheduling, stop conditions.

Order: repetition penalty (Keskar et al. 2019), presence and frequency penalties and bias (as OpenAI's API reference has
them: of what was sampled, not of the prompt), suppressed ids; then, as in transformers, temperature, top-k, top-p
(Holtzman et al. 2020), min-p (Nguyen et al. 2024).
"""

from collections import Counter

import torch

from antiphon.errors import InvalidRequestError, StageError
from antiphon.messages.params import SamplingParams
from antiphon.stage.engine.autoregressive_model import SamplingRules
from antiphon.stage.engine.sequence_model import TokenScores

_NEVER = float("-inf")


class SequenceSampler:
    """Owns one sequence's random stream and the tokens it has sampled."""

    def __init__(self, params: SamplingParams, rules: SamplingRules) -> None:
        self.params = params
        self.rules = rules
        self.num_sampled = 0
        self._seen = set(rules.prompt_ids) if params.repetition_penalty != 1.0 else set()
        self._suppressed = sorted(set(rules.suppressed_ids))
        self._changes_scores = bool(params.presence_penalty or params.frequency_penalty or params.logit_bias)
        self._counts: Counter[int] = Counter()
        self._point: float | None = None
        self._random = torch.Generator()
        if params.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(params.seed)

    @property
    def is_plain_greedy(self) -> bool:
        """True if the token is the argmax of the raw logits."""
        is_raw = not self._changes_scores and self.params.repetition_penalty == 1.0
        return self.params.temperature == 0 and is_raw and not self._suppressed_now()

    def sample(self, logits: torch.Tensor) -> int:
        """logits: [vocab_size], not changed. The next token; the same again until `took` is called."""
        logits = logits.float().clone()
        if self.params.repetition_penalty != 1.0 and self._seen:
            seen = torch.tensor(sorted(self._seen), device=logits.device)
            scores = logits[seen]
            penalty = self.params.repetition_penalty
            logits[seen] = torch.where(scores < 0, scores * penalty, scores / penalty)
        if self._changes_scores:
            self._change_scores(logits)
        if suppressed := self._suppressed_now():
            logits[suppressed] = _NEVER
        return self._greedy(logits) if self.params.temperature == 0 else self._draw(logits)

    def took(self, token: int) -> None:
        """`token` is the sequence's next one."""
        self.num_sampled += 1
        self._point = None
        if self.params.repetition_penalty != 1.0:
            self._seen.add(token)
        if self._changes_scores:
            self._counts[token] += 1

    def finish_reason(self, token: int) -> str | None:
        """Why `token` (already counted by `took`) ends the sequence, or None."""
        if token in self.rules.stop_ids and not self.params.ignore_eos:
            return "stop"
        return "length" if self.num_sampled >= self.params.max_tokens else None

    def _change_scores(self, logits: torch.Tensor) -> None:
        params = self.params
        changes = {token: -params.presence_penalty - params.frequency_penalty * n for token, n in self._counts.items()}
        for token, bias in params.logit_bias:
            if token >= len(logits):
                raise InvalidRequestError(f"logit_bias: the model has no token {token}", param="logit_bias")
            changes[token] = changes.get(token, 0.0) + bias
        if changes:
            logits[list(changes)] += torch.tensor(list(changes.values()), device=logits.device)

    def _suppressed_now(self) -> list[int]:
        if self.num_sampled < self.rules.min_new_tokens:
            return [*self._suppressed, *self.rules.stop_ids]
        return self._suppressed

    @staticmethod
    def _greedy(logits: torch.Tensor) -> int:
        return int(logits.argmax())

    def _draw(self, logits: torch.Tensor) -> int:
        params = self.params
        if 0 < params.top_k < len(logits):
            ordered, ids = torch.topk(logits, params.top_k)
        else:
            ordered, ids = torch.sort(logits, descending=True)
        probabilities = torch.softmax((ordered - ordered[0]) / params.temperature, dim=-1)
        kept = probabilities >= params.min_p * probabilities[0]
        if params.top_p < 1.0:
            kept &= torch.cumsum(probabilities, dim=-1) - probabilities < params.top_p
        num_kept = max(1, int(kept.sum()))  # sorted: what is kept stands first
        cumulative = torch.cumsum(probabilities[:num_kept].double().cpu(), dim=-1)
        index = int(torch.searchsorted(cumulative, self._next_point() * cumulative[-1], right=True))
        return int(ids[min(index, num_kept - 1)])

    def _next_point(self) -> float:
        """In [0, 1): one draw per token, however often that token is sampled."""
        if self._point is None:
            self._point = float(torch.rand((), generator=self._random, dtype=torch.float64))
        return self._point


def sample_batch(logits: torch.Tensor, samplers: list[SequenceSampler]) -> list[int]:
    """logits: [len(samplers), vocab_size]. One token per sequence; counts it as taken, if no sampling raised.

    StageError if a sequence's logits are no numbers.
    """
    peaks, places = logits.max(dim=-1)
    if not bool(torch.isfinite(peaks).all()):
        raise StageError("the model gave no finite logits: an overflow of its dtype, or damaged weights")
    best = places.tolist()
    tokens = [
        token if sampler.is_plain_greedy else sampler.sample(row)
        for token, row, sampler in zip(best, logits, samplers, strict=True)
    ]
    for token, sampler in zip(tokens, samplers, strict=True):
        sampler.took(token)
    return tokens


def scores_of(logits: torch.Tensor, samplers: list[SequenceSampler], tokens: list[int]) -> list[TokenScores | None]:
    """logits: [len(samplers), vocab_size]. What each sampled token's probability was; None where nobody asked."""
    return [
        None if sampler.params.logprobs is None else _scores(row, token, sampler.params.logprobs)
        for row, sampler, token in zip(logits, samplers, tokens, strict=True)
    ]


def _scores(logits: torch.Tensor, token: int, num_best: int) -> TokenScores:
    """logits: [vocab_size]."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    values, ids = torch.topk(logprobs, min(num_best, len(logprobs)))
    return TokenScores(float(logprobs[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))
