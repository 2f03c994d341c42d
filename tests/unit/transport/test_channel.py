"""Channels: what a peer does not read is bounded on both sides, and said."""

import os
import signal
import threading
import time

import msgspec

from antiphon.messages import codec
from antiphon.messages.control import AbortRequest
from antiphon.transport.address import RunDirectory
from antiphon.transport.channel import ChannelFullError, Inlet, Outlet, Poller

MESSAGE = AbortRequest("req-1", "x" * 60_000)
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
    inlet = Inlet(directory.address("orchestrator"), codec.TO_ORCHESTRATOR, max_queued=20)
    outlet = Outlet(max_queued=30)
    inlet.startup()
    num_sent = num_sent_until_full(outlet, inlet.address)
    assert 30 < num_sent <= 20 + 30 + KERNEL_BYTES // len(msgspec.msgpack.encode(MESSAGE))
    num_received = 0
    while num_received < num_sent:
        for message in inlet.receive():
            assert message == MESSAGE
            num_received += 1
    outlet.send(inlet.address, MESSAGE)
    inlet.close()
    outlet.close()
    directory.remove()


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
