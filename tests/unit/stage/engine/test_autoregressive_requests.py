"""The autoregressive engine and its requests: input that still arrives, faults, limits, aborts."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from antiphon.errors import AntiphonError, InvalidRequestError, StageError  # noqa: E402
from antiphon.messages.params import SamplingParams  # noqa: E402
from antiphon.stage.request import EdgeInput, StageOutput, StageRequest  # noqa: E402
from tests.unit.stage.engine.toy_transformer import (  # noqa: E402
    GREEDY,
    HIDDEN,
    SPEC,
    Served,
    ToyState,
    generated,
    inputs_of,
    network,
    prompts,
    push,
    request_of,
)

NUM_TOKENS = 12
SHORT = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
SMALL = replace(SPEC, num_kv_blocks=4)


def upstream_rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, HIDDEN)).astype(np.float32)


def with_upstream(prompt: list[int], rows: np.ndarray, max_tokens: int = NUM_TOKENS) -> list[int]:
    """Greedy tokens by the whole sequence's plain forward pass, once per token."""
    reference, ids = network("llama", "sdpa"), list(prompt)
    for _ in range(max_tokens):
        with torch.no_grad():
            logits = reference(inputs_embeds=inputs_of(reference, ids, len(prompt), list(rows))[None]).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


def streaming(served: Served, name: str, prompt: list[int], sampling: SamplingParams = SHORT) -> EdgeInput:
    request = request_of(name, prompt, sampling, streams=True)
    served.engine.add(request)
    return request.inputs["upstream"]


def test_a_request_waits_for_its_next_row_and_its_mates_go_on() -> None:
    asked, rows = prompts(2), upstream_rows(NUM_TOKENS)
    served = Served()
    edge = streaming(served, "r0", asked["r0"])
    served.add("r1", asked["r1"], SHORT)
    served.run()
    assert len(served.tokens["r0"]) == 1 and "r0" not in served.ends
    assert served.tokens["r1"] == generated("llama", asked, NUM_TOKENS)["r1"]
    for count, row in enumerate(rows[:-1], 2):
        push(edge, "embed", row[None])
        assert served.engine.has_work()
        served.run()
        assert len(served.tokens["r0"]) == count
    assert served.tokens["r0"] == with_upstream(asked["r0"], rows)
    assert served.num_free == SPEC.num_kv_blocks


def test_rows_that_come_early_or_in_bulk_give_the_same_tokens() -> None:
    prompt, rows = prompts(1)["r0"], upstream_rows(NUM_TOKENS)
    served = Served()
    edge = streaming(served, "r0", prompt)
    push(edge, "embed", rows[:7])
    served.run()
    push(edge, "embed", rows[7:])
    assert served.run()["r0"] == with_upstream(prompt, rows)


def test_the_end_of_the_input_lets_a_sequence_go_on_alone() -> None:
    prompt, rows = prompts(1)["r0"], upstream_rows(3)
    served = Served()
    edge = streaming(served, "r0", prompt)
    push(edge, "embed", rows)
    served.run()
    assert len(served.tokens["r0"]) == 4 and not served.engine.has_work()
    edge.ended = True
    assert served.engine.has_work()
    assert served.run()["r0"] == with_upstream(prompt, rows)


def test_a_prompt_that_arrives_in_pieces_starts_when_it_is_complete() -> None:
    prompt = prompts(1)["r0"] * 2
    request = request_of("r0", prompt[:3], SHORT)
    request.inputs["client"].ended = False
    served = Served(replace(SPEC, max_num_seqs=1))
    served.engine.add(request)
    served.add("r1", prompt, SHORT)  # the only place is not taken by a prompt that is not there
    served.run()
    assert list(served.ends) == ["r1"]
    push(request.inputs["client"], "ids", np.array(prompt[3:]))
    request.inputs["client"].ended = True
    assert served.run()["r0"] == generated("llama", {"r0": prompt}, NUM_TOKENS)["r0"]


