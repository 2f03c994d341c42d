"""Bad input gets a clear error and costs nothing: after all of it the server answers as before."""

import httpx
import pytest

SPEECH = {"model": "voice", "input": "Hello.", "voice": "alloy"}
CHAT = {"model": "voice", "messages": [{"role": "user", "content": "Hi."}]}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
NOISE = bytes(range(256)) * 40
INVALID, TOO_LARGE_BYTES = "invalid_request_error", 100_000_000


@pytest.fixture(scope="module")
def http(voice_server):
    with httpx.Client(base_url=voice_server.url, timeout=120) as http:
        yield http
        good = http.post("/v1/audio/speech", json={**SPEECH, "response_format": "pcm"})
        assert (good.status_code, len(good.content) > 1_000) == (200, True)


def assert_refused(answer: httpx.Response, status: int, param: str | None) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == (INVALID, param)
    assert answer.headers["x-request-id"]
    return error["message"]


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"input": ""}, 400, "input"),
        ({"input": " \n\t "}, 400, "input"),
        ({"input": "..."}, 400, "input"),
        ({"input": ["a"]}, 400, "input"),
        ({"voice": "nobody"}, 400, "voice"),
        ({"model": "tts-9"}, 404, "model"),
        ({"response_format": "mp4"}, 400, "response_format"),
        ({"stream_format": "tape"}, 400, "stream_format"),
        ({"speed": 0.24}, 400, "speed"),
        ({"speed": 4.01}, 400, "speed"),
        ({"speed": "quick"}, 400, "speed"),
        ({"sample_rate": 44_100}, 400, "sample_rate"),
    ],
)
def test_bad_speech_fields(http, change, status, param):
    message = assert_refused(http.post("/v1/audio/speech", json={**SPEECH, **change}), status, param)
    assert param in message


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, 400, "messages"),
        ({"messages": [{"role": "robot", "content": "Hi."}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, 400, "messages[0].content[0]"),
        ({"model": "gpt-9"}, 404, "model"),
        ({"temperature": 3}, 400, "temperature"),
        ({"n": 2}, 400, "n"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "nobody", "format": "wav"}}, 400, "voice"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "mp9"}}, 400, "audio.format"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_chat_fields(http, change, status, param, stream):
    assert_refused(http.post("/v1/chat/completions", json={**CHAT, "stream": stream, **change}), status, param)


@pytest.mark.parametrize(
    ("fields", "data", "status", "param"),
    [
        ({}, NOISE, 400, "file"),
        ({}, b"", 400, "file"),
        ({}, b"RIFF\xff\xff\xff\xffWAVEfmt ", 400, "file"),
        ({"response_format": "xml"}, NOISE, 400, "response_format"),
        ({"model": "whisper-9"}, NOISE, 404, "model"),
    ],
)
def test_bad_transcription_fields(http, fields, data, status, param):
    form = {"model": "whisper-1", **fields}
    answer = http.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", data)})
    assert_refused(answer, status, param)


def test_a_transcription_without_a_file(http):
    answer = http.post("/v1/audio/transcriptions", data={"model": "whisper-1"}, files={"other": b"x"})
    assert "file" in assert_refused(answer, 400, "file")


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/chat/completions"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{'model': 'voice'}", b"\xff\xfe"])
def test_malformed_json(http, path, body):
    assert_refused(http.post(path, content=body, headers={"content-type": "application/json"}), 400, None)


def test_a_100_mb_body_is_a_413_whether_its_size_is_announced_or_not(http):
    announced = http.post("/v1/audio/speech", content=bytes(TOO_LARGE_BYTES))
    assert "limit" in assert_refused(announced, 413, None)
    pieces = (bytes(1_000_000) for _ in range(TOO_LARGE_BYTES // 1_000_000))
    assert "limit" in assert_refused(http.post("/v1/audio/speech", content=pieces), 413, None)


def test_a_100_mb_file_is_a_413(http):
    form = {"data": {"model": "whisper-1"}, "files": {"file": ("a.wav", bytes(TOO_LARGE_BYTES))}}
    assert_refused(http.post("/v1/audio/transcriptions", **form), 413, None)


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/chat/completions"])
def test_100000_characters_are_refused_with_the_limit(http, path):
    text = "word " * 20_000
    speech = path == "/v1/audio/speech"
    body = {**SPEECH, "input": text} if speech else {**CHAT, "messages": [{"role": "user", "content": text}]}
    message = assert_refused(http.post(path, json=body), 400, "input" if speech else "messages")
    assert "100000" in message
    assert "20000" in message


def test_unknown_routes_and_methods(http):
    assert_refused(http.get("/v1/nothing"), 404, None)
    assert_refused(http.get("/v1/audio/speech"), 405, None)
