"""Servers of sim-relay, whose processes start in no time: what they answer, which processes and files they have."""

import os
import subprocess
import sys
from pathlib import Path

import httpx

from tests.process.conftest import Server

CHILDREN = [
    "antiphon: api-server/0",
    "antiphon: cleaner",
    "antiphon: decoder/0",
    "antiphon: encoder/0",
    "antiphon: orchestrator",
]
SLOW_TEXT = "slow:" + "This takes its time. " * 8


def children(pid: int) -> dict[int, str]:
    """Process id -> command line of every living child of `pid`."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_text().strip("\0 ").replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def child(server: Server, name: str) -> int:
    """The process id of the server's child called `name`."""
    (pid,) = (pid for pid, title in children(server.process.pid).items() if title == f"antiphon: {name}")
    return pid


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and "antiphon" in cmdline(pid)]


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def shared_files(pids: list[int]) -> set[Path]:
    """The files in /dev/shm that the processes have mapped or open; those of other programs are none of ours."""
    found = set()
    for pid in pids:
        try:
            named = [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
            named += [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        found |= {Path(name) for name in named if name.startswith("/dev/shm/")}
    return found


def run_directory(server: Server) -> Path:
    """Where the server has its files."""
    orchestrator = child(server, "orchestrator")
    pid_files = Path(os.environ["ANTIPHON_RUNTIME_DIR"]).glob("antiphon-*/orchestrator.pid")
    (found,) = (path.parent for path in pid_files if int(path.read_text().split()[0]) == orchestrator)
    return found


def ask(server: Server, text: str) -> httpx.Response:
    body = {"model": "sim-relay", "messages": [{"role": "user", "content": text}]}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


def answer(server: Server, text: str) -> str:
    response = ask(server, text)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


def run_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`antiphon serve` of something that cannot be served."""
    command = [sys.executable, "-m", "antiphon", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
