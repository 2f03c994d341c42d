"""POST /v1/chat/completions against a scripted runtime."""

import asyncio
import base64
import io
import json

import av
import numpy as np
import pytest

from antiphon.client.output_stream import StageMessage
from antiphon.errors import InvalidRequestError, OverloadedError, StageError
from antiphon.messages.client import CalledTool, OutputEnd, TextDelta, TokenChance, TokenLogprob, Usage
from antiphon.messages.params import SamplingParams
from antiphon.messages.tasks import ToolCall
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
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


async def test_options_reach_the_runtime(http, client):
    client.script = TEXT_ONLY
    wishes = {
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"7": -100, "9": 1.5},
        "logprobs": True,
        "response_format": {"type": "json_object"},
        "tools": [TOOL],
        "functions": [],
        "stream_options": None,
        "user": "somebody",
        "store": False,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
    }
    assert (await http.post(PATH, json={**BODY, **wishes})).status_code == 200
    (chat,) = client.inputs
    assert (chat.sampling.presence_penalty, chat.sampling.frequency_penalty) == (0.5, -0.5)
    assert (chat.sampling.logit_bias, chat.sampling.logprobs) == (((7, -100.0), (9, 1.5)), 0)
    assert json.loads(chat.json_schema) == {"type": "object"}
    assert [json.loads(tool) for tool in chat.tools] == [TOOL]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wishes = {"tools": [TOOL], "tool_choice": "none", "response_format": {"type": "json_schema"}}
    wishes["response_format"]["json_schema"] = {"name": "a", "strict": True, "schema": schema}
    assert (await http.post(PATH, json={**BODY, **wishes})).status_code == 200
    assert (json.loads(client.inputs[1].json_schema), client.inputs[1].tools) == (schema, ())


async def test_calls_and_results_of_tools_become_turns(http, client):
    client.script = TEXT_ONLY
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ]
    assert (await http.post(PATH, json={**BODY, "messages": messages})).status_code == 200
    _, called, result = client.inputs[0].messages
    assert (called.text, called.tool_calls) == ("", (ToolCall("c1", "f", '{"a": 1}'),))
    assert (result.role, result.text, result.tool_call_id) == ("tool", "5", "c1")


CALLS = [
    StageMessage("thinker", CalledTool("f", '{"a": 1}')),
    StageMessage("thinker", CalledTool("g", "{}")),
    end("thinker", finish_reason="tool_calls"),
]


