"""POST /v1/chat/completions against a scripted runtime."""

import asyncio
import base64
import io
import json

import av
import numpy as np
import pytest

from antiphon.errors import InvalidRequestError, StageError
from antiphon.messages.client import Usage
from antiphon.messages.params import SamplingParams
from tests.unit.server.conftest import RawExchange, audio, end, events, text, tone
from tests.unit.server.media_files import wav

pytestmark = pytest.mark.anyio
PATH = "/v1/chat/completions"
BODY = {"model": "voice", "messages": [{"role": "user", "content": "Say hello."}]}
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}
TEXT_ONLY = [text("Hel"), text("lo."), end("thinker", finish_reason="length", usage=Usage(9, 2))]
TEXT_AND_AUDIO = [text("Hel"), audio(100), text("lo."), TEXT_ONLY[-1], audio(101, 100), end("code2wav")]


async def test_a_whole_text_answer(http, client):
    client.script = TEXT_ONLY
    answer = (await http.post(PATH, json=BODY)).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "voice"
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "Hello."
    assert choice["message"]["role"] == "assistant"
    assert "audio" not in choice["message"]
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


async def test_a_streamed_text_answer(http, client):
    client.script = TEXT_ONLY
    answer = await http.post(PATH, json={**BODY, "stream": True, "stream_options": {"include_usage": True}})
    assert answer.text.endswith("data: [DONE]\n\n")
    first, *middle, last, usage = events(answer.text)
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["delta"]["content"] for chunk in middle] == ["Hel", "lo."]
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    assert last["usage"] is None
    assert len({chunk["id"] for chunk in events(answer.text)}) == 1


async def test_deltas_that_have_come_at_once_leave_in_one_message_an_event_each(app, client):
    client.script = [text("Hel"), text('"l\no"')]
    exchange = RawExchange(app, PATH, json.dumps({**BODY, "stream": True}).encode())
    running = asyncio.create_task(exchange.run())
    await exchange.first_body.wait()
    (body,) = (message["body"] for message in exchange.sent if message.get("body"))
    role, *deltas = [chunk["choices"][0]["delta"] for chunk in events(body.decode())]
    assert role["role"] == "assistant"
    assert deltas == [{"content": "Hel"}, {"content": '"l\no"'}]
    exchange.hung_up.set()
    await running


async def test_a_stream_tells_no_usage_unless_asked(http, client):
    client.script = TEXT_ONLY
    answer = await http.post(PATH, json={**BODY, "stream": True})
    assert all("usage" not in chunk for chunk in events(answer.text))


