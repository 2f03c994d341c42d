"""Failures outside any task: routes, methods, bodies that are not JSON, faults of the server itself."""

import json

import pytest

pytestmark = pytest.mark.anyio
SPEECH = "/v1/audio/speech"


def assert_envelope(answer, status: int, code: str) -> dict:
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    return error


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/resp_1", "/v1/completions"])
async def test_a_route_of_openais_that_is_not_here_says_what_to_use(http, path):
    error = assert_envelope(await http.post(path, json={"model": "voice", "input": "Hi."}), 404, "not_found")
    assert "POST /v1/chat/completions" in error["message"]


async def test_a_route_beside_a_websocket_is_told_to_connect_one(http):
    error = assert_envelope(await http.post("/v1/realtime/client_secrets", json={}), 404, "not_found")
    assert "connect a WebSocket to /v1/realtime" in error["message"]


async def test_an_unknown_route_is_a_404_envelope(http):
    assert "/v2/nothing" in assert_envelope(await http.get("/v2/nothing"), 404, "not_found")["message"]


async def test_a_wrong_method_is_a_405_envelope_that_says_the_right_one(http):
    answer = await http.get(SPEECH)
    assert_envelope(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'"text"', b"nonsense", b'{"a": "\xff"}', b"[" * 100_000])
@pytest.mark.parametrize("path", [SPEECH, "/v1/chat/completions"])
async def test_a_body_that_is_no_json_object_is_a_400(http, client, path, body):
    answer = await http.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert client.inputs == []


async def test_malformed_json_is_named_as_such(http):
    answer = await http.post(SPEECH, content=b'{"model": ', headers={"content-type": "application/json"})
    assert "not valid JSON" in assert_envelope(answer, 400, "invalid_json")["message"]


async def test_a_body_of_another_content_type_is_told_which_to_send(http):
    answer = await http.post(SPEECH, content=b"{}", headers={"content-type": "text/plain"})
    assert "application/json" in assert_envelope(answer, 400, "invalid_json")["message"]


async def test_text_with_a_lone_surrogate_is_a_400(http):
    body = json.dumps({"model": "voice", "input": "\ud800"}).encode()
    answer = await http.post(SPEECH, content=body, headers={"content-type": "application/json"})
    assert assert_envelope(answer, 400, "invalid_value")["param"] == "input"


async def test_a_fault_of_the_server_tells_its_id_and_nothing_else(http, client, monkeypatch, caplog):
    async def broken(*args, **kwargs):
        raise RuntimeError("secret")

    monkeypatch.setattr(client, "submit", broken)
    answer = await http.post(SPEECH, json={"model": "voice", "input": "Hi."})
    error = assert_envelope(answer, 500, "internal_error")
    assert "secret" not in answer.text
    request_id = answer.headers["x-request-id"]
    assert request_id in error["message"]
    assert any(request_id in record.getMessage() and record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/models/"), ("POST", "/v1/chat/completions/"), ("GET", "/docs/")]
)
async def test_a_path_with_a_slash_too_many_is_no_redirect_to_the_host_that_the_client_named(http, method, path):
    answer = await http.request(method, path, headers={"host": "elsewhere.localhost"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
    assert "elsewhere" not in str(answer.headers)
