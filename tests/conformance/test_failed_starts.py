"""Whatever opens several things, and cannot open one of them, leaves none of the others open."""

import asyncio
import errno
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from antiphon.client.factory import make_engine_client
from antiphon.config.deploy import ConnectorDeploy, DeployConfig
from antiphon.connector.shm import ShmConnector
from antiphon.errors import ConfigError
from antiphon.messages.bootstrap import Bootstrap
from antiphon.orchestrator.process_watch import ProcessWatch
from antiphon.transport.address import RunDirectory
from antiphon.transport.channel import FrameInlet, Outlet
from tests.descriptors import only_more_descriptors, open_descriptors


@pytest.fixture
def directory() -> Iterator[RunDirectory]:
    directory = RunDirectory.create()
    yield directory
    directory.remove()


def left() -> tuple[dict[str, str], set[str]]:
    return open_descriptors(), set(os.listdir("/dev/shm"))


def num_failures(start: Callable[[], object], num_files: Callable[[], int]) -> int:
    """Try `start` with no descriptor, with one, ..., until it succeeds. Gives how often it failed, leaving nothing."""
    before, files_before = left(), num_files()
    for count in itertools.count():
        try:
            with only_more_descriptors(count):
                start()
            return count
        except (OSError, ConfigError) as error:
            cause = error.__cause__ if isinstance(error, ConfigError) else error
            is_expected = isinstance(cause, OSError) and cause.errno == errno.EMFILE
        assert is_expected and (left(), num_files()) == (before, files_before), f"with {count} descriptors"
    raise AssertionError


def files_in(directory: RunDirectory) -> Callable[[], int]:
    return lambda: len(list(directory.path.iterdir()))


def test_an_inlet_that_cannot_listen_leaves_nothing(directory: RunDirectory) -> None:
    with closing(FrameInlet(directory.address("talker/0.control"))) as inlet:
        assert num_failures(inlet.startup, files_in(directory)) == 2  # socket, epoll


def test_an_inlet_in_a_directory_that_is_gone_leaves_nothing(tmp_path: Path) -> None:
    inlet, before = FrameInlet(f"ipc://{tmp_path}/gone/talker.sock"), left()
    with pytest.raises(FileNotFoundError):
        inlet.startup()
    assert left() == before


def test_a_connector_that_cannot_start_leaves_nothing(directory: RunDirectory) -> None:
    with closing(ShmConnector(directory.address("talker/0.chunks"), arena_bytes=1 << 20)) as connector:
        assert num_failures(connector.startup, files_in(directory)) >= 3  # memfd, socket, epoll


def test_an_arena_that_is_too_large_for_the_machine_leaves_nothing(directory: RunDirectory) -> None:
    connector, before = ShmConnector(directory.address("talker/0.chunks"), arena_bytes=1 << 60), left()
    with pytest.raises(OSError, match=r"too large|not allocate|Invalid"):
        connector.startup()
    assert left() == before


def test_a_run_directory_that_cannot_be_locked_is_not_left(tmp_path: Path) -> None:
    made: list[RunDirectory] = []
    failures = num_failures(
        lambda: made.append(RunDirectory.create(str(tmp_path))), lambda: len(list(tmp_path.iterdir()))
    )
    assert failures >= 1
    for directory in made:
        directory.remove()


def test_a_line_that_waits_and_cannot_be_pumped_leaves_nothing_and_is_pumped_later(directory: RunDirectory) -> None:
    with closing(Outlet()) as outlet:
        address = directory.address("nobody/0.control")
        assert num_failures(lambda: outlet.send_frames(address, [b"hello"]), files_in(directory)) == 1
        with closing(FrameInlet(address)) as inlet:
            inlet.startup()
            received: list[list[bytes]] = []
            while not received:
                received = inlet.receive()
            assert received[0] == [b"hello"]


def test_a_watch_that_cannot_take_a_process_leaves_nothing() -> None:
    with closing(ProcessWatch()) as watch:
        assert num_failures(lambda: watch.watch("talker/0", os.getpid()), lambda: 0) == 1


def test_an_engine_client_that_cannot_start_leaves_nothing_and_can_start_later(directory: RunDirectory) -> None:
    client = make_engine_client(
        Bootstrap(
            name="api-server/0",
            pipeline="sim-relay",
            config=DeployConfig(connector=ConnectorDeploy(arena_mib=1)),
            run_directory=str(directory.path),
            orchestrator_address=directory.address("orchestrator.control"),
            control_address=directory.address("api-server/0.control"),
            connector_address=directory.address("api-server/0.chunks"),
            client_address=directory.address("api-server/0.client"),
        )
    )

    async def run() -> int:
        before = left()
        for count in itertools.count():
            try:
                with only_more_descriptors(count):
                    await client.startup()
                break
            except OSError as error:
                is_expected = error.errno == errno.EMFILE
            assert is_expected and left() == before, f"with {count} descriptors"
            assert not list(directory.path.glob("*.sock"))
        await client.close()
        assert left() == before
        return count

    assert asyncio.run(run()) >= 7  # three lanes of a socket and an epoll each, and the arena
