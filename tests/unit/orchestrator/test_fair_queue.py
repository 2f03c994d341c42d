"""The queue in front of admission: nothing is lost, each client's order is kept, nobody waits for another's crowd."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.messages.control import SubmitRequest
from antiphon.orchestrator.fair_queue import FairQueue
from tests.unit.orchestrator.test_admission import request

STEPS = st.lists(st.tuples(st.sampled_from(["put", "put", "put", "pop", "remove", "drop"]), st.integers(0, 4)))


def put(queue: FairQueue, number: int, client: str) -> SubmitRequest:
    submit = request(f"{client}-{number}", client=client)
    queue.put(submit)
    return submit


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_it_holds_what_was_put_in_and_not_taken_out_in_each_clients_order(steps: list[tuple[str, int]]) -> None:
    queue, lines = FairQueue(), dict[str, list[str]]()
    for number, (step, which) in enumerate(steps):
        held = [name for line in lines.values() for name in line]
        match step:
            case "put":
                lines.setdefault(f"c{which}", []).append(put(queue, number, f"c{which}").request_id)
            case "pop" if held:
                taken = queue.pop()
                assert lines[taken.client].pop(0) == taken.request_id
            case "remove" if held:
                removed = queue.remove(held[which % len(held)])
                assert removed is not None
                lines[removed.client].remove(removed.request_id)
            case "drop" if held:
                assert queue.longest() == max(map(len, lines.values()))
                dropped = queue.pop_newest_of_longest()
                assert len(lines[dropped.client]) == max(map(len, lines.values()))
                assert lines[dropped.client].pop() == dropped.request_id
        expected = sorted(name for line in lines.values() for name in line)
        assert sorted(each.request_id for each in queue) == expected
        assert len(queue) == len(expected)
        assert all(name in queue for name in expected)
        assert all(queue.num_of(client) == len(line) for client, line in lines.items())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=60), st.integers(0, 5))
def test_a_request_waits_for_one_turn_of_each_other_client_for_each_of_its_own_before_it(
    crowd: list[int], num_before: int
) -> None:
    queue = FairQueue()
    for number, which in enumerate(crowd):
        put(queue, number, f"c{which}")
    for number in range(num_before):
        put(queue, number, "modest")
    last = put(queue, num_before, "modest")
    turns: Counter[str] = Counter()
    number = len(crowd)
    while (taken := queue.pop()) is not last:
        turns[taken.client] += 1
        number += 1
        put(queue, number, f"c{number % 5}")  # the crowd goes on growing
    assert all(count <= num_before + 1 for client, count in turns.items() if client != "modest")
