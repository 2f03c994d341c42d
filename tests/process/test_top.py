"""`antiphon top` and /metrics of a server under load: every family is there, and the saturated stage is named."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.monitor.families import FAMILIES, Kind
from tests.process.conftest import Server, start_server

NUM_CLIENTS = 6
TEXT = "This takes a while to say. " * 40
FORBIDDEN_LABELS = {"request", "request_id", "req", "voice"}


@contextmanager
def served(*arguments: str) -> Iterator[Server]:
    server = start_server("sim-voice", *arguments)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def load(server: Server) -> Iterator[None]:
    """Clients that ask for one spoken answer after the other."""
    stopped = threading.Event()
    body = {
        "model": "sim-voice",
        "messages": [{"role": "user", "content": TEXT}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "none", "format": "pcm16"},
        "stream": True,
    }

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            while not stopped.is_set():
                with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                    for _ in answer.iter_raw():
                        if stopped.is_set():
                            break

    threads = [threading.Thread(target=ask) for _ in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def top(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "antiphon", "top", *arguments, "--once"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_page_of_a_live_server_has_every_family_of_the_table_and_no_other():
    with served("--api-servers", "2") as server:
        for _ in range(4):
            body = {"model": "sim-voice", "input": "Hello there.", "response_format": "pcm"}
            assert httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=30).status_code == 200
        page = httpx.get(f"{server.url}/metrics", timeout=30).text
    families = {family.name: family for family in text_string_to_metric_families(page)}
    expected = {
        family.page_name.removesuffix("_total") if family.kind is Kind.COUNTER else family.page_name: family
        for family in FAMILIES.values()
    }
    assert set(families) == set(expected)
    for name, family in expected.items():
        assert families[name].type == family.kind
        assert families[name].documentation == family.meaning
        labels = {label for sample in families[name].samples for label in sample.labels} - {"le"}
        assert labels <= set(family.labels), name
        assert not labels & FORBIDDEN_LABELS


@pytest.mark.parametrize("stage", ["talker", "code2wav"])
def test_top_names_the_stage_that_holds_up_the_others(stage):
    with (
        served("--set", f"stages.{stage}.max_num_seqs=1", "--set", f"stages.{stage}.model=0.1s") as server,
        load(server),
    ):
        eventually_full(server, stage)
        shown = top(server.url)
    assert shown.returncode == 0, shown.stderr
    assert f"{stage} is the bottleneck: 1 of 1 replicas saturated" in shown.stdout, shown.stdout
    assert f"{stage}/0" in shown.stdout
    assert "talker->code2wav" in shown.stdout


def eventually_full(server: Server, stage: str) -> None:
    """Return when requests wait for the stage's place."""
    for _ in range(100):
        page = httpx.get(f"{server.url}/metrics", timeout=30).text
        waiting = [
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "antiphon_requests_waiting" and sample.labels["stage"] == stage
        ]
        if sum(waiting) >= 2:
            return
        threading.Event().wait(0.1)
    raise AssertionError(f"no request waits for {stage}")


def test_top_says_what_is_wrong_when_nobody_answers():
    shown = top("http://127.0.0.1:1")
    assert shown.returncode == 1
    assert "error: http://127.0.0.1:1/metrics does not answer: [Errno 111] Connection refused" in shown.stderr
