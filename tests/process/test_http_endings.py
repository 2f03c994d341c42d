"""However a request ends, nothing of it is left in any process and the next one is served. Simulated stages."""

import io
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import httpx
import numpy as np
import pytest

from antiphon.models.simulated.voice_values import spoken
from tests.process.conftest import Server, eventually, start_server
from tests.process.metrics_page import assert_nothing_is_held, metric, totals
from tests.process.raw_http import RawRequest
from tests.process.relay_server import child

CHAT = "/v1/chat/completions"
FIRST_ROWS = 240
LONG_TEXT = "slow:" + "word " * 400  # 500 steps of 0.1 s; its first text after 60 of them: gauges are faster


def chat(text: str, **wishes: object) -> dict:
    return {"model": "sim-relay", "messages": [{"role": "user", "content": text}], **wishes}


def ask(server: Server, text: str, **headers: str) -> httpx.Response:
    return httpx.post(f"{server.url}{CHAT}", json=chat(text), headers=headers, timeout=60)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One place, so that a second request waits; the first bytes of a slow text come after 6 s."""
    settings = ("admission.max_inflight=1", f"edges.encoder->decoder.first_rows={FIRST_ROWS}")
    running = start_server("sim-relay", *(word for setting in settings for word in ("--set", setting)))
    yield running
    assert running.stop() == 0


def bound(server: Server) -> bool:
    return totals(server).get("requests_bound", 0) > 0


def queued_for_admission(server: Server) -> list[RawRequest]:
    first = RawRequest(server, CHAT, chat(LONG_TEXT))
    assert eventually(lambda: totals(server)["requests_open"] == 1)
    second = RawRequest(server, CHAT, chat("hello"))
    assert eventually(lambda: totals(server).get("requests_queued") == 1)
    return [second, first]


def before_the_first_byte(server: Server) -> list[RawRequest]:
    request = RawRequest(server, CHAT, chat(LONG_TEXT, stream=True))
    assert eventually(lambda: bound(server))
    assert not request.has_answer()
    return [request]


def in_mid_stream(server: Server) -> list[RawRequest]:
    request = RawRequest(server, CHAT, chat(LONG_TEXT, stream=True))
    request.read_until(b"data: ", times=3)
    assert eventually(lambda: bound(server))
    return [request]


def after_the_last_byte(server: Server) -> list[RawRequest]:
    request = RawRequest(server, CHAT, chat("hello", stream=True))
    request.read_until(b"\r\n0\r\n\r\n")
    return [request]


def during_a_whole_answer(server: Server) -> list[RawRequest]:
    request = RawRequest(server, CHAT, chat(LONG_TEXT))
    assert eventually(lambda: bound(server))
    assert not request.has_answer()
    return [request]


def during_the_upload(server: Server) -> list[RawRequest]:
    request = RawRequest(server, CHAT, chat("x" * 10_000), sent=0.5)
    assert eventually(lambda: totals(server)["http_requests_open"] == 1)
    assert totals(server)["requests_open"] == 0
    return [request]


@pytest.mark.parametrize(
    "phase",
    [
        queued_for_admission,
        before_the_first_byte,
        in_mid_stream,
        after_the_last_byte,
        during_a_whole_answer,
        during_the_upload,
    ],
)
def test_a_client_that_hangs_up_leaves_nothing_behind(
    server: Server, phase: Callable[[Server], list[RawRequest]]
) -> None:
    for number, request in enumerate(requests := phase(server), start=1):
        request.hang_up()
        assert eventually(lambda number=number: totals(server)["requests_open"] == len(requests) - number)
    assert ask(server, "hello").json()["choices"][0]["message"]["content"] == "hello"
    assert_nothing_is_held(server)


def mp3_of_ten_seconds() -> bytes:
    """Noise; such files joined are one longer file, which is soon sent and takes long to decode."""
    samples = np.random.default_rng(0).integers(-3_000, 3_000, (1, 80_000), np.int16)
    file = io.BytesIO()
    with av.open(file, "w", format="mp3") as container:
        stream = container.add_stream("libmp3lame", rate=8_000, layout="mono", options={"b": "8000"})
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = 8_000
        container.mux([*stream.encode(frame), *stream.encode(None)])
    return file.getvalue()


def cpu_s(pid: int) -> float:
    """The CPU time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_client_that_hangs_up_while_its_audio_is_decoded_leaves_nothing_behind(voice_server: Server) -> None:
    assert_nothing_is_held(voice_server)
    fields = [("model", "", b"whisper-1"), ("file", '; filename="a.mp3"', mp3_of_ten_seconds() * 170)]
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"
        for name, more, value in fields
    ]
    form = b"".join(parts) + b"--x--\r\n"
    kind = "Content-Type: multipart/form-data; boundary=x"
    api_server = child(voice_server, "api-server/0")
    before_s = cpu_s(api_server)
    request = RawRequest(voice_server, "/v1/audio/transcriptions", form, kind)
    assert eventually(lambda: cpu_s(api_server) > before_s + 0.3), "nothing is decoded"  # it takes 2 s in all
    now = totals(voice_server)
    assert (now["http_requests_open"], now["requests_open"]) == (1, 0)
    request.hang_up()
    assert_nothing_is_held(voice_server)
    speech = {"model": "voice", "input": "Hi there.", "response_format": "pcm"}
    assert len(httpx.post(f"{voice_server.url}/v1/audio/speech", json=speech, timeout=60).content) > 10_000


