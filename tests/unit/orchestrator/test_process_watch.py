"""ProcessWatch over real processes."""

import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.orchestrator.process_watch import EndedProcess, ProcessWatch

PATIENCE_S = 10.0


@pytest.fixture
def watch() -> Iterator[ProcessWatch]:
    watch = ProcessWatch()
    yield watch
    watch.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def readable(watch: ProcessWatch, patience_s: float = PATIENCE_S) -> bool:
    return bool(select.select([watch.fileno()], [], [], patience_s)[0])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_the_end_of_a_process_is_seen_once_however_it_came(watch, sleeper, number) -> None:
    assert watch.watch("talker/0", sleeper.pid)
    assert not readable(watch, 0) and watch.ended() == []
    sleeper.send_signal(number)
    assert readable(watch)
    assert watch.ended() == [EndedProcess("talker/0", sleeper.pid, number.name)]
    assert not readable(watch, 0) and watch.ended() == []


@pytest.mark.parametrize(("script", "how"), [("exit 3", "exit code 3"), ("kill -40 $$; sleep 60", "signal 40")])
def test_how_a_process_has_ended_is_known_before_its_parent_asks(watch, script: str, how: str) -> None:
    with subprocess.Popen(["sh", "-c", f"read _; {script}"], stdin=subprocess.PIPE) as process:
        watch.watch("talker/0", process.pid)
        assert process.stdin is not None
        process.stdin.close()
        assert readable(watch)
        assert [each.how for each in watch.ended()] == [how]


def test_how_a_process_has_ended_is_not_known_after_its_parent_has_asked(watch, sleeper) -> None:
    watch.watch("talker/0", sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert [each.how for each in watch.ended()] == ["its process has ended"]


def test_a_process_that_has_ended_cannot_be_watched(watch) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert not watch.watch("talker/0", process.pid)


def test_kill_ends_the_process_of_that_name_even_if_it_is_stopped(watch, sleeper) -> None:
    watch.watch("talker/0", sleeper.pid)
    sleeper.send_signal(signal.SIGSTOP)
    watch.kill("talker/1")
    watch.kill("talker/0")
    assert sleeper.wait(PATIENCE_S) == -signal.SIGKILL


def test_the_sockets_of_a_process_that_has_ended_are_removed(watch, tmp_path: Path) -> None:
    path = tmp_path / "talker.0.0.control.sock"
    path.touch()
    for _ in range(2):  # a launcher that starts the next one may have removed them
        watch.remove_sockets(f"ipc://{path}", f"ipc://{tmp_path}/talker.0.0.chunks.sock")
    assert list(tmp_path.iterdir()) == []