def test_a_sequence_preempted_while_it_waits_for_a_row_does_not_sample_twice() -> None:
    asked, rows = prompts(2), upstream_rows(NUM_TOKENS)
    asked = {"old": asked["r0"][:20], "new": asked["r1"][:10]}
    served = Served(SMALL)
    served.add("old", asked["old"], SamplingParams(max_tokens=40, temperature=0.0))
    edge = streaming(served, "new", asked["new"])
    while not served.engine.num_preemptions:
        assert len(served.tokens.get("new", [])) <= 1
        served.step()
    served.run()  # the old one ends, the new one computes its positions again
    assert "old" in served.ends and len(served.tokens["new"]) == 1
    push(edge, "embed", rows)
    assert served.run()["new"] == with_upstream(asked["new"], rows)
    state = served.model.states["new"]
    assert sum(count for _, count in state.first_rows) == len(asked["new"]) + NUM_TOKENS - 1


def test_a_request_without_credit_is_left_out_until_it_has_some() -> None:
    asked = prompts(2)
    served = Served()
    blocked = request_of("r0", asked["r0"], SHORT)
    served.engine.add(blocked)
    served.add("r1", asked["r1"], SHORT)
    served.step()
    blocked.is_blocked = True
    served.run()
    assert len(served.tokens["r0"]) == 1 and len(served.tokens["r1"]) == NUM_TOKENS
    blocked.is_blocked = False
    assert served.run() == generated("llama", asked, NUM_TOKENS)


@pytest.mark.parametrize("method", ["forward", "accept", "rules"])
def test_a_request_that_makes_the_model_raise_fails_alone(method: str) -> None:
    asked = prompts(6)
    served = Served()
    for name, prompt in asked.items():
        served.add(name, prompt, SHORT)
    served.add(f"r9-bad-{method}", asked["r0"], SHORT)
    tokens = served.run()
    error = served.ends.pop(f"r9-bad-{method}")
    assert isinstance(error, StageError) and "the model raised ValueError: a fault of the model" in error.message
    tokens.pop(f"r9-bad-{method}", None)
    assert tokens == generated("llama", asked, NUM_TOKENS)
    assert served.num_free == SPEC.num_kv_blocks


def test_a_request_whose_rows_the_model_cannot_take_fails_once_and_alone() -> None:
    asked = prompts(2)
    served = Served()
    edge = streaming(served, "r0-bad-receive", asked["r0"])
    served.add("r1", asked["r1"], SHORT)
    served.step()
    push(edge, "embed", upstream_rows(1))
    served.run()
    assert isinstance(served.ends["r0-bad-receive"], StageError)
    assert served.tokens["r1"] == generated("llama", asked, NUM_TOKENS)["r1"]
    assert served.num_free == SPEC.num_kv_blocks


def test_a_request_whose_numbers_overflow_fails_alone_and_leaves_nothing_in_the_cache() -> None:
    asked = prompts(3)
    served = Served()
    edge = streaming(served, "r0", asked["r0"])
    served.add("r1", asked["r1"], SHORT)
    served.step()
    push(edge, "embed", upstream_rows(1) * np.float32("nan"))
    served.run()
    error = served.ends["r0"]
    assert isinstance(error, StageError) and "no finite logits" in error.message
    served.add("r2", asked["r2"] * 2, SHORT)  # in the blocks that r0 had
    served.run()
    expected = generated("llama", {"r1": asked["r1"], "r2": asked["r2"] * 2}, NUM_TOKENS)
    assert {name: served.tokens[name] for name in expected} == expected


def test_a_seeded_request_draws_the_same_tokens_though_a_mate_makes_the_model_raise() -> None:
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.3, top_k=0, seed=3)
    alone, among = Served(), Served()
    for served in (alone, among):
        served.add("r0", prompts(1)["r0"], sampling)
    among.add("r1-bad-accept", prompts(1)["r0"], sampling)
    assert among.run()["r0"] == alone.run()["r0"]


