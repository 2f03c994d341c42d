"""Bodies over the limit (1 MiB in these tests), and what follows from the pipeline."""

from dataclasses import replace

import pytest

from antiphon.config.deploy import DeployConfig, StageDeploy
from antiphon.server.settings import ServerSettings
from tests.unit.server.conftest import HEARD, PIPELINE, RawExchange

pytestmark = pytest.mark.anyio
PATH = "/v1/audio/speech"
JSON = (b"content-type", b"application/json")


async def test_an_announced_size_over_the_limit_is_refused_before_the_body_is_read(app, client):
    exchange = RawExchange(app, PATH, b"x", headers=[JSON, (b"content-length", b"1048577")])
    await exchange.run()
    assert exchange.status == 413
    assert b'"code":"request_too_large"' in exchange.body_sent
    assert b"1 MiB" in exchange.body_sent
    assert exchange.complete
    assert client.inputs == []


@pytest.mark.parametrize("content_type", [b"application/json", b"multipart/form-data; boundary=x"])
async def test_a_body_of_unknown_size_is_refused_when_it_has_grown_over_the_limit(app, client, content_type):
    path = PATH if b"json" in content_type else "/v1/audio/transcriptions"
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    chunks = [head, *([b"x" * 100_000] * 12)]
    exchange = RawExchange(app, path, body_chunks=chunks, headers=[(b"content-type", content_type)])
    await exchange.run()
    assert exchange.status == 413
    assert b"request_too_large" in exchange.body_sent
    assert [message["type"] for message in exchange.sent].count("http.response.start") == 1
    assert exchange.complete


@pytest.mark.parametrize(
    ("content_type", "num_commas", "is_refused"),
    [
        (b"application/json", 75_000, True),
        (b"application/json", 65_000, False),
        (b"Multipart/form-data", 75_000, False),
    ],
)
async def test_json_of_too_many_values_is_refused_before_they_are_looked_at(app, content_type, num_commas, is_refused):
    chunks = [b"," * (num_commas // 10)] * 10
    exchange = RawExchange(app, PATH, body_chunks=chunks, headers=[(b"content-type", content_type)])
    await exchange.run()
    assert (exchange.status == 413) == is_refused and exchange.status < 500
    assert (b"values" in exchange.body_sent) == is_refused


async def test_the_rest_of_a_refused_body_is_read_so_that_the_client_gets_the_answer(app):
    exchange = RawExchange(
        app, PATH, body_chunks=[b"x" * 100_000] * 12, headers=[JSON, (b"content-length", b"1200000")]
    )
    await exchange.run()
    assert exchange.status == 413
    assert exchange.num_received_bytes == 1_200_000


async def test_a_body_just_under_the_limit_is_read(http, client):
    answer = await http.post(PATH, json={"model": "voice", "input": "x" * 1_048_500, "speed": 9})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "speed"


async def test_a_413_has_a_request_id_and_says_that_the_connection_ends(http):
    answer = await http.post(PATH, content=b"x" * 1_048_577)
    assert answer.status_code == 413
    assert answer.headers["x-request-id"].startswith("req-")
    assert answer.headers["connection"] == "close"


def test_settings_name_only_models_of_the_pipelines_tasks():
    speech_only = replace(PIPELINE, tasks=tuple(task for task in PIPELINE.tasks if task.name == "speech"))
    settings = ServerSettings.of(DeployConfig(), speech_only)
    assert "tts-1" in settings.model_aliases
    assert "whisper-1" not in settings.model_aliases
    assert settings.heard_languages == ()


@pytest.mark.parametrize(("model", "languages"), [("", HEARD), ("/other/weights", ())])
def test_settings_name_the_languages_of_the_packaged_weights_and_none_of_others(model, languages):
    config = DeployConfig(stages={"listener": StageDeploy(model=model)})
    assert ServerSettings.of(config, PIPELINE).heard_languages == languages
