"""Channels: what a peer does not read is bounded on both sides, and said."""

import os
import resource
import signal
import socket
import threading
import time
from pathlib import Path

import msgspec
import pytest

from antiphon.messages import codec
from antiphon.messages.control import AbortRequest
from antiphon.transport.address import RunDirectory
from antiphon.transport.channel import ChannelFullError, FrameInlet, GatheringOutlet, Inlet, Outlet, Poller
from antiphon.transport.framing import packed

MESSAGE = AbortRequest("req-1", "x" * 60_000)
PATIENCE_S = 20.0
KERNEL_BYTES = 1 << 20
"""More than a Unix socket's buffers hold."""


def num_sent_until_full(outlet: Outlet, address: str) -> int:
    """How many messages it takes until none has left for a while."""
    num_sent, gives_up_s = 0, time.monotonic() + 0.3
    while time.monotonic() < gives_up_s and num_sent < 1000:
        try:
            outlet.send(address, MESSAGE)
            num_sent, gives_up_s = num_sent + 1, time.monotonic() + 0.3
        except ChannelFullError:
            time.sleep(0.01)
    return num_sent


def test_a_peer_that_does_not_read_has_bounded_messages_waiting_and_loses_none_of_them() -> None:
    directory = RunDirectory.create()
    inlet = Inlet(directory.address("orchestrator"), codec.TO_ORCHESTRATOR)
    outlet = Outlet(max_queued=30)
    inlet.startup()
    num_sent = num_sent_until_full(outlet, inlet.address)
    assert 30 < num_sent <= 30 + KERNEL_BYTES // len(msgspec.msgpack.encode(MESSAGE))
    num_received = 0
    while num_received < num_sent:
        for message in inlet.receive():
            assert message == MESSAGE
            num_received += 1
    outlet.send(inlet.address, MESSAGE)
    inlet.close()
    outlet.close()
    directory.remove()


def test_the_bytes_that_wait_for_a_peer_that_does_not_read_are_bounded_but_not_the_size_of_one_message(
    tmp_path: Path,
) -> None:
    inlet, outlet = FrameInlet(f"ipc://{tmp_path}/slow"), Outlet(max_queued_bytes=10_000)
    for number in range(3):
        outlet.send_frames(inlet.address, [bytes([number]) * 4_000])
    for size in (4_000, 0):
        with pytest.raises(ChannelFullError, match="3 messages of 12024 bytes wait"):
            outlet.send_frames(inlet.address, [bytes(size)])
    inlet.startup()
    assert receive(inlet, 3) == [[bytes([number]) * 4_000] for number in range(3)]
    large = b"x" * (8 << 20)
    outlet.send_frames(inlet.address, [large])
    with pytest.raises(
        ChannelFullError, match="1 messages of 8388616 bytes wait"
    ):  # most of it: the first counts whole
        outlet.send_frames(inlet.address, [b"y"])
    assert receive(inlet, 1) == [[large]]
    outlet.send_frames(inlet.address, [b"z"])
    assert receive(inlet, 1) == [[b"z"]], "what has left does not count"
    outlet.close()
    inlet.close()


def receive(inlet: FrameInlet, num_messages: int) -> list[list[bytes]]:
    """Wait for so many messages."""
    poller, received = Poller(), list[list[bytes]]()
    poller.register(inlet)
    while len(received) < num_messages:
        assert poller.wait(PATIENCE_S)
        received += inlet.receive()
    return received


def test_messages_to_a_peer_that_does_not_listen_yet_arrive_when_it_does_and_in_order(tmp_path: Path) -> None:
    inlet, outlet = FrameInlet(f"ipc://{tmp_path}/late"), Outlet()
    for number in range(200):
        outlet.send_frames(inlet.address, [b"%d" % number])
    inlet.startup()
    outlet.send_frames(inlet.address, [b"200"])
    assert receive(inlet, 201) == [[b"%d" % number] for number in range(201)]
    outlet.close()
    inlet.close()
    assert list(tmp_path.iterdir()) == []


def test_frames_larger_than_any_buffer_arrive_in_order_with_what_is_sent_meanwhile(tmp_path: Path) -> None:
    inlet, outlet = FrameInlet(f"ipc://{tmp_path}/large"), Outlet()
    inlet.startup()
    frames = [[bytes([number]) * (3 << 20), b"beside"] if number % 2 else [b"small"] for number in range(8)]
    for each in frames:
        outlet.send_frames(inlet.address, each)
    assert receive(inlet, len(frames)) == frames
    outlet.close()
    inlet.close()


def test_what_waits_when_an_outlet_closes_still_leaves_if_the_peer_reads(tmp_path: Path) -> None:
    inlet, outlet = FrameInlet(f"ipc://{tmp_path}/closing"), Outlet()
    inlet.startup()
    for _ in range(40):
        outlet.send_frames(inlet.address, [b"x" * 60_000])
    closing = threading.Thread(target=outlet.close)
    closing.start()
    assert len(receive(inlet, 40)) == 40
    closing.join()
    inlet.close()