def test_a_model_that_forgets_an_output_or_does_not_end_fails_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served()
    monkeypatch.setattr(served.model, "accept", lambda batch: [])
    served.add("r0", [1, 2])
    served.run()
    monkeypatch.setattr(served.model, "accept", lambda batch: [StageOutput()])
    served.add("r1", [1, 2], SamplingParams(max_tokens=1, temperature=0.0))
    served.run()
    monkeypatch.setattr(served.model, "accept", lambda batch: None)
    served.add("r2", [1, 2])
    served.run()
    messages = [end.message for end in served.ends.values() if isinstance(end, AntiphonError)]
    assert "made 0 outputs for 1 requests" in messages[0]
    assert "r1: the model goes on after finish_reason=length" in messages[1]
    assert "made a NoneType for 1 requests" in messages[2]


def test_what_can_never_fit_is_refused_at_once_or_when_it_outgrows_the_cache() -> None:
    served = Served(SMALL)
    with pytest.raises(StageError, match=r"needs 65 positions in the KV cache, which holds 64"):
        served.add("long", [1] * 64)
    assert not served.engine.has_work()
    served.add("grows", [1] * 60)
    served.add("fits", [2] * 10, SHORT)
    served.run()
    grown = served.ends["grows"]
    assert isinstance(grown, StageError) and grown.code == "context_length_exceeded"
    assert len(served.tokens["grows"]) == 5
    assert served.tokens["fits"] == generated("llama", {"fits": [2] * 10}, NUM_TOKENS)["fits"]
    assert served.num_free == SMALL.num_kv_blocks


def test_a_request_that_the_model_refuses_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: StageRequest) -> ToyState:
        raise InvalidRequestError("no such voice", param="voice")

    served = Served()
    with monkeypatch.context() as patch:
        patch.setattr(served.model, "open", refuse)
        with pytest.raises(InvalidRequestError):
            served.add("r0", [1, 2])
    served.add("r0", [1, 2], SHORT)
    assert len(served.run()["r0"]) == NUM_TOKENS


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5, 9])
def test_an_abort_at_any_moment_frees_all_blocks(num_steps: int) -> None:
    asked = prompts(6)
    served = Served(replace(SPEC, num_kv_blocks=8, max_num_batched_tokens=20))
    for name, prompt in asked.items():
        served.add(name, prompt, GREEDY)
    for _ in range(num_steps):
        served.step()
    for name in ("r0", "r3", "r5", "unknown"):
        served.engine.abort(name)
    left = {name: asked[name] for name in ("r1", "r2", "r4")}
    assert {name: served.run()[name] for name in left} == generated("llama", left)
    assert set(served.ends) == set(left)
    assert served.num_free == 8
    assert served.engine.statistics().num_running == 0


def test_statistics_count_steps_and_time() -> None:
    served = Served()
    served.add("r0", [1, 2, 3], SHORT)
    served.run()
    counted = served.engine.statistics()
    assert counted.num_steps == NUM_TOKENS
    assert counted.busy_s >= served.engine.model_s > 0
    assert counted.num_tokens == NUM_TOKENS
    assert counted.meter is not None
    assert (counted.meter.batch_sizes.count, counted.meter.batch_sizes.sum) == (NUM_TOKENS, NUM_TOKENS)


def test_statistics_tell_how_much_of_the_kv_cache_is_used_while_a_request_runs() -> None:
    served = Served()
    served.add("r0", [1, 2, 3], SHORT)
    served.engine.step()
    counted = served.engine.statistics()
    assert (counted.num_running, counted.max_running) == (1, SPEC.max_num_seqs)
    assert (counted.num_kv_blocks, counted.num_kv_blocks_used) == (SPEC.num_kv_blocks, 1)
    served.run()
    assert served.engine.statistics().num_kv_blocks_used == 0
