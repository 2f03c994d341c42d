"""Whatever opens several things, and cannot open one of them, leaves none of the others open."""

import asyncio
import errno
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from antiphon.client.factory import make_engine_client
from antiphon.config.deploy import ConnectorDeploy, DeployConfig
from antiphon.connector.shm import ShmConnector
from antiphon.errors import ConfigError, StageError
from antiphon.messages.bootstrap import Bootstrap
from antiphon.messages.interstage import ChunkFlag, ChunkForm, ChunkHeader
from antiphon.orchestrator.process_watch import ProcessWatch
from antiphon.transport.address import RunDirectory
from antiphon.transport.channel import FrameInlet, NoDescriptorError, Outlet
from tests.descriptors import only_more_descriptors, open_descriptors


@pytest.fixture
def directory() -> Iterator[RunDirectory]:
    directory = RunDirectory.create()
    yield directory
    directory.remove()


def num_failures(start: Callable[[], object], num_files: Callable[[], int]) -> int:
    """Try `start` with no descriptor, with one, ..., until it succeeds. Gives how often it failed, leaving nothing."""
    before, files_before = open_descriptors(), num_files()
    for count in itertools.count():
        try:
            with only_more_descriptors(count):
                start()
            return count
        except (OSError, ConfigError) as error:
            cause = error.__cause__ if isinstance(error, ConfigError) else error
            is_expected = isinstance(cause, OSError) and cause.errno == errno.EMFILE
        assert is_expected and (open_descriptors(), num_files()) == (before, files_before), f"with {count} descriptors"
    raise AssertionError


def files_in(directory: RunDirectory) -> Callable[[], int]:
    return lambda: len(list(directory.path.iterdir()))


def test_an_inlet_that_cannot_listen_leaves_nothing(directory: RunDirectory) -> None:
    with closing(FrameInlet(directory.address("talker/0.control"))) as inlet:
        assert num_failures(inlet.startup, files_in(directory)) == 2  # socket, epoll


def test_an_inlet_in_a_directory_that_is_gone_leaves_nothing(tmp_path: Path) -> None:
    inlet, before = FrameInlet(f"ipc://{tmp_path}/gone/talker.sock"), open_descriptors()
    with pytest.raises(FileNotFoundError):
        inlet.startup()
    assert open_descriptors() == before


def test_a_connector_that_cannot_start_leaves_nothing(directory: RunDirectory) -> None:
    with closing(ShmConnector(directory.address("talker/0.chunks"), arena_bytes=1 << 20)) as connector:
        assert num_failures(connector.startup, files_in(directory)) >= 3  # memfd, socket, epoll


def test_an_arena_that_is_too_large_for_the_machine_leaves_nothing(directory: RunDirectory) -> None:
    connector, before = ShmConnector(directory.address("talker/0.chunks"), arena_bytes=1 << 60), open_descriptors()
    with pytest.raises(OSError, match=r"too large|not allocate|Invalid"):
        connector.startup()
    assert open_descriptors() == before


def test_a_run_directory_that_cannot_be_locked_is_not_left(tmp_path: Path) -> None:
    made: list[RunDirectory] = []
    failures = num_failures(
        lambda: made.append(RunDirectory.create(str(tmp_path))), lambda: len(list(tmp_path.iterdir()))
    )
    assert failures >= 1
    for directory in made:
        directory.remove()


def test_what_is_sent_without_a_descriptor_waits_for_one_and_who_asks_before_is_told(directory: RunDirectory) -> None:
    with closing(FrameInlet(directory.address("talker/0.control"))) as inlet, closing(Outlet()) as outlet:
        inlet.startup()
        with only_more_descriptors(0):
            with pytest.raises(NoDescriptorError, match=r"control\.sock: this process may have \d+ files open"):
                outlet.reach(inlet.address)
            outlet.send_frames(inlet.address, [b"hello"])
            assert inlet.receive() == []
        assert outlet.counters.num_unreached == 1
        received: list[list[bytes]] = []
        while not received:
            received = inlet.receive()
        assert received == [[b"hello"]]
        outlet.reach(inlet.address)


