"""The sampler against transformers' logits processors, and its random streams."""

import math

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from antiphon.errors import InvalidRequestError  # noqa: E402
from antiphon.messages.params import SamplingParams  # noqa: E402
from antiphon.stage.engine.autoregressive_model import SamplingRules  # noqa: E402
from antiphon.stage.runner.sampler import SequenceSampler, sample_batch, scores_of  # noqa: E402

VOCABULARY = 60
NUM_DRAWS = 3000
PLAIN = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, max_tokens=10**6)
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


def params(**changes: float) -> SamplingParams:
    fields = {name: getattr(PLAIN, name) for name in PLAIN.__struct_fields__}
    return SamplingParams(**{**fields, **changes})


def random_logits(seed: int) -> torch.Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def draws(logits: torch.Tensor, wanted: SamplingParams, rules: SamplingRules | None = None) -> torch.Tensor:
    """How often each token comes, [vocab_size], each draw from a fresh sampler's second seed."""
    sampler = SequenceSampler(params(**{**as_dict(wanted), "seed": 7}), rules or SamplingRules())
    counts = torch.zeros(VOCABULARY)
    for _ in range(NUM_DRAWS):
        counts[sampler.sample(logits)] += 1
        sampler._point = None  # the next draw, without the token counting as seen
    return counts


def as_dict(wanted: SamplingParams) -> dict[str, float]:
    return {name: getattr(wanted, name) for name in wanted.__struct_fields__}


def reference(logits: torch.Tensor, wanted: SamplingParams, seen: tuple[int, ...] = ()) -> torch.Tensor:
    """Probabilities after transformers' own processors, [vocab_size]."""
    chain = transformers.LogitsProcessorList()
    if wanted.repetition_penalty != 1.0:
        chain.append(transformers.RepetitionPenaltyLogitsProcessor(wanted.repetition_penalty))
    chain.append(transformers.TemperatureLogitsWarper(wanted.temperature))
    if wanted.top_k:
        chain.append(transformers.TopKLogitsWarper(wanted.top_k))
    if wanted.top_p < 1:
        chain.append(transformers.TopPLogitsWarper(wanted.top_p))
    if wanted.min_p:
        chain.append(transformers.MinPLogitsWarper(wanted.min_p))
    scores = chain(torch.tensor([seen], dtype=torch.int64), logits[None].clone())
    return torch.softmax(scores[0], dim=-1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"top_k": 5},
        {"top_k": 1000},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"temperature": 1.7, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
        {"repetition_penalty": 1.6},
        {"repetition_penalty": 0.7, "top_k": 9},
    ],
    ids=str,
)
def test_tokens_come_as_often_as_transformers_processors_say(changes: dict[str, float], seed: int) -> None:
    logits, wanted = random_logits(seed), params(**changes)
    seen = tuple(logits.topk(4).indices.tolist() + logits.topk(4, largest=False).indices.tolist())
    expected = reference(logits, wanted, seen)
    counts = draws(logits, wanted, SamplingRules(prompt_ids=seen))
    assert counts[expected == 0].sum() == 0
    deviation = (counts / NUM_DRAWS - expected).abs()
    assert (deviation <= 4.5 * torch.sqrt(expected * (1 - expected) / NUM_DRAWS) + 1e-3).all()


def test_every_token_that_may_come_does_come() -> None:
    logits = torch.zeros(VOCABULARY)
    logits[10:] = -math.inf
    assert (draws(logits, params(top_k=20)) > 0).tolist() == [True] * 10 + [False] * (VOCABULARY - 10)


@pytest.mark.parametrize("changes", [{"top_p": 0.0}, {"min_p": 2.0}, {"temperature": 1e-30}, {"top_k": 1}], ids=str)
def test_the_most_probable_token_always_remains(changes: dict[str, float]) -> None:
    logits = random_logits(4)
    sampler = SequenceSampler(params(**changes), SamplingRules())
    assert sampler.sample(logits) == int(logits.argmax())


def test_greedy_takes_the_best_that_is_not_suppressed_and_leaves_the_logits_alone() -> None:
    logits = random_logits(5)
    before, best = logits.clone(), logits.topk(3).indices.tolist()
    sampler = SequenceSampler(GREEDY, SamplingRules(suppressed_ids=(best[0], best[1])))
    assert sample_batch(logits[None], [sampler]) == [best[2]]
    assert torch.equal(logits, before)


def test_stop_ids_cannot_come_before_min_new_tokens() -> None:
    logits = random_logits(6)
    first, second = logits.topk(2).indices.tolist()
    sampler = SequenceSampler(GREEDY, SamplingRules(stop_ids=frozenset({first}), min_new_tokens=2))
    assert [sample_batch(logits[None], [sampler])[0] for _ in range(3)] == [second, second, first]


