"""The server that all clients talk to."""

import pytest

from tests.process.conftest import Server


@pytest.fixture(scope="session")
def server(voice_server: Server) -> Server:
    """The tests' one `voice` server."""
    return voice_server
