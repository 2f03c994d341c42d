"""What antiphon reads from its surroundings: all its environment variables, and how much of the machine it may use.

In: the process's environment, affinity and cgroups. Out: typed values. Does not know: what they are for.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from antiphon.errors import ConfigError

_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_ROOT = Path("/")
API_KEY = "ANTIPHON_API_KEY"
"""The one variable that no child of the launcher inherits: see `without_secrets`."""


def log_level() -> str:
    """ANTIPHON_LOG_LEVEL: DEBUG, INFO (default), WARNING or ERROR; ConfigError for anything else."""
    level = os.environ.get("ANTIPHON_LOG_LEVEL", "INFO").upper()
    if level not in _LOG_LEVELS:
        raise ConfigError([f"ANTIPHON_LOG_LEVEL is {level!r}; use one of {', '.join(_LOG_LEVELS)}"])
    return level


def runtime_dir() -> str | None:
    """ANTIPHON_RUNTIME_DIR: where the private run directory is made; default the system's temporary directory."""
    return os.environ.get("ANTIPHON_RUNTIME_DIR") or None


def orch_monitor_path() -> str | None:
    """ANTIPHON_ORCH_MONITOR_PATH: the file of the orchestrator's monitor; default a name with the time."""
    return os.environ.get("ANTIPHON_ORCH_MONITOR_PATH") or None


def api_key() -> str | None:
    """ANTIPHON_API_KEY: a key that `serve` asks its clients for, and that `bench` sends; None if it is not set."""
    return os.environ.get(API_KEY)


def without_secrets() -> dict[str, str]:
    """This process's environment without ANTIPHON_API_KEY: for children, which `ps e` shows with theirs."""
    return {name: value for name, value in os.environ.items() if name != API_KEY}


def set_default_log_level(level: str) -> None:
    """Make `level` the one that this process and its children use, unless the user has set another."""
    os.environ.setdefault("ANTIPHON_LOG_LEVEL", level)


def cpu_count(root: Path = _ROOT) -> int:
    """Whole cores that this process may use: its affinity, cut by the CPU quota of its cgroups, at least 1."""
    cores = float(len(os.sched_getaffinity(0)))
    for folder in _cgroup_folders("cpu", root):
        quota, _, period = _read(folder / "cpu.max").partition(" ")  # cgroup v2: "max 100000" or "150000 100000"
        if not period:  # cgroup v1: two files, quota -1 = none
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():
            cores = min(cores, int(quota) / int(period))
    return max(1, int(cores))


def memory_limit_bytes(root: Path = _ROOT) -> int | None:
    """The lowest memory limit of this process's cgroups; None if they set none that is below the machine's memory."""
    limits = [
        int(limit)
        for folder in _cgroup_folders("memory", root)
        for limit in (_read(folder / "memory.max"), _read(folder / "memory.limit_in_bytes"))
        if limit.isdigit()
    ]
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((limit for limit in limits if limit < machine_bytes), default=None)


def _cgroup_folders(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's cgroups for `controller`, from its own up to the hierarchy's root, v1 and v2."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        folder = top / path.strip("/")
        yield folder
        yield from (parent for parent in folder.parents if parent.is_relative_to(top))


def _read(path: Path) -> str:
    """The file's text without its last newline; "" where this machine has no such file."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
