"""A library engine whose client cannot start leaves nothing: no descriptor, no process, no file."""

import os
import threading
from pathlib import Path

import pytest

from antiphon.engine import Engine
from tests.descriptors import open_descriptors
from tests.process.conftest import eventually
from tests.process.relay_server import children

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("runtime_dir")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def put_in_the_way(runtime_dir: Path) -> None:
    """Make a directory where the last socket of the client of the engine that starts now will be."""

    def is_put() -> bool:
        for directory in runtime_dir.glob("antiphon-*"):
            (directory / "engine.0.chunks.sock").mkdir(exist_ok=True)
            return True
        return False

    assert eventually(is_put)


async def test_an_engine_whose_client_cannot_start_leaves_nothing(runtime_dir: Path) -> None:
    before = (open_descriptors(), set(os.listdir("/dev/shm")), set(runtime_dir.iterdir()), set(children(os.getpid())))
    in_the_way = threading.Thread(target=put_in_the_way, args=(runtime_dir,))
    in_the_way.start()
    with pytest.raises(OSError, match=r"engine\.0\.chunks\.sock"):
        async with Engine("sim-relay"):
            pass
    in_the_way.join()
    after = (open_descriptors(), set(os.listdir("/dev/shm")), set(runtime_dir.iterdir()), set(children(os.getpid())))
    assert after == before
