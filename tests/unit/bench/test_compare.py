import json
from pathlib import Path

import numpy as np
import pytest

from antiphon.bench.compare import Difference, compare, load_measured
from antiphon.errors import ConfigError


def serve_file(path: Path, ttft: list[float], cpu: float = 0.01) -> Path:
    path.write_text(json.dumps({"kind": "serve", "values": {"ttft": ttft}, "per_request": {"cpu_s x": cpu}}))
    return path


def sweep_file(path: Path, repeats: list[list[float]], rate: float = 0.4) -> Path:
    runs = [{"arm": "next", "rate_rps": rate, "run": {"values": {"ttft": values}}} for values in repeats]
    path.write_text(json.dumps({"kind": "sweep", "runs": [*runs, {"arm": "next", "rate_rps": rate, "run": None}]}))
    return path


def differences(a: Path, b: Path) -> dict[tuple[str, str], Difference]:
    return {(each.name, each.statistic): each for each in compare(load_measured(a), load_measured(b))}


def drawn(mean: float, count: int, seed: int) -> list[float]:
    return list(np.random.default_rng(seed).normal(mean, 0.1, count))


def test_a_difference_beyond_the_noise_is_real_and_one_within_it_is_not(tmp_path: Path) -> None:
    a = serve_file(tmp_path / "a", drawn(1.0, 150, 1))
    slower, same = serve_file(tmp_path / "b", drawn(1.2, 150, 2)), serve_file(tmp_path / "c", drawn(1.0, 150, 3))
    found = differences(a, slower)
    assert found["ttft", "mean"].is_real is True and found["ttft", "p99"].is_real is True
    mean = found["ttft", "mean"]
    assert mean.low is not None and mean.high is not None
    assert mean.low < mean.ratio < mean.high and mean.high - mean.low < 0.1
    assert mean.ratio == pytest.approx(1.2, abs=0.05)
    assert differences(a, same)["ttft", "mean"].is_real is False


def test_runs_that_scatter_make_a_wider_interval_than_their_answers_do(tmp_path: Path) -> None:
    scattered = sweep_file(tmp_path / "a", [drawn(1.0, 50, 1), drawn(1.4, 50, 2), drawn(0.8, 50, 3)])
    steady = sweep_file(tmp_path / "b", [drawn(1.15, 50, 4), drawn(1.15, 50, 5), drawn(1.15, 50, 6)])
    found = differences(scattered, steady)["ttft", "mean"]
    assert found.point == "next at 0.4/s"
    assert found.is_real is False and found.high is not None and found.low is not None
    assert found.high - found.low > 0.2


def test_a_single_figure_has_a_ratio_and_no_interval(tmp_path: Path) -> None:
    a, b = serve_file(tmp_path / "a", [1.0, 1.1], 0.01), serve_file(tmp_path / "b", [1.0, 1.1], 0.02)
    found = differences(a, b)
    assert found["cpu_s x", "mean"].ratio == 2.0
    assert found["cpu_s x", "mean"].is_real is None
    assert ("ttft", "p99") not in found  # of two answers


def test_files_without_a_common_point_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing in common"):
        differences(sweep_file(tmp_path / "a", [[1.0]], 0.2), sweep_file(tmp_path / "b", [[1.0]], 0.4))


def test_what_is_no_benchmark_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[1]")
    with pytest.raises(ConfigError, match="bench serve or sweep wrote"):
        load_measured(tmp_path / "a")
