"""GET /v1/models and /v1/audio/voices."""

import pytest

pytestmark = pytest.mark.anyio


async def test_the_pipeline_and_its_aliases_are_listed_the_pipeline_first(http):
    names = [model["id"] for model in (await http.get("/v1/models")).json()["data"]]
    assert names[0] == "voice"
    assert {"tts-1", "tts-1-hd", "gpt-4o-mini-tts", "whisper-1", "gpt-realtime", "gpt-realtime-2"} <= set(names)


async def test_one_model_is_described(http):
    answer = (await http.get("/v1/models/voice")).json()
    assert (answer["id"], answer["object"], answer["owned_by"]) == ("voice", "model", "antiphon")
    assert isinstance(answer["created"], int)


async def test_an_unknown_model_is_a_404_envelope(http):
    answer = await http.get("/v1/models/nothing")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_voices_are_listed_with_language_and_aliases(http):
    voices = (await http.get("/v1/audio/voices")).json()["voices"]
    assert voices == [
        {"id": "anna", "name": "anna", "language": "en", "aliases": ["alloy"]},
        {"id": "ben", "name": "ben", "language": "de", "aliases": []},
    ]
