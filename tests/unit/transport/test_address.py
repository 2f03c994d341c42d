"""Run directories: private, named, locked while their server lives, and swept when it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.errors import ConfigError
from antiphon.transport.address import RunDirectory

HOLD = """
import sys
from antiphon.transport.address import RunDirectory
made = RunDirectory.create({!r})
print(made.path, flush=True)
sys.stdin.read()
"""


def test_a_fresh_directory_is_for_this_user_alone_and_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    made = RunDirectory.create(str(tmp_path))
    assert made.path.parent == tmp_path and made.path.name.startswith("antiphon-")
    assert made.path.stat().st_mode & 0o777 == 0o700
    made.file("talker/1", "json").write_text("{}")
    assert made.names("json") == ["talker/1"]
    made.remove()
    made.remove()
    assert list(tmp_path.iterdir()) == []


def test_only_directories_whose_owner_has_been_killed_are_swept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD.format(str(tmp_path))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().strip())
        (theirs / "talker.1.sock").touch()
        (tmp_path / "antiphon-that-is-no-run-directory").mkdir()
        mine = RunDirectory.create(str(tmp_path))
        assert theirs.exists()
        owner.kill()
    other = RunDirectory.create(str(tmp_path))
    assert not theirs.exists()
    assert mine.path.exists()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {mine.path.name, other.path.name, "antiphon-that-is-no-run-directory"}
    mine.remove()
    other.remove()


def test_a_directory_that_was_never_locked_is_swept_once_it_is_old(tmp_path: Path) -> None:
    fresh, old = tmp_path / ".antiphon-fresh", tmp_path / ".antiphon-old"
    for path in (fresh, old):
        path.mkdir()
    os.utime(old, (1_000_000_000, 1_000_000_000))
    RunDirectory.create(str(tmp_path)).remove()
    assert list(tmp_path.iterdir()) == [fresh]


def test_a_parent_that_cannot_be_written_to_is_named_with_the_variable_to_change() -> None:
    with pytest.raises(ConfigError, match=r"cannot make a run directory in /nowhere: .*; set ANTIPHON_RUNTIME_DIR"):
        RunDirectory.create("/nowhere")


def test_an_address_is_a_socket_file_in_the_directory() -> None:
    assert RunDirectory(Path("/run/x")).address("talker/1.0.control") == "ipc:///run/x/talker.1.0.control.sock"


def test_a_socket_path_that_is_too_long_is_named_with_the_variable_to_change(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is too long; set ANTIPHON_RUNTIME_DIR to a shorter directory"):
        RunDirectory(tmp_path / ("a" * 100)).address("talker/1.0.control")