def test_two_requests_with_one_id_at_once_do_not_mix(server: Server) -> None:
    answers: dict[str, httpx.Response] = {}

    def ask_with_the_id(text: str) -> None:
        answers[text] = ask(server, text, **{"x-request-id": "mine"})

    threads = [threading.Thread(target=ask_with_the_id, args=(f"slow:{word * 16}",)) for word in ("first", "second")]
    for thread in threads:
        thread.start()
    assert eventually(lambda: totals(server)["requests_open"] == 2)
    for thread in threads:
        thread.join(30)
    assert len({answer.json()["id"] for answer in answers.values()}) == len(answers) == 2
    for text, answer in answers.items():
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine")
        assert answer.json()["choices"][0]["message"]["content"] == text.removeprefix("slow:")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nowhere", b"", 404),
        ("PUT", CHAT, b"", 405),
        ("POST", CHAT, b"{", 400),
        ("POST", CHAT, b"x" * (33 << 20), 413),
        ("POST", CHAT, b'{"model":"sim-relay","messages":[{"role":"user","content":"raise-in-first:12345678"}]}', 500),
    ],
)
def test_every_error_carries_the_id_that_the_client_gave(
    server: Server, method: str, path: str, body: bytes, status: int
) -> None:
    headers = {"x-request-id": "mine-2", "content-type": "application/json"}
    answer = httpx.request(method, f"{server.url}{path}", content=body, headers=headers, timeout=30)
    assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine-2")
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def answered(server: Server) -> Counter[tuple[str, str]]:
    """(route, status) -> how many POST requests have ended so."""
    found: Counter[tuple[str, str]] = Counter()
    for labels, count in metric(server, "http_requests_total").items():
        named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if named["method"] == "POST":
            found[named["route"], named["status"]] += int(count)
    return found


def test_clients_that_do_not_read_are_cut_off_and_disturb_nobody(sim_voice_server: Server) -> None:
    assert_nothing_is_held(sim_voice_server)
    before = answered(sim_voice_server)
    speech = {"model": "sim-voice", "response_format": "pcm"}
    spoken_chat = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}
    whole = {**chat("x" * 20_000), **spoken_chat, "model": "sim-voice"}  # 3.4 MB in one piece, after the last stage
    stuck = [
        RawRequest(sim_voice_server, "/v1/audio/speech", {**speech, "input": "x" * 300_000}, receive_bytes=4096),
        RawRequest(sim_voice_server, CHAT, whole, receive_bytes=4096),
    ]
    text = "Well behaved. " * 30

    def all_are_reset_while_a_neighbour_is_served() -> bool:
        answer = neighbour.post("/v1/audio/speech", json={**speech, "input": text})
        assert answer.content == spoken(text)
        return all(request.is_reset() for request in stuck)

    with httpx.Client(base_url=sim_voice_server.url, timeout=30) as neighbour:
        assert eventually(all_are_reset_while_a_neighbour_is_served, 40)
    for request in stuck:
        request.hang_up()
    assert_nothing_is_held(sim_voice_server)
    after = {route: num - before[route] for route, num in answered(sim_voice_server).items()}
    assert after["/v1/audio/speech", "499"] == 1, "it was cut off in mid-answer"
    assert after["/v1/chat/completions", "200"] == 1, "its answer was whole, and nobody took it"