def test_the_repetition_penalty_counts_tokens_of_the_prompt_and_new_ones() -> None:
    logits = torch.tensor([5.0, 4.0, 3.0, -1.0])
    sampler = SequenceSampler(params(temperature=0.0, repetition_penalty=2.0), SamplingRules(prompt_ids=(0,)))
    assert [sample_batch(logits[None], [sampler])[0] for _ in range(3)] == [1, 2, 0]


def test_penalties_and_bias_follow_openais_formula_and_leave_the_prompt_out() -> None:
    logits = torch.tensor([5.0, 4.5, 4.2, 0.0])
    once = SequenceSampler(params(temperature=0.0, presence_penalty=0.6), SamplingRules(prompt_ids=(0,)))
    assert [sample_batch(logits[None], [once])[0] for _ in range(4)] == [0, 1, 0, 0]  # 5, then 4.4 < 4.5, then 4.4
    each = SequenceSampler(params(temperature=0.0, frequency_penalty=0.6), SamplingRules())
    assert [sample_batch(logits[None], [each])[0] for _ in range(4)] == [0, 1, 0, 2]  # 5, 4.5, 4.4, 4.2 > 3.9, 3.8
    biased = SequenceSampler(params(temperature=0.0, logit_bias=((3, 100.0), (0, -1.0))), SamplingRules())
    assert sample_batch(logits[None], [biased]) == [3]
    assert logits.tolist() == pytest.approx([5.0, 4.5, 4.2, 0.0])


def test_a_bias_for_a_token_that_does_not_exist_is_the_clients_error() -> None:
    sampler = SequenceSampler(params(logit_bias=((VOCABULARY, 1.0),)), SamplingRules())
    with pytest.raises(InvalidRequestError, match="no token 60") as caught:
        sampler.sample(random_logits(1))
    assert caught.value.param == "logit_bias"


def test_scores_are_the_models_own_log_probabilities_whatever_the_sampling() -> None:
    logits = torch.stack([random_logits(8), random_logits(9)])
    asked = SequenceSampler(params(temperature=0.3, logit_bias=((7, 50.0),), logprobs=3), SamplingRules())
    samplers = [asked, SequenceSampler(GREEDY, SamplingRules())]
    tokens = sample_batch(logits, samplers)
    scores, nothing = scores_of(logits, samplers, tokens)
    expected = torch.log_softmax(logits[0], dim=-1)
    assert nothing is None and scores is not None and tokens[0] == 7
    assert scores.logprob == pytest.approx(float(expected[7]))
    best = expected.topk(3)
    assert [token for token, _ in scores.best] == best.indices.tolist()
    assert [value for _, value in scores.best] == pytest.approx(best.values.tolist())


def test_a_sequence_ends_at_a_stop_id_or_at_its_length() -> None:
    logits = torch.eye(4)
    sampler = SequenceSampler(GREEDY, SamplingRules(stop_ids=frozenset({2})))
    reasons = [sampler.finish_reason(sample_batch(row[None], [sampler])[0]) for row in logits[[0, 2, 1, 3]]]
    assert reasons == [None, "stop", None, "length"]


def test_ignore_eos_goes_on_to_the_length() -> None:
    wanted = params(temperature=0.0, max_tokens=2, ignore_eos=True)
    sampler = SequenceSampler(wanted, SamplingRules(stop_ids=frozenset({0})))
    logits = torch.tensor([[1.0, 0.0]])
    reasons = [sampler.finish_reason(sample_batch(logits, [sampler])[0]) for _ in range(2)]
    assert reasons == [None, "length"]


def test_a_seeded_stream_does_not_depend_on_batch_mates() -> None:
    rows = torch.stack([random_logits(seed) for seed in range(20)])

    def stream(others: int) -> list[int]:
        mine = SequenceSampler(params(seed=3), SamplingRules())
        mates = [SequenceSampler(params(seed=seed), SamplingRules()) for seed in range(others)]
        return [sample_batch(torch.stack([row] * (others + 1)), [*mates, mine])[-1] for row in rows]

    assert stream(0) == stream(31)
    assert len(set(stream(0))) > 3


def test_requests_without_a_seed_differ() -> None:
    flat = torch.zeros(20, VOCABULARY)
    samplers = [SequenceSampler(params(), SamplingRules()) for _ in range(20)]
    assert len(set(sample_batch(flat, samplers))) > 1


def test_a_batch_in_which_one_sampling_fails_can_be_sampled_again_with_the_same_tokens() -> None:
    logits = torch.stack([random_logits(8), random_logits(9)])
    good = SequenceSampler(params(seed=1), SamplingRules())
    bad = SequenceSampler(params(seed=1), SamplingRules(suppressed_ids=(VOCABULARY + 5,)))
    with pytest.raises(IndexError):
        sample_batch(logits, [good, bad])
    fresh = SequenceSampler(params(seed=1), SamplingRules())
    again = [sample_batch(logits[:1], [good])[0] for _ in range(5)]
    assert again == [sample_batch(logits[:1], [fresh])[0] for _ in range(5)]
