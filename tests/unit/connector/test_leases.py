"""The credit accounting that connectors share."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.connector.leases import Credit, Lease, Leases


def test_a_credit_ends_only_leases_that_its_sender_holds() -> None:
    leases = Leases(1000, 1000)
    mine = leases.grant(Lease("a", "req-1", 100, 0))
    other = leases.grant(Lease("b", "req-1", 200, None))
    assert leases.take_in(Credit("a", (other, mine, mine, 12345))) == [Lease("a", "req-1", 100, 0)]
    assert (leases.used_bytes, leases.num_held("req-1"), len(leases)) == (200, 1, 1)


def test_reclaim_ends_what_one_peer_holds() -> None:
    leases = Leases(1000, 1000)
    leases.grant(Lease("a", "req-1", 100, None))
    leases.grant(Lease("b", "req-1", 200, None))
    leases.grant(Lease("a", "req-2", 300, 64))
    assert [lease.num_bytes for lease in leases.reclaim("a")] == [100, 300]
    assert (leases.num_held("req-1"), leases.num_held("req-2")) == (1, 0)
    assert (leases.used_bytes, leases.high_water_bytes) == (200, 600)


def test_a_request_has_its_window_and_more_only_of_the_first_half_to_the_last_byte() -> None:
    leases = Leases(100, 20)
    assert leases.fits("req-1", 50)
    assert not leases.fits("req-1", 51)
    leases.grant(Lease("a", "req-1", 50, None))
    assert not leases.fits("req-1", 1)
    assert leases.fits("req-2", 20)
    assert not leases.fits("req-2", 21)
    leases.grant(Lease("a", "req-2", 20, None))
    leases.grant(Lease("a", "req-3", 20, None))
    assert leases.fits("req-4", 10)
    assert not leases.fits("req-4", 11)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 40)), max_size=200))
def test_every_request_has_room_for_its_window_whatever_the_others_have_taken_and_kept(
    asked: list[tuple[int, int]],
) -> None:
    """Eight requests, one of which goes on: it holds nothing now."""
    leases = Leases(400, 400 // (2 * 8))
    for request, num_bytes in asked:
        if request and leases.fits(f"req-{request}", num_bytes):
            leases.grant(Lease("a", f"req-{request}", num_bytes, None))
    assert leases.used_bytes <= 400
    assert leases.fits("req-0", 25)


def test_ids_of_two_producers_do_not_overlap() -> None:
    first, second = Leases(100, 100), Leases(100, 100)
    lease = Lease("a", "req-1", 1, None)
    assert not {first.grant(lease) for _ in range(20)} & {second.grant(lease) for _ in range(20)}
