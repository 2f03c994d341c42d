"""Replicas that die, hang, leave and come: what becomes of the requests that are bound to them. On sim-voice."""

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from antiphon.models.simulated.voice_values import spoken
from tests.process.conftest import Server, eventually, start_server
from tests.process.metrics_page import assert_nothing_is_held, metric
from tests.process.relay_server import children

PATIENCE_S = 30.0
LONG = "A sentence that goes on for quite some time, and then for some more. " * 120


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    settings = (
        "stages.talker.replicas=2",
        "timeouts.release_s=1.5",
        "restarts.max_restarts=100",
        "restarts.backoff_s=0.1",
    )
    running = start_server("sim-voice", *(word for setting in settings for word in ("--set", setting)))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


@pytest.fixture(autouse=True)
def whole(server: Server) -> Iterator[None]:
    """Every replica is up before a test, and nothing is held after it."""
    assert eventually(lambda: live(server, "talker") == 2 and live(server, "code2wav") == 1, PATIENCE_S)
    yield
    assert_nothing_is_held(server, PATIENCE_S)


def live(server: Server, stage: str) -> float:
    return metric(server, "replicas_live").get(f'{{stage="{stage}"}}', 0.0)


def pid_of(server: Server, replica: str) -> int:
    (pid,) = [pid for pid, name in children(server.process.pid).items() if name == f"antiphon: {replica}"]
    return pid


def speak(server: Server, text: str) -> httpx.Response:
    body = {"model": "sim-voice", "input": text, "response_format": "pcm"}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=PATIENCE_S)


def assert_spoken(future: "Future[httpx.Response]", text: str) -> None:
    response = future.result(PATIENCE_S)
    assert response.status_code == 200, response.text
    assert response.content == spoken(text)


def restarted(server: Server) -> float:
    return sum(metric(server, "requests_restarted_total").values())


def bound(server: Server, replica: str) -> float:
    stage = replica.partition("/")[0]
    return metric(server, "replica_inflight").get(f'{{replica="{replica}",stage="{stage}"}}', 0.0)


def test_a_request_without_output_is_started_again_when_its_replica_dies(server: Server, threads) -> None:
    before, pid = restarted(server), pid_of(server, "talker/0")
    os.kill(pid, signal.SIGSTOP)
    texts = [f"Sentence number {number} of the six." for number in range(6)]
    answers = [threads.submit(speak, server, text) for text in texts]
    num_bound = 0.0

    def all_others_are_answered() -> bool:
        nonlocal num_bound
        num_bound = bound(server, "talker/0")  # as of a report, and none is released: it only grows
        return num_bound + sum(answer.done() for answer in answers) == len(texts)

    assert eventually(all_others_are_answered, PATIENCE_S)
    assert num_bound > 0
    os.kill(pid, signal.SIGKILL)
    for answer, text in zip(answers, texts, strict=True):
        assert_spoken(answer, text)
    assert restarted(server) == before + num_bound


def test_a_request_waits_for_the_only_replica_of_a_stage_to_come_back(server: Server, threads) -> None:
    pid = pid_of(server, "code2wav/0")
    os.kill(pid, signal.SIGSTOP)
    answer = threads.submit(speak, server, "Wait for me.")
    assert eventually(lambda: bound(server, "code2wav/0") == 1, PATIENCE_S)
    os.kill(pid, signal.SIGKILL)
    assert_spoken(answer, "Wait for me.")


def test_a_request_that_has_killed_two_replicas_is_not_tried_again(server: Server, threads) -> None:
    before = restarted(server)
    response = speak(server, "exit-in-talker:It was me.")
    assert (response.status_code, response.json()["error"]["code"]) == (502, "deadly_request")
    assert restarted(server) == before + 1


def test_a_request_that_has_said_something_fails_at_once_with_its_replica(server: Server) -> None:
    body = {"model": "sim-voice", "input": LONG, "stream_format": "sse", "response_format": "pcm"}
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=PATIENCE_S) as response:
        lines = response.iter_lines()
        assert "speech.audio.delta" in next(lines)
        os.kill(pid_of(server, "code2wav/0"), signal.SIGKILL)
        rest = "".join(lines)
    assert '"replica_died"' in rest and "speech.audio.done" not in rest


def test_a_replica_that_does_not_release_an_aborted_request_is_killed_and_comes_back(server: Server) -> None:
    pid = pid_of(server, "talker/0")
    os.kill(pid, signal.SIGSTOP)
    body = {"model": "sim-voice", "input": "Hello?"}

    def is_gone_once_impatient_clients_have_left() -> bool:
        with contextlib.suppress(httpx.TimeoutException):  # at the latest the second is bound to the one that hangs
            httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=0.5)
        return pid not in children(server.process.pid)

    assert eventually(is_gone_once_impatient_clients_have_left, PATIENCE_S)
    assert eventually(lambda: "antiphon: talker/0" in children(server.process.pid).values(), PATIENCE_S)


def test_a_replica_that_is_told_to_end_finishes_what_it_has_and_is_bound_no_more(server: Server, threads) -> None:
    answers = [threads.submit(speak, server, LONG) for _ in range(4)]
    assert eventually(lambda: bound(server, "talker/1") > 0, PATIENCE_S)
    os.kill(pid_of(server, "talker/1"), signal.SIGTERM)
    assert eventually(lambda: live(server, "talker") == 1, PATIENCE_S)
    for answer in answers:
        assert_spoken(answer, LONG)
    assert eventually(lambda: "antiphon: talker/1" not in children(server.process.pid).values(), PATIENCE_S)
    assert_spoken(threads.submit(speak, server, "Who is left?"), "Who is left?")