async def test_calls_of_tools_are_told_whole_and_streamed(http, client):
    client.script = CALLS
    (choice,) = (await http.post(PATH, json={**BODY, "tools": [TOOL]})).json()["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    first, second = choice["message"]["tool_calls"]
    assert (first["type"], first["function"]) == ("function", {"name": "f", "arguments": '{"a": 1}'})
    assert second["function"]["name"] == "g" and first["id"] != second["id"]
    chunks = events((await http.post(PATH, json={**BODY, "tools": [TOOL], "stream": True})).text)
    rows = [row for chunk in chunks for row in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [(row["index"], row["function"]["name"]) for row in rows] == [(0, "f"), (1, "g")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_spoken_answer_that_only_calls_a_tool_needs_no_audio(http, client, stream):
    client.script = [*CALLS, end("code2wav")]
    answer = await http.post(PATH, json={**BODY, **SPOKEN, "tools": [TOOL], "stream": stream})
    assert answer.status_code == 200 and "no_audio" not in answer.text
    assert answer.text.count('"name":"f"') == 1


HEL = TokenChance("Hel", b"Hel", -0.5)
LOGPROBS = (
    TokenLogprob(HEL, (HEL, TokenChance("\ufffd", b"\xf0", -2))),
    TokenLogprob(TokenChance("lo.", b"lo.", float("-inf"))),
)
LOGPROB_ROWS = [
    {
        "token": "Hel",
        "logprob": -0.5,
        "bytes": [72, 101, 108],
        "top_logprobs": [
            {"token": "Hel", "logprob": -0.5, "bytes": [72, 101, 108]},
            {"token": "\ufffd", "logprob": -2, "bytes": [240]},
        ],
    },
    {"token": "lo.", "logprob": -9999.0, "bytes": [108, 111, 46], "top_logprobs": []},
]


async def test_log_probabilities_are_told_as_openai_lists_them(http, client):
    client.script = [
        StageMessage("thinker", TextDelta("Hel", LOGPROBS[:1])),
        StageMessage("thinker", TextDelta("lo.", LOGPROBS[1:])),
        end("thinker"),
    ]
    asked = {**BODY, "logprobs": True, "top_logprobs": 2}
    (choice,) = (await http.post(PATH, json=asked)).json()["choices"]
    assert choice["logprobs"]["content"] == LOGPROB_ROWS
    assert client.inputs[0].sampling.logprobs == 2
    chunks = events((await http.post(PATH, json={**asked, "stream": True})).text)
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry["content"] for entry in told if entry] == [LOGPROB_ROWS[:1], LOGPROB_ROWS[1:]]
    texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
    assert [text for text in texts if text] == ["Hel", "lo."]


async def test_several_answers_are_requests_of_their_own_with_derived_seeds(http, client):
    client.script = TEXT_ONLY
    answer = (await http.post(PATH, json={**BODY, "n": 3, "seed": 2**32 - 1})).json()
    assert [(choice["index"], choice["message"]["content"]) for choice in answer["choices"]] == [
        (0, "Hello."),
        (1, "Hello."),
        (2, "Hello."),
    ]
    assert answer["usage"] == {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15}
    assert [chat.sampling.seed for chat in client.inputs] == [2**32 - 1, 0, 1]
    first = client.request_ids[0]
    assert client.request_ids == [first, f"{first}.1", f"{first}.2"]


async def test_several_streams_are_interleaved_as_they_come(app, client):
    body = {**BODY, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    exchange = RawExchange(app, PATH, json.dumps(body).encode())
    running = asyncio.create_task(exchange.run())
    while len(client.streams) < 2:
        await asyncio.sleep(0)
    first, second = client.streams
    for stream in client.streams:
        stream.accept(("thinker",))
    said = []
    for stream, word in ((second, "b1"), (first, "a1"), (second, "b2")):
        stream.push("thinker", TextDelta(word))
        while word.encode() not in exchange.body_sent:
            await asyncio.sleep(0)
    second.push("thinker", OutputEnd("stop", Usage(9, 2)))
    while b'"stop"' not in exchange.body_sent:
        await asyncio.sleep(0)
    first.push("thinker", TextDelta("a2"))
    first.push("thinker", OutputEnd("length", Usage(9, 5)))
    await running
    *chunks, usage = events(exchange.body_sent.decode())
    for chunk in chunks:
        (choice,) = chunk["choices"]
        said.append((choice["index"], choice["delta"].get("content", choice["finish_reason"])))
    assert said == [(0, ""), (1, ""), (1, "b1"), (0, "a1"), (1, "b2"), (1, "stop"), (0, "a2"), (0, "length")]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 7)
    assert exchange.body_sent.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_aborts_every_answer(app, client, stream):
    client.script = [text("Hel")]
    exchange = RawExchange(app, PATH, json.dumps({**BODY, "n": 3, "stream": stream}).encode())
    running = asyncio.create_task(exchange.run())
    while len(client.streams) < 3:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    exchange.hung_up.set()
    await running
    assert sorted(client.aborted) == sorted(client.request_ids)
    assert len(client.aborted) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_what_one_answer_is_refused_with_ends_the_others(http, client, stream):
    client.script, client.num_admitted = [text("Hel")], 2
    client.refusal = OverloadedError("full", retry_after_s=3)
    answer = await http.post(PATH, json={**BODY, "n": 3, "stream": stream})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")
    assert sorted(client.aborted) == sorted(client.request_ids)
    assert len(client.aborted) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_what_one_answer_fails_with_ends_the_others(app, client, stream):
    exchange = RawExchange(app, PATH, json.dumps({**BODY, "n": 2, "stream": stream}).encode())
    running = asyncio.create_task(exchange.run())
    while len(client.streams) < 2:
        await asyncio.sleep(0)
    client.streams[1].fail(StageError("thinker/0 failed"))
    await running
    assert exchange.status == 500
    assert client.aborted == client.request_ids[:1]


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
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools[0].function.name"),
        ({"messages": [USER, {"role": "tool", "tool_call_id": "c1"}]}, "messages[1].content"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"uniqueItems": True}}}},
            "response_format.json_schema.schema.uniqueItems",
        ),
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