@contextmanager
def thinker_and_talker(directory: RunDirectory) -> Iterator[tuple[ShmConnector, ShmConnector]]:
    """The connectors of two processes that have not met."""
    with (
        closing(ShmConnector(directory.address("thinker/0.chunks"), arena_bytes=1 << 20)) as thinker,
        closing(ShmConnector(directory.address("talker/0.chunks"), arena_bytes=1 << 20)) as talker,
    ):
        thinker.startup()
        talker.startup()
        yield thinker, talker


def test_a_chunk_for_a_consumer_that_cannot_be_reached_fails_its_request_and_that_is_told_later(
    directory: RunDirectory,
) -> None:
    form = ChunkForm("req-1", 0, "thinker->talker", "thinker/0", ())
    with thinker_and_talker(directory) as (thinker, talker):
        with only_more_descriptors(0):
            with pytest.raises(StageError, match=r"chunk 0 of req-1 on thinker->talker from thinker/0: no connection"):
                thinker.put(talker.address, ChunkHeader(form, 0), (), {})
            assert thinker.put(talker.address, ChunkHeader(form, 0, flags=int(ChunkFlag.ERROR)), (), {})
            thinker.flush()
        assert thinker.statistics().num_unreached == 1
        chunk = None
        while chunk is None:
            chunk = talker.get()
        assert chunk.header.flags == ChunkFlag.ERROR


def test_a_failure_that_waits_for_a_descriptor_lets_no_other_request_wait_for_one(directory: RunDirectory) -> None:
    forms = [ChunkForm(f"req-{number}", 0, "thinker->talker", "thinker/0", ()) for number in range(3)]
    with thinker_and_talker(directory) as (thinker, talker):
        with only_more_descriptors(0):
            for form in forms[:2]:
                with pytest.raises(StageError, match=r"no connection"):
                    thinker.put(talker.address, ChunkHeader(form, 0), (), {})
                assert thinker.put(talker.address, ChunkHeader(form, 0, flags=int(ChunkFlag.ERROR)), (), {})
                thinker.flush()
        assert thinker.put(talker.address, ChunkHeader(forms[2], 0, flags=int(ChunkFlag.END)), (), {})
        thinker.flush()
        got: list[tuple[str, int]] = []
        while len(got) < len(forms):
            chunk = talker.get()
            if chunk is not None:
                got.append((chunk.header.form.request_id, chunk.header.flags))
        assert got == [("req-0", ChunkFlag.ERROR), ("req-1", ChunkFlag.ERROR), ("req-2", ChunkFlag.END)]


def test_a_process_that_cannot_be_watched_does_not_join(caplog: pytest.LogCaptureFixture) -> None:
    with closing(ProcessWatch()) as watch:
        before = open_descriptors()
        with only_more_descriptors(0):
            assert not watch.watch("talker/0", os.getpid())
        assert open_descriptors() == before and "talker/0 cannot be watched" in caplog.text
        assert watch.watch("talker/0", os.getpid())


def test_an_engine_client_that_cannot_start_leaves_nothing_and_can_start_later(directory: RunDirectory) -> None:
    client = make_engine_client(
        Bootstrap(
            name="api-server/0",
            pipeline="sim-relay",
            config=DeployConfig(connector=ConnectorDeploy(arena_mib=1)),
            run_directory=str(directory.path),
            orchestrator_address=directory.address("orchestrator.control"),
            control_address=directory.address("api-server/0.control"),
            unhurried_address=directory.address("orchestrator.unhurried"),
            connector_address=directory.address("api-server/0.chunks"),
            client_address=directory.address("api-server/0.client"),
        )
    )

    async def run() -> int:
        before = open_descriptors()
        for count in itertools.count():
            try:
                with only_more_descriptors(count):
                    await client.startup()
                break
            except OSError as error:
                is_expected = error.errno == errno.EMFILE
            assert is_expected and open_descriptors() == before, f"with {count} descriptors"
            assert not list(directory.path.glob("*.sock"))
        await client.close()
        assert open_descriptors() == before
        return count

    assert asyncio.run(run()) >= 7  # three lanes of a socket and an epoll each, and the arena
