"""The credit accounting that connectors share."""

from antiphon.connector.leases import Credit, Lease, Leases


def test_a_credit_ends_only_leases_that_its_sender_holds() -> None:
    leases = Leases(1000)
    mine = leases.grant(Lease("a", "req-1", 100, 0))
    other = leases.grant(Lease("b", "req-1", 200, None))
    assert leases.take_in(Credit("a", (other, mine, mine, 12345))) == [Lease("a", "req-1", 100, 0)]
    assert (leases.used_bytes, leases.num_held("req-1"), len(leases)) == (200, 1, 1)


def test_reclaim_ends_what_one_peer_holds() -> None:
    leases = Leases(1000)
    leases.grant(Lease("a", "req-1", 100, None))
    leases.grant(Lease("b", "req-1", 200, None))
    leases.grant(Lease("a", "req-2", 300, 64))
    assert [lease.num_bytes for lease in leases.reclaim("a")] == [100, 300]
    assert (leases.num_held("req-1"), leases.num_held("req-2")) == (1, 0)
    assert (leases.used_bytes, leases.high_water_bytes) == (200, 600)


def test_the_limit_includes_its_last_byte() -> None:
    leases = Leases(100)
    leases.grant(Lease("a", "req-1", 60, None))
    assert leases.fits(40)
    assert not leases.fits(41)


def test_ids_of_two_producers_do_not_overlap() -> None:
    first, second = Leases(100), Leases(100)
    lease = Lease("a", "req-1", 1, None)
    assert not {first.grant(lease) for _ in range(20)} & {second.grant(lease) for _ in range(20)}
