"""Servers with nothing unusual about them, started once for all tests that want one; the settings of hypothesis."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.process.conftest import Server, start_server

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job; children would ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile(
    "antiphon",
    deadline=None,  # how long an example takes is a matter of what else the machine does
    derandomize=True,  # a run finds what the run before has found
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("antiphon")


@pytest.fixture(scope="session")
def voice_server() -> Iterator[Server]:
    """The `voice` pipeline with every default."""
    server = start_server("voice")
    yield server
    assert server.stop() == 0, "the server did not stop cleanly"


@pytest.fixture(scope="session")
def sim_voice_server() -> Iterator[Server]:
    """The `sim-voice` pipeline, for texts up to 300,000 characters (38 MB of audio) and clients that read every 1 s."""
    settings = ("server.client_read_deadline_s=1.0", "server.max_text_chars=300000")
    server = start_server("sim-voice", *(word for setting in settings for word in ("--set", setting)))
    yield server
    assert server.stop() == 0, "the server did not stop cleanly"
