"""The environment: log level, and the cores and memory that cgroups leave us."""

import os
from pathlib import Path

import pytest

from antiphon import env
from antiphon.errors import ConfigError


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))


@pytest.mark.usefixtures("eight_cores")
def test_without_cgroups_the_affinity_counts(tmp_path: Path) -> None:
    assert env.cpu_count(tmp_path) == 8


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(("cpu_max", "cores"), [("max 100000", 8), ("350000 100000", 3), ("20000 100000", 1)])
def test_a_cgroup_v2_quota_cuts_the_cores(tmp_path: Path, cpu_max: str, cores: int) -> None:
    root = write_tree(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": cpu_max})
    assert env.cpu_count(root) == cores


@pytest.mark.usefixtures("eight_cores")
def test_the_quota_of_an_outer_cgroup_counts_too(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000",
        "sys/fs/cgroup/a/cpu.max": "200000 100000",
    }
    assert env.cpu_count(write_tree(tmp_path, files)) == 2


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("400000", 4)])
def test_a_cgroup_v1_quota_cuts_the_cores(tmp_path: Path, quota: str, cores: int) -> None:
    files = {
        "proc/self/cgroup": "9:name=systemd:/\n3:cpu,cpuacct:/box",
        "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": quota,
        "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
    }
    assert env.cpu_count(write_tree(tmp_path, files)) == cores


def test_the_lowest_memory_limit_counts_and_no_limit_is_none(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a",
        "sys/fs/cgroup/a/memory.max": str(64 << 20),
        "sys/fs/cgroup/memory.max": str(32 << 20),
    }
    assert env.memory_limit_bytes(write_tree(tmp_path, files)) == 32 << 20
    none = {"sys/fs/cgroup/a/memory.max": "max", "sys/fs/cgroup/memory.max": str(1 << 62)}
    assert env.memory_limit_bytes(write_tree(tmp_path, none)) is None


def test_a_log_level_that_does_not_exist_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_LOG_LEVEL", "debug")
    assert env.log_level() == "DEBUG"
    monkeypatch.setenv("ANTIPHON_LOG_LEVEL", "loud")
    with pytest.raises(ConfigError, match="ANTIPHON_LOG_LEVEL is 'LOUD'; use one of DEBUG"):
        env.log_level()


def test_a_default_log_level_does_not_override_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_LOG_LEVEL", "ERROR")
    env.set_default_log_level("WARNING")
    assert env.log_level() == "ERROR"
