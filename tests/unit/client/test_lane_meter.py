"""What an api-server has read of each replica, and how long it lay there."""

from antiphon.client.lane_meter import LaneMeter
from antiphon.messages.client import Addressed, ClientFrame, TextDelta


def frame(num_sent: int, sent_s: float, replica: str = "talker/0", num_outputs: int = 1) -> ClientFrame:
    return ClientFrame(replica, [Addressed("req-1", 0, [TextDelta("a")] * num_outputs)], num_sent, sent_s)


def counted(meter: LaneMeter, name: str) -> dict[str, float]:
    """Replica -> value."""
    counters = [each for each in meter.counters("api-server/0") if each.name == name]
    assert all(dict(each.labels)["process"] == "api-server/0" for each in counters)
    return {dict(each.labels)["replica"]: each.value for each in counters}


def test_what_was_read_is_counted_as_the_replica_has_numbered_it():
    meter = LaneMeter()
    meter.read([frame(7, 1.0), frame(9, 1.0, num_outputs=2), frame(3, 1.0, "code2wav/0")], 2.0)
    assert counted(meter, "client_messages_consumed_total") == {"talker/0": 9, "code2wav/0": 3}
    meter.read([frame(1, 5.0)], 5.0)  # a replica that has started again counts from 0
    assert counted(meter, "client_messages_consumed_total")["talker/0"] == 1
    meter.forget("talker/0")
    assert counted(meter, "client_messages_consumed_total") == {"code2wav/0": 3}


def test_the_largest_queue_and_the_oldest_output_are_of_the_last_two_windows():
    meter = LaneMeter()
    meter.read([frame(3, 1.0, num_outputs=3), frame(5, 1.5, num_outputs=2)], 2.0)
    meter.read([frame(6, 1.9)], 2.0)
    for _ in range(2):
        assert counted(meter, "client_queue_max") == {"talker/0": 5}
        assert counted(meter, "client_oldest_output_s") == {"talker/0": 1.0}
        meter.close_window()
    assert counted(meter, "client_queue_max") == {"talker/0": 0}
    assert counted(meter, "client_oldest_output_s") == {"talker/0": 0.0}
