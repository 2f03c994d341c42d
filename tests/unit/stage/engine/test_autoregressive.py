"""The autoregressive engine on tiny random networks, held against transformers' generate on the same weights."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from antiphon.messages.params import SamplingParams  # noqa: E402
from tests.unit.stage.engine.toy_transformer import CONFIGS, SPEC, Served, generated, network, prompts  # noqa: E402

LIMITS = {
    "roomy": SPEC,
    "five positions a step": replace(SPEC, max_num_batched_tokens=5),
    "three at once": replace(SPEC, max_num_seqs=3),
    "few blocks": replace(SPEC, num_kv_blocks=6),
    "few blocks, five positions a step": replace(SPEC, num_kv_blocks=6, max_num_batched_tokens=5),
}


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("limits", LIMITS)
def test_greedy_tokens_are_those_of_generate(architecture: str, limits: str) -> None:
    asked = prompts(20)
    served = Served(LIMITS[limits], architecture)
    for name, prompt in asked.items():
        served.add(name, prompt)
    assert served.run() == generated(architecture, asked)
    assert (served.engine.num_preemptions > 0) == ("blocks" in limits)
    assert served.num_free == LIMITS[limits].num_kv_blocks


@pytest.mark.parametrize("count", [1, 33, 200])
def test_any_number_of_concurrent_requests_finish_with_their_own_tokens(count: int) -> None:
    asked = prompts(count, longest=12)
    served = Served()
    for name, prompt in asked.items():
        served.add(name, prompt, SamplingParams(max_tokens=6, temperature=0.0))
    served.step()
    assert served.engine.statistics().num_running == min(count, SPEC.max_num_seqs)
    assert served.engine.statistics().num_waiting == max(0, count - SPEC.max_num_seqs)
    assert served.run() == generated("llama", asked, 6)


def test_requests_that_join_while_others_run_get_the_same_tokens() -> None:
    asked = prompts(12)
    served = Served()
    for name, prompt in asked.items():
        served.add(name, prompt)
        served.step()
    assert served.run() == generated("llama", asked)


@pytest.mark.parametrize("limits", LIMITS)
def test_each_positions_row_is_reported_once_and_is_right(limits: str) -> None:
    asked = prompts(12)
    served = Served(LIMITS[limits])
    for name, prompt in asked.items():
        served.add(name, prompt)
    answers, reference = served.run(), network("llama", "sdpa")
    for name, prompt in asked.items():
        state = served.model.states[name]
        ids = [*prompt, *answers[name]][:-1]  # the last token is never an input
        assert [first for first, _ in state.first_rows] == np.cumsum(
            [0, *(n for _, n in state.first_rows[:-1])]
        ).tolist()
        with torch.no_grad():
            expected = reference.model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
        np.testing.assert_allclose(np.concatenate(state.hidden), expected, atol=2e-5, rtol=1e-4)


def test_a_stop_id_ends_a_sequence_and_ignore_eos_does_not_let_it() -> None:
    prompt = prompts(1)["r0"]
    expected = generated("llama", {"r0": prompt})["r0"]
    stop = expected[5]
    served = Served(stop_ids=frozenset({stop}))
    served.add("stops", prompt)
    served.add("goes on", prompt, SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True))
    tokens = served.run()
    assert tokens == {"stops": expected[: expected.index(stop) + 1], "goes on": expected}
    assert {name: end.finish_reason for name, end in served.ends.items()} == {"stops": "stop", "goes on": "length"}


def test_a_seeded_request_gives_the_same_tokens_alone_and_among_31_others() -> None:
    sampling = SamplingParams(max_tokens=20, temperature=1.2, top_k=0, top_p=0.95, min_p=0.0, seed=5)
    asked = prompts(32)
    alone, among = Served(), Served(replace(SPEC, max_num_seqs=32, num_kv_blocks=60, max_num_batched_tokens=40))
    alone.add("r17", asked["r17"], sampling)
    for name, prompt in asked.items():
        seeded = sampling if name == "r17" else SamplingParams(max_tokens=20, temperature=1.0)
        among.add(name, prompt, seeded)
    tokens = alone.run()["r17"]
    assert among.run()["r17"] == tokens
    assert among.engine.num_preemptions > 0
    assert tokens != generated("llama", {"r17": asked["r17"]}, 20)["r17"]
