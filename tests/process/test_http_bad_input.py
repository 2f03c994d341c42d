"""Bad input gets a clear error and costs no stage any work; after all of it the server answers as before."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.process.bad_requests import BAD_REQUESTS, SPEECH, SPEECH_PATH, Bad
from tests.process.conftest import Server
from tests.process.metrics_page import assert_nothing_is_held, totals

INVALID, TOO_LARGE_BYTES = "invalid_request_error", 100_000_000
WORK = (
    "steps_total",
    "step_seconds_total",
    "chunks_received_total",
    "output_tokens_total",
    "client_messages_sent_total",
    "requests_total",
    "request_messages_total",
)
"""Counters of the stages, of what is sent to them, and of the orchestrator's messages about requests."""


@dataclass(frozen=True)
class Exchanges:
    """What each bad request was answered with, and the work that stages did meanwhile, and for one good request."""

    answers: dict[str, httpx.Response]
    bad_work: dict[str, float]
    good_work: dict[str, float]


@pytest.fixture(scope="module")
def http(voice_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=voice_server.url, timeout=120) as http:
        yield http


@pytest.fixture(scope="module")
def exchanges(voice_server: Server, http: httpx.Client) -> Exchanges:
    before = work(voice_server)
    answers = {bad.name: send(http, bad) for bad in BAD_REQUESTS}
    between = work(voice_server)
    good = http.post(SPEECH_PATH, json={**SPEECH, "response_format": "pcm"})
    assert (good.status_code, len(good.content) > 1_000) == (200, True)
    after = work(voice_server)
    return Exchanges(
        answers,
        {name: between[name] - before[name] for name in WORK},
        {name: after[name] - between[name] for name in WORK},
    )


def send(http: httpx.Client, bad: Bad) -> httpx.Response:
    request = dict(bad.request)
    if "json" in request:  # httpx writes neither half a surrogate pair nor NaN
        request["content"] = json.dumps(request.pop("json")).encode()
        request["headers"] = {"content-type": "application/json"}
    return http.request(bad.method, **request)


def work(server: Server) -> dict[str, float]:
    assert_nothing_is_held(server)
    sums = totals(server)
    return {name: sums.get(name, 0.0) for name in WORK}


def assert_refused(answer: httpx.Response, status: int, param: str | None, code: str) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == (INVALID, param, code), error
    assert answer.headers["x-request-id"].startswith("req-")
    assert answer.headers["content-type"] == "application/json"
    return error["message"]


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.name)
def test_a_bad_request_is_told_what_is_wrong_with_what(exchanges: Exchanges, bad: Bad) -> None:
    message = assert_refused(exchanges.answers[bad.name], bad.status, bad.param, bad.code)
    assert len(message) > 10


def test_the_table_has_every_kind_once() -> None:
    assert len({bad.name for bad in BAD_REQUESTS}) == len(BAD_REQUESTS) > 100


def test_no_bad_request_costs_a_stage_any_work_and_a_good_one_does(exchanges: Exchanges) -> None:
    assert exchanges.bad_work == dict.fromkeys(WORK, 0.0)
    idle = [name for name, grown in exchanges.good_work.items() if not grown]
    assert idle == ["output_tokens_total"], "a speech request has no tokens, and all else"


def test_a_long_text_is_refused_with_its_length_and_the_limit(exchanges: Exchanges) -> None:
    for name in ("speech: input that is too long", "chat: messages that are too long"):
        message = exchanges.answers[name].json()["error"]["message"]
        assert "100000" in message
        assert "20000" in message


def test_a_100_mb_body_is_a_413_whether_its_size_is_announced_or_not(http: httpx.Client) -> None:
    announced = http.post(SPEECH_PATH, content=bytes(TOO_LARGE_BYTES))
    assert "limit" in assert_refused(announced, 413, None, "request_too_large")
    pieces = (bytes(1_000_000) for _ in range(TOO_LARGE_BYTES // 1_000_000))
    assert "limit" in assert_refused(http.post(SPEECH_PATH, content=pieces), 413, None, "request_too_large")


def test_a_100_mb_file_is_a_413(http: httpx.Client) -> None:
    form = {"data": {"model": "whisper-1"}, "files": {"file": ("a.wav", bytes(TOO_LARGE_BYTES))}}
    assert_refused(http.post("/v1/audio/transcriptions", **form), 413, None, "request_too_large")