async def test_a_streamed_spoken_answer_has_text_transcript_and_every_sample(http, client):
    client.script = TEXT_AND_AUDIO
    chunks = events((await http.post(PATH, json={**BODY, **SPOKEN, "stream": True})).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    spoken = [delta["audio"] for delta in deltas if "audio" in delta]
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello."
    assert "".join(part.get("transcript", "") for part in spoken) == "Hello."
    assert b"".join(base64.b64decode(part["data"]) for part in spoken if "data" in part) == tone(201)
    assert [part["id"] for part in spoken if "id" in part] == [spoken[0]["id"]]
    assert [index for index, part in enumerate(spoken) if "expires_at" in part] == [len(spoken) - 1]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_joined_audio_deltas_are_one_valid_base64(http, client):
    client.script = [text("Hi."), end("thinker"), *(audio(n, 0) for n in (1, 2, 3, 4)), end("code2wav")]
    chunks = events((await http.post(PATH, json={**BODY, **SPOKEN, "stream": True})).text)
    joined = "".join(chunk["choices"][0]["delta"].get("audio", {}).get("data", "") for chunk in chunks)
    assert base64.b64decode(joined, validate=True) == b"".join(tone(n) for n in (1, 2, 3, 4))


async def test_a_streamed_compressed_answer_is_one_file(http, client):
    client.script = [text("Hi."), end("thinker"), audio(12_000), audio(12_000, 12_000), end("code2wav")]
    body = {**BODY, "modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "mp3"}, "stream": True}
    chunks = events((await http.post(PATH, json=body)).text)
    joined = "".join(chunk["choices"][0]["delta"].get("audio", {}).get("data", "") for chunk in chunks)
    with av.open(io.BytesIO(base64.b64decode(joined))) as container:
        assert container.format.name == "mp3"
        assert sum(frame.samples for frame in container.decode(audio=0)) >= 24_000


@pytest.mark.parametrize(("format", "container_name"), [("wav", "wav"), ("mp3", "mp3"), ("flac", "flac")])
async def test_a_whole_spoken_answer_is_a_file_with_its_transcript(http, client, format, container_name):
    client.script = TEXT_AND_AUDIO
    body = {**BODY, "modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": format}}
    message = (await http.post(PATH, json=body)).json()["choices"][0]["message"]
    assert (message["content"], message["audio"]["transcript"]) == ("Hello.", "Hello.")
    with av.open(io.BytesIO(base64.b64decode(message["audio"]["data"]))) as container:
        assert container.format.name == container_name
    assert message["audio"]["id"].startswith("audio-")
    assert client.inputs[0].audio_out
    assert client.inputs[0].voice == "alloy"


async def test_a_whole_pcm16_answer_is_the_bare_samples(http, client):
    client.script = TEXT_AND_AUDIO
    message = (await http.post(PATH, json={**BODY, **SPOKEN})).json()["choices"][0]["message"]
    assert base64.b64decode(message["audio"]["data"]) == tone(201)


@pytest.mark.parametrize("stream", [False, True])
async def test_asking_for_audio_and_getting_none_is_an_error(http, client, stream):
    client.script = [text("Hi."), end("thinker"), end("code2wav")]
    answer = await http.post(PATH, json={**BODY, **SPOKEN, "stream": stream})
    if stream:
        assert events(answer.text)[-1]["error"]["code"] == "no_audio"
        assert "[DONE]" not in answer.text
    else:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (500, "no_audio") and "'Hi.'" in error["message"]


async def test_sampling_reaches_the_runtime(http, client):
    client.script = TEXT_ONLY
    wishes = {
        "max_tokens": 9,
        "max_completion_tokens": 5,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0,
        "repetition_penalty": 1.2,
        "stop": "END",
        "seed": -1,
        "ignore_eos": True,
        "n": 1,
    }
    assert (await http.post(PATH, json={**BODY, **wishes})).status_code == 200
    assert client.inputs[0].sampling == SamplingParams(
        max_tokens=5,
        temperature=0,
        top_p=0.5,
        top_k=3,
        min_p=0,
        repetition_penalty=1.2,
        stop=("END",),
        ignore_eos=True,
        seed=2**32 - 1,
    )
    assert not client.inputs[0].audio_out


async def test_what_is_not_asked_for_keeps_the_runtimes_default(http, client):
    client.script = TEXT_ONLY
    await http.post(PATH, json={**BODY, "max_tokens": 7, "temperature": None})
    assert client.inputs[0].sampling == SamplingParams(max_tokens=7)


async def test_roles_and_parts_become_turns(http, client):
    client.script = TEXT_ONLY
    sound = base64.b64encode(wav(1_600)).decode()
    parts = [
        {"type": "text", "text": "What is"},
        {"type": "text", "text": "this?"},
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
    ]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": parts},
    ]
    assert (await http.post(PATH, json={**BODY, "messages": messages})).status_code == 200
    turns = client.inputs[0].messages
    assert [(turn.role, turn.text) for turn in turns] == [
        ("system", "Be brief."),
        ("user", "Hi."),
        ("assistant", "Hello."),
        ("user", "What is\nthis?"),
    ]
    first, second, heard = turns[3].parts
    assert (first, second) == ("What is", "this?")
    assert heard.samples.shape == (1_600,)
    assert heard.samples.dtype == np.float32
    np.testing.assert_allclose(heard.samples, 0.25, atol=1e-3)
    assert all(isinstance(part, str) for turn in turns[:3] for part in turn.parts)


USER = {"role": "user", "content": "Hi."}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [USER, {"role": "robot", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "*"}}]}]},
            "messages[0].content[0].input_audio.data",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "aGVsbG8="}}]}]},
            "messages[0].content[0].input_audio.data",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].input_audio"),
        ({"messages": [USER, {"role": "assistant", "audio": {"id": "audio-1"}}, USER]}, "messages[1].audio"),
        ({"n": 2}, "n"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"modalities": ["video"]}, "modalities[0]"),
        ({"modalities": []}, "modalities"),
        ({"audio": {"voice": "alloy", "format": "mp9"}}, "audio.format"),
    ],
)
async def test_a_wrong_field_is_a_400_that_names_it_and_reaches_no_stage(http, client, change, param):
    answer = await http.post(PATH, json={**BODY, **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert param in answer.json()["error"]["message"]
    assert client.inputs == []


async def test_a_picture_is_refused_as_a_modality(http, client):
    picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    answer = await http.post(PATH, json={**BODY, "messages": [{"role": "user", "content": picture}]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_modality")
    assert client.inputs == []


async def test_the_runtimes_refusal_of_a_stream_is_an_http_error(http, client):
    client.refusal = InvalidRequestError("the conversation is too long", param="messages")
    answer = await http.post(PATH, json={**BODY, "stream": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")


async def test_a_failure_before_the_first_word_of_a_stream_is_an_http_error(http, client):
    client.failure = StageError("thinker/0 failed")
    assert (await http.post(PATH, json={**BODY, "stream": True})).status_code == 500


async def test_a_failure_after_the_first_word_is_an_error_event_without_done(http, client):
    client.script, client.failure = [text("Hel")], StageError("thinker/0 failed")
    answer = await http.post(PATH, json={**BODY, "stream": True})
    assert events(answer.text)[-1]["error"]["message"] == "thinker/0 failed"
    assert "[DONE]" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_aborts_the_request(app, client, stream):
    client.script = [text("Hel")]
    exchange = RawExchange(app, PATH, json.dumps({**BODY, "stream": stream}).encode())
    running = asyncio.create_task(exchange.run())
    await client.submitted.wait()
    exchange.hung_up.set()
    await running
    assert client.aborted == client.request_ids
