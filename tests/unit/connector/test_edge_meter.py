"""What has been sent on an edge, and how long at least one chunk of it waited."""

from antiphon.connector.edge_meter import EdgeMeter
from antiphon.connector.leases import Lease, Leases


def test_the_wait_is_the_time_between_sightings_of_which_the_first_saw_a_chunk_wait():
    meter = EdgeMeter()
    for is_waiting, now_s in [(False, 1.0), (True, 2.0), (True, 3.0), (False, 4.5), (False, 9.0), (True, 10.0)]:
        meter.note_waiting(is_waiting, now_s)
    assert meter.wait_s == 2.5


def test_chunks_rows_bytes_and_time_add_up():
    meter = EdgeMeter()
    meter.sent(3, 120, 0.5)
    meter.sent(0, 0, 0.25)
    assert (meter.num_chunks, meter.num_rows, meter.num_bytes, meter.send_s) == (2, 3, 120, 0.75)


def test_the_oldest_lease_of_each_edge_is_the_one_granted_first_and_not_ended():
    leases = Leases(1000, 1000)
    leases.grant(Lease("a", "req-1", 1, None, "x->y", 5.0))
    leases.grant(Lease("b", "req-1", 1, None, "x->y", 7.0))
    leases.grant(Lease("b", "req-1", 1, None, "x->z", 8.0))
    assert leases.oldest_s(10.0) == {"x->y": 5.0, "x->z": 2.0}
    leases.reclaim("a")
    assert leases.oldest_s(10.0) == {"x->y": 3.0, "x->z": 2.0}
    leases.reclaim("b")
    assert leases.oldest_s(10.0) == {}
