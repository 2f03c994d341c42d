"""The OpenAPI document: every field and every answer is described, and what is answered is what is described."""

from collections.abc import Iterator

import jsonschema_rs
import pytest

from antiphon.client.output_stream import StageMessage
from antiphon.messages.client import (
    CalledTool,
    Segment,
    SegmentScores,
    TextDelta,
    TokenChance,
    TokenLogprob,
    Usage,
    Word,
)
from antiphon.server.audio_encode import AudioFormat, encode_whole
from antiphon.server.openapi import ANSWERS
from antiphon.server.realtime.schema import EVENTS as REALTIME_EVENTS
from antiphon.server.speech_events import EVENTS as SPEECH_STREAM_EVENTS
from tests.unit.server.conftest import audio, end, text, tone

pytestmark = pytest.mark.anyio
CHAT = {"model": "voice", "messages": [{"role": "user", "content": "Hi."}]}
SPEECH = {"model": "voice", "input": "Hi."}


@pytest.fixture
def document(app) -> dict:
    return app.openapi()


def operations(document: dict) -> Iterator[tuple[str, dict]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def test_every_route_says_what_it_answers_and_nothing_else_is_said(document):
    assert {name for name, _ in operations(document)} == set(ANSWERS)
    assert len(ANSWERS) >= 10


def test_every_field_and_parameter_has_a_description(document):
    bare = [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field, child in schema.get("properties", {}).items()
        if len(child.get("description", "")) < 5
    ]
    bare += [
        f"{name}?{parameter['name']}"
        for name, operation in operations(document)
        for parameter in operation.get("parameters", ())
        if len(parameter.get("description", "")) < 5
    ]
    bare += [name for name, operation in operations(document) if len(operation["summary"]) < 5]
    assert not bare


def test_every_answer_has_a_description_and_a_schema_and_every_error_is_the_envelope(document):
    for name, operation in operations(document):
        assert "422" not in operation["responses"], name
        for status, answer in operation["responses"].items():
            assert len(answer["description"]) > 5
            assert "x-request-id" in answer["headers"]
            kinds = {kind: content["schema"] for kind, content in answer["content"].items()}
            assert kinds, f"{name} {status}"
            if int(status) >= 400:
                assert kinds == {"application/json": {"$ref": "#/components/schemas/ErrorEnvelope"}}, f"{name} {status}"
        if name.partition(" /")[2].startswith("v1/"):
            assert {"401", "503"} <= set(operation["responses"])
            assert operation["security"]


def test_every_reference_leads_to_a_schema(document):
    def references(node: object) -> Iterator[str]:
        if isinstance(node, dict):
            yield from [node["$ref"]] if "$ref" in node else []
            for child in node.values():
                yield from references(child)
        elif isinstance(node, list):
            for child in node:
                yield from references(child)

    found = {reference.removeprefix("#/components/schemas/") for reference in references(document)}
    assert found <= set(document["components"]["schemas"])
    assert "HTTPValidationError" not in document["components"]["schemas"]


def check(document: dict, name: str, answer, status: int = 200) -> None:
    """The answer's status, content type and body against the document; the body has no field that is not in there."""
    assert answer.status_code == status, answer.text
    described = dict(operations(document))[name]["responses"][str(status)]["content"]
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in described
    if kind == "application/json":
        schemas = {
            name: schema | ({"additionalProperties": False} if "properties" in schema else {})
            for name, schema in document["components"]["schemas"].items()
        }
        jsonschema_rs.validate({**described[kind]["schema"], "components": {"schemas": schemas}}, answer.json())


@pytest.mark.parametrize("path", ["/v1/models", "/v1/audio/voices", "/health", "/ready", "/metrics"])
async def test_what_is_read_is_as_described(http, document, path):
    check(document, f"get {path}", await http.get(path))


async def test_every_event_that_a_websocket_takes_is_described_and_shown(http, document):
    sockets = document["x-websockets"]
    schemas = document["components"]["schemas"]
    assert set(sockets["/v1/realtime"]) == set(REALTIME_EVENTS)
    assert set(sockets["/v1/audio/speech/stream"]) == set(SPEECH_STREAM_EVENTS)
    page = (await http.get("/docs")).text
    for events in sockets.values():
        for name, reference in events.items():
            schema = reference["$ref"].rpartition("/")[2]
            assert set(schemas[schema]["properties"]) >= {"event_id"}
            assert f"<code>{name}</code>" in page
            assert f'id="{schema}"' in page
    assert "audio_end_ms" in schemas["Realtime.TruncateItem"]["required"]
    assert "by_beta_names" not in page


async def test_a_model_is_as_described(http, document):
    check(document, "get /v1/models/{model}", await http.get("/v1/models/voice"))
    check(document, "get /v1/models/{model}", await http.get("/v1/models/other"), 404)


async def test_a_chat_is_as_described(http, client, document):
    name, path = "post /v1/chat/completions", "/v1/chat/completions"
    client.script = [text("Hello."), audio(10), end("thinker", usage=Usage(1, 2)), end("code2wav")]
    spoken = {**CHAT, "modalities": ["text", "audio"]}
    for body in (CHAT, spoken, {**CHAT, "stream": True}, {**spoken, "stream": True}):
        check(document, name, await http.post(path, json=body))
    chance = TokenChance("Hello.", b"Hello.", -0.5)
    scored = TextDelta("Hello.", (TokenLogprob(chance, (chance,)),))
    client.script = [StageMessage("thinker", output) for output in (scored, CalledTool("clock", "{}"))]
    client.script.append(end("thinker", usage=Usage(1, 2)))
    check(document, name, await http.post(path, json={**CHAT, "logprobs": True, "top_logprobs": 1}))
    check(document, name, await http.post(path, json={**CHAT, "messages": []}), 400)
    check(document, name, await http.post(path, json={**CHAT, "model": "other"}), 404)


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
async def test_speech_of_every_format_is_as_described(http, client, document, format):
    client.script = [audio(2_000), end("code2wav")]
    answer = await http.post("/v1/audio/speech", json={**SPEECH, "response_format": format})
    check(document, "post /v1/audio/speech", answer)
    known = await http.get(f"/v1/audio/speech/{answer.headers['x-request-id']}")
    check(document, "get /v1/audio/speech/{request_id}", known)
    events = await http.post("/v1/audio/speech", json={**SPEECH, "response_format": format, "stream_format": "sse"})
    check(document, "post /v1/audio/speech", events)


async def test_the_page_shows_every_route_and_field_and_loads_nothing(http, document):
    answer = await http.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = answer.text
    assert not [sign for sign in ("<script", "src=", "<link", "@import", "url(", "http://", "https://") if sign in page]
    for name, operation in operations(document):
        method, _, path = name.partition(" ")
        assert f"{method.upper()} {path}</code>" in page
        assert all(f"<td>{status}</td>" in page for status in operation["responses"])
    for name, schema in document["components"]["schemas"].items():
        assert f'id="{name}"' in page
        assert all(f"<code>{field}</code>" in page for field in schema.get("properties", {}))


async def test_a_schema_of_the_page_is_reached_by_its_links(http):
    page = (await http.get("/docs")).text
    targets = {part.partition('"')[0] for part in page.split('href="#')[1:]}
    assert len(targets) > 20
    assert not [target for target in targets if f'id="{target}"' not in page]


@pytest.mark.parametrize("route", ["transcriptions", "translations"])
@pytest.mark.parametrize("format", ["json", "text", "verbose_json", "srt", "vtt"])
async def test_a_transcript_of_every_format_is_as_described(http, client, document, route, format):
    scores = SegmentScores(0, (1, 2), 0.0, -0.5, 1.1, 0.01)
    segment = Segment(" Hello there.", 0.0, 1.5, "en", (Word(" Hello", 0.0, 0.5),), scores)
    client.script = [StageMessage("listener", segment), end("listener")]
    form = {"model": "whisper-1", "response_format": format}
    if (route, format) == ("transcriptions", "verbose_json"):
        form["timestamp_granularities[]"] = ["word", "segment"]
    file = encode_whole(tone(24_000), AudioFormat.WAV, 24_000)
    answer = await http.post(f"/v1/audio/{route}", data=form, files={"file": ("a.wav", file)})
    check(document, f"post /v1/audio/{route}", answer)
