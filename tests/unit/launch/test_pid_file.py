"""Pid files: the process that was meant is found, and never another one."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from antiphon.config.deploy import DeployConfig
from antiphon.launch.child import Child, Module, wait_any
from antiphon.launch.pid_file import find_process, living_names, write_pid_file
from antiphon.messages.bootstrap import Bootstrap
from antiphon.transport.address import RunDirectory
from tests.descriptors import numbers_from


@pytest.fixture
def directory() -> Iterator[RunDirectory]:
    made = RunDirectory.create()
    yield made
    made.remove()


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_process_is_found_signalled_and_waited_for(
    directory: RunDirectory, sleeper: "subprocess.Popen[bytes]"
) -> None:
    write_pid_file(directory, "talker/1", sleeper.pid)
    assert living_names(directory) == ["talker/1"]
    found = find_process(directory, "talker/1")
    assert found is not None and found.pid == sleeper.pid
    assert not found.wait(0.05)
    found.signal(signal.SIGTERM)
    assert found.wait(10.0)
    found.signal(signal.SIGTERM)  # to a process that has ended, and is not waited for by its parent: nothing happens
    found.close()
    assert find_process(directory, "talker/1") is None
    assert living_names(directory) == []
    assert sleeper.wait() == -signal.SIGTERM


def test_a_process_is_waited_for_where_more_than_a_thousand_files_are_open(
    directory: RunDirectory, sleeper: "subprocess.Popen[bytes]"
) -> None:
    write_pid_file(directory, "talker/1", sleeper.pid)
    with numbers_from(1_030):
        found = find_process(directory, "talker/1")
        assert found is not None and found.pidfd >= 1_024
        assert not found.wait(0.0)
        sleeper.kill()
        assert found.wait(10.0)
        found.close()


def test_the_status_of_a_child_is_read_where_more_than_a_thousand_files_are_open(directory: RunDirectory) -> None:
    server = Bootstrap(
        name="launcher",
        pipeline="sim-relay",
        config=DeployConfig(),
        run_directory=str(directory.path),
        orchestrator_address=directory.address("orchestrator.control"),
        unhurried_address=directory.address("orchestrator.unhurried"),
        control_address="",
        working_directory="/",
    )
    child = Child(Module.STAGE, "encoder/0", "/bin/true")
    with numbers_from(1_030):
        child.start(server)
        assert child.status_fd >= 1_024
        assert wait_any([child], 10.0) == [child]
        assert "ended before it was ready" in child.read_status()
        child.close()


def test_another_process_that_has_got_the_number_is_not_taken_for_it(
    directory: RunDirectory, sleeper: "subprocess.Popen[bytes]"
) -> None:
    write_pid_file(directory, "talker/1", os.getpid())
    path = directory.file("talker/1", "pid")
    path.write_text(path.read_text().replace(str(os.getpid()), str(sleeper.pid), 1))
    assert find_process(directory, "talker/1") is None


@pytest.mark.parametrize("content", ["", "12", "a b", "999999999 5"])
def test_what_is_no_pid_file_is_nobodys(directory: RunDirectory, content: str) -> None:
    directory.file("talker/1", "pid").write_text(content)
    assert find_process(directory, "talker/1") is None
    assert find_process(directory, "talker/2") is None