def test_a_peer_that_sends_more_than_is_allowed_is_cut_off_and_others_are_heard(tmp_path: Path) -> None:
    inlet, bad, good = FrameInlet(f"ipc://{tmp_path}/small", max_message_bytes=100), Outlet(), Outlet()
    inlet.startup()
    bad.send_frames(inlet.address, [b"x" * 101])
    good.send_frames(inlet.address, [b"hello"])
    assert receive(inlet, 1) == [[b"hello"]]
    bad.send_frames(inlet.address, [b"lost with the connection, or on a new one"])
    good.send_frames(inlet.address, [b"again"])
    assert [b"again"] in receive(inlet, 1) + inlet.receive()
    for each in (bad, good, inlet):
        each.close()


def test_a_peer_that_was_forgotten_and_one_that_has_ended_hold_up_nobody(tmp_path: Path) -> None:
    gone, here, outlet = FrameInlet(f"ipc://{tmp_path}/gone"), FrameInlet(f"ipc://{tmp_path}/here"), Outlet()
    gone.startup()
    here.startup()
    outlet.send_frames(gone.address, [b"unread"])
    gone.close()
    outlet.send_frames(gone.address, [b"to nobody"])
    outlet.send_frames(here.address, [b"hello"])
    assert receive(here, 1) == [[b"hello"]]
    outlet.forget(gone.address)
    gone.startup()
    outlet.send_frames(gone.address, [b"to the next one there"])
    assert receive(gone, 1) == [[b"to the next one there"]]
    for each in (outlet, gone, here):
        each.close()


def test_a_message_cut_off_by_the_end_of_its_reader_is_lost_and_the_next_ones_are_whole(tmp_path: Path) -> None:
    inlet, outlet = FrameInlet(f"ipc://{tmp_path}/cut"), Outlet()
    with socket.socket(socket.AF_UNIX) as first_reader:
        first_reader.bind(f"{tmp_path}/cut")
        first_reader.listen()
        outlet.send_frames(inlet.address, [b"x" * (3 << 20)])
        outlet.send_frames(inlet.address, [b"behind it"])
        peer, _ = first_reader.accept()
        assert peer.recv(100)
        peer.close()
    inlet.startup()
    outlet.send_frames(inlet.address, [b"after"])
    assert receive(inlet, 2) == [[b"behind it"], [b"after"]]
    outlet.close()
    inlet.close()


def test_a_peer_that_ends_in_the_middle_of_a_message_is_forgotten_and_others_are_heard(tmp_path: Path) -> None:
    inlet, good = FrameInlet(f"ipc://{tmp_path}/halved"), Outlet()
    inlet.startup()
    with socket.socket(socket.AF_UNIX) as bad:
        bad.connect(f"{tmp_path}/halved")
        bad.sendall(packed([b"whole"]) + packed([b"x" * 100])[:50])
        assert receive(inlet, 1) == [[b"whole"]]
    good.send_frames(inlet.address, [b"hello"])
    assert receive(inlet, 1) == [[b"hello"]]
    good.close()
    inlet.close()


def test_a_gathering_outlet_sends_when_it_is_flushed_and_keeps_the_order(tmp_path: Path) -> None:
    inlet, outlet = FrameInlet(f"ipc://{tmp_path}/gathered"), GatheringOutlet(max_queued=3)
    inlet.startup()
    for number in range(3):
        outlet.send_frames(inlet.address, [b"%d" % number])
    assert inlet.receive() == []
    outlet.flush()
    outlet.send_frames(inlet.address, [b"3"])
    outlet.close()
    assert receive(inlet, 4) == [[b"%d" % number] for number in range(4)]
    inlet.close()


def test_a_gathering_outlet_can_send_to_one_peer_before_the_others(tmp_path: Path) -> None:
    first, second = FrameInlet(f"ipc://{tmp_path}/first"), FrameInlet(f"ipc://{tmp_path}/second")
    outlet = GatheringOutlet()
    for inlet in (first, second):
        inlet.startup()
        outlet.send_frames(inlet.address, (b"told",))
    outlet.flush_to(second.address)
    assert (first.receive(), second.receive()) == ([], [[b"told"]])
    outlet.flush()
    assert (first.receive(), second.receive()) == ([[b"told"]], [])
    for owner in (first, second, outlet):
        owner.close()


def test_a_signal_ends_a_wait_at_once() -> None:
    poller, heard = Poller(), []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: heard.append(number))
    try:
        poller.wake_on_signals()
        for _ in range(2):
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            assert poller.wait(60.0)
            timer.join()
        assert not poller.wait(0.0) and len(heard) == 2
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGUSR1, before)


def test_a_peer_for_whom_there_is_no_descriptor_is_let_in_when_there_is_one_and_holds_up_nobody(tmp_path: Path) -> None:
    inlet, early, late = FrameInlet(f"ipc://{tmp_path}/crowded"), Outlet(), Outlet()
    inlet.startup()
    early.send_frames(inlet.address, [b"early"])
    assert receive(inlet, 1) == [[b"early"]]
    late.send_frames(inlet.address, [b"late"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free_fd = os.open(os.devnull, os.O_RDONLY)
    os.close(free_fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free_fd, hard))
    try:
        assert inlet.receive() == []
        early.send_frames(inlet.address, [b"meanwhile"])
        assert receive(inlet, 1) == [[b"meanwhile"]]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    received, gives_up_s = list[list[bytes]](), time.monotonic() + PATIENCE_S
    while not received and time.monotonic() < gives_up_s:
        received = inlet.receive()
        time.sleep(0.01)
    assert received == [[b"late"]]
    for outlet in (early, late):
        outlet.close()
    inlet.close()
