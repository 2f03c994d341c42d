"""Real servers for tests: `antiphon serve` in a process of its own."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import AnyStr

import pytest

_READY = re.compile(r" is served at (http://[^\s]+)")
_START_TIMEOUT_S = 120.0


@dataclass
class Server:
    """A running `antiphon serve` and everything it has printed on stdout."""

    process: "subprocess.Popen[str]"
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout_s)


def start_server(*arguments: str) -> Server:
    """Start `antiphon serve ARGUMENTS` on a free port and wait until it says that it serves."""
    command = [sys.executable, "-m", "antiphon", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    deadline_s, printed = time.monotonic() + _START_TIMEOUT_S, ""
    while time.monotonic() < deadline_s:
        if select.select([process.stdout], [], [], 0.5)[0]:
            line = process.stdout.readline()
            printed += line
            if found := _READY.search(line):
                return Server(process, found.group(1))
            if not line:
                break
    process.kill()
    raise AssertionError(f"the server did not start (exit code {process.wait()}): {printed}")


@contextmanager
def killed_at_the_end(process: "subprocess.Popen[AnyStr]") -> Iterator["subprocess.Popen[AnyStr]"]:
    """A test that fails does not wait for what it has started."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def eventually(check: Callable[[], bool], timeout_s: float = 15.0) -> bool:
    """True as soon as `check` is; False if it is not in time. What counters say takes a second to arrive."""
    deadline_s = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture(scope="module")
def runtime_dir() -> Iterator[Path]:
    """Where this module's servers keep their run directories; short, because socket paths are."""
    with pytest.MonkeyPatch.context() as patch:
        path = Path(tempfile.mkdtemp(prefix="ap-"))
        patch.setenv("ANTIPHON_RUNTIME_DIR", str(path))
        yield path
        shutil.rmtree(path)
