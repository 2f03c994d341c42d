"""One `voice` server for all clients."""

from collections.abc import Iterator

import pytest

from tests.process.conftest import Server, start_server


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    server = start_server("voice")
    yield server
    assert server.stop() == 0, "the server did not stop cleanly"
