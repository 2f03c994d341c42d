"""A real server against its own OpenAPI document: hundreds of requests that schemathesis makes of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.process.conftest import Server
from tests.process.metrics_page import metric

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
TIMEOUT_S = 240
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def answers(server: Server) -> dict[tuple[str, str], float]:
    """(route, status) -> how many."""
    found: dict[tuple[str, str], float] = {}
    for labels, value in metric(server, "http_requests_total").items():
        named = dict(_LABEL.findall(labels))
        key = named["route"], named["status"]
        found[key] = found.get(key, 0.0) + value
    return found


def test_no_made_up_request_gets_a_500_or_an_answer_that_the_document_does_not_have(
    sim_voice_server: Server, tmp_path: Path
) -> None:
    before = answers(sim_voice_server)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{sim_voice_server.url}/openapi.json"]
    command += ["--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--max-examples", "12", "--seed", "1"]
    command += ["--request-timeout", "20", "--max-failures", "5", "--no-color"]
    environment = {**os.environ, "NO_COLOR": "1"}
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=tmp_path, env=environment
    )
    assert run.returncode == 0, run.stdout[-4_000:] + run.stderr[-2_000:]
    grown = {key: count - before.get(key, 0.0) for key, count in answers(sim_voice_server).items()}
    assert sum(grown.values()) > 200
    for route in ("/v1/audio/speech", "/v1/chat/completions", "/v1/models/{model}"):
        assert grown[route, "200"] > 0, "the document's own examples are served"
    assert not [key for key, count in grown.items() if count and key[1].startswith("5")]
