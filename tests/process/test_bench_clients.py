"""`antiphon bench clients`, small: however some clients behave, the others get whole answers and nothing is left."""

import json
import subprocess
import sys
from pathlib import Path

CROWD = ("--num-clients", "40", "--rounds", "1", "--output-tokens", "20:60", "--seed", "3")
LATE = ("--max-lag", "10")  # on a busy machine


def test_clients_that_vanish_or_read_slowly_cost_nobody_an_answer_and_leave_nothing(tmp_path: Path) -> None:
    out = tmp_path / "clients.json"
    command = [sys.executable, "-m", "antiphon", "bench", "clients", *CROWD, *LATE, "--out", str(out)]
    command += ["--set", "server.api_servers=2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    run = json.loads(out.read_text())
    (both,) = run["rounds"]
    assert (both["alone"]["num_clients"], both["crowded"]["num_clients"]) == (28, 40)
    assert both["alone"]["num_left"] == 0 < both["crowded"]["num_left"] <= 8
    assert both["alone"]["gaps_s"]["n"] > 28 * 10
    assert run["held"] == {} and both["alone"]["failures"] == both["crowded"]["failures"] == []
    grown = {each["process"]: each for each in run["growths"]}
    assert {"api-server/0", "api-server/1", "thinker/0", "orchestrator"} <= grown.keys()
    assert all(each["num_files"] <= 0 for each in grown.values()), grown
    assert "held at rest: nothing" in ended.stdout
