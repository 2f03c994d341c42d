"""POST /v1/audio/speech against a scripted runtime."""

import asyncio
import base64
import io
import json
import struct
from dataclasses import replace

import av
import numpy as np
import pytest

from antiphon.clauses import parts_of
from antiphon.errors import InvalidRequestError, OverloadedError, ReplicaDiedError
from antiphon.messages.client import AudioChunk, OutputEnd, Usage
from antiphon.messages.tasks import SpeechInput
from tests.unit.server.conftest import SAMPLE_RATE, RawExchange, ScriptedClient, audio, end, events, eventually, tone

pytestmark = pytest.mark.anyio
PATH = "/v1/audio/speech"
BODY = {"model": "voice", "input": "Hello.", "voice": "anna"}
TWO_CHUNKS = [audio(1_000), audio(1_001, 1_000), end("code2wav", usage=Usage(7, 20, 2_001))]


def decoded(data: bytes) -> np.ndarray:
    with av.open(io.BytesIO(data)) as container:
        return np.concatenate([frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)])


async def test_pcm_is_exactly_the_chunks_in_order(http, client):
    client.script = TWO_CHUNKS
    answer = await http.post(PATH, json={**BODY, "response_format": "pcm"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "audio/pcm;rate=24000;channels=1"
    assert answer.content == tone(2_001)


async def test_wav_has_one_header_with_unknown_sizes_and_then_all_samples(http, client):
    client.script = TWO_CHUNKS
    wav = (await http.post(PATH, json={**BODY, "response_format": "wav"})).content
    assert struct.unpack("<4sI4s", wav[:12]) == (b"RIFF", 0xFFFFFFFF, b"WAVE")
    assert struct.unpack("<4sI", wav[36:44]) == (b"data", 0xFFFFFFFF)
    assert wav[44:] == tone(2_001)


@pytest.mark.parametrize(
    ("format", "content_type"),
    [("mp3", "audio/mpeg"), ("flac", "audio/flac"), ("opus", "audio/ogg"), ("aac", "audio/aac")],
)
async def test_compressed_formats_hold_all_the_audio(http, client, format, content_type):
    client.script = [audio(12_000), audio(12_000, 12_000), end("code2wav")]
    answer = await http.post(PATH, json={**BODY, "response_format": format})
    assert answer.headers["content-type"] == content_type
    with av.open(io.BytesIO(answer.content)) as container:
        rate = container.streams.audio[0].rate
    assert decoded(answer.content).size / rate >= 1.0


async def test_mp3_is_the_default_format(http, client):
    client.script = TWO_CHUNKS
    answer = await http.post(PATH, json=BODY)
    assert answer.headers["content-type"] == "audio/mpeg"


async def test_all_fields_reach_the_runtime(http, client):
    client.script = TWO_CHUNKS
    body = {**BODY, "voice": {"id": "ben"}, "speed": 1.5, "language": "de", "seed": 5, "sample_rate": SAMPLE_RATE}
    assert (await http.post(PATH, json={**body, "instructions": "softly", "unheard_of": 1})).status_code == 200
    assert client.inputs == [SpeechInput(text="Hello.", voice="ben", speed=1.5, language="de", seed=5)]


@pytest.mark.parametrize("language", ["en", "EN", "en-US", "en_GB", "auto", ""])
async def test_a_language_that_the_voice_speaks_is_taken(http, client, language):
    client.script = TWO_CHUNKS
    assert (await http.post(PATH, json={**BODY, "language": language})).status_code == 200


async def test_a_language_that_the_voice_does_not_speak_is_answered_with_the_one_it_speaks(http, client):
    answer = await http.post(PATH, json={**BODY, "voice": "ben", "language": "fr"})
    assert "ben speaks de" in answer.json()["error"]["message"]


@pytest.mark.parametrize("rate", [8_000, 11_111, 16_000, 44_100, 48_000])
async def test_pcm_and_wav_come_at_any_rate_and_say_which(http, client, rate):
    client.script = [audio(12_345), audio(1, 12_345), audio(7_654, 12_346), end("code2wav")]
    pcm = await http.post(PATH, json={**BODY, "response_format": "pcm", "sample_rate": rate})
    assert pcm.headers["content-type"] == f"audio/pcm;rate={rate};channels=1"
    assert len(pcm.content) // 2 == round(20_000 * rate / SAMPLE_RATE)
    wav = (await http.post(PATH, json={**BODY, "response_format": "wav", "sample_rate": rate})).content
    assert struct.unpack("<I", wav[24:28]) == (rate,)
    assert wav[44:] == pcm.content


async def test_null_fields_are_absent_fields(http, client):
    client.script = TWO_CHUNKS
    body = {**BODY, "response_format": None, "speed": None, "voice": None, "stream": None}
    assert (await http.post(PATH, json=body)).status_code == 200
    assert client.inputs == [SpeechInput(text="Hello.")]


@pytest.mark.parametrize("wish", [{"stream_format": "sse"}, {"stream": True}])
async def test_events_carry_the_same_bytes_and_end_with_the_usage(http, client, wish):
    client.script = TWO_CHUNKS
    answer = await http.post(PATH, json={**BODY, "response_format": "pcm", **wish})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    *deltas, done = events(answer.text)
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert len(deltas) >= 2
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == tone(2_001)
    assert done == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 7, "output_tokens": 20, "total_tokens": 27},
    }


async def test_stream_format_audio_wins_over_stream(http, client):
    client.script = TWO_CHUNKS
    answer = await http.post(PATH, json={**BODY, "response_format": "pcm", "stream": True, "stream_format": "audio"})
    assert answer.content == tone(2_001)


@pytest.mark.parametrize("wish", [{"response_format": "wav"}, {"response_format": "mp3"}, {"stream_format": "sse"}])
async def test_an_answer_without_audio_is_an_error_and_never_an_empty_file(http, client, wish):
    client.script = [end("code2wav")]
    answer = await http.post(PATH, json={**BODY, **wish})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "no_audio"
    assert "there is no audio" in answer.json()["error"]["message"]


@pytest.mark.parametrize("wish", [{}, {"stream_format": "sse"}])
async def test_the_runtimes_refusal_is_the_answer(http, client, wish):
    client.refusal = InvalidRequestError("no voice 'x'; voices: anna, ben", param="voice")
    answer = await http.post(PATH, json={**BODY, **wish})
    assert answer.status_code == 400
    assert answer.json() == {
        "error": {
            "message": "no voice 'x'; voices: anna, ben",
            "type": "invalid_request_error",
            "param": "voice",
            "code": "invalid_value",
        }
    }


async def test_overload_says_when_to_come_back(http, client):
    client.refusal = OverloadedError("full", retry_after_s=2.3)
    answer = await http.post(PATH, json=BODY)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "3"
    assert answer.json()["error"]["type"] == "overloaded_error"


async def test_a_failure_before_the_first_audio_is_an_error_response(http, client):
    client.failure = ReplicaDiedError("code2wav/0 died")
    answer = await http.post(PATH, json=BODY)
    assert answer.status_code == 502
    assert answer.json()["error"]["message"] == "code2wav/0 died"


@pytest.mark.parametrize("given", [{}, {"x-request-id": "mine"}])
async def test_a_raw_answer_says_where_its_end_is_told(http, client, given):
    client.script = TWO_CHUNKS
    answer = await http.post(PATH, json={**BODY, "response_format": "pcm"}, headers=given)
    shown = answer.headers["x-request-id"]
    assert answer.headers["link"] == f'<{PATH}/{shown}>; rel="status"'
    for known_id in (shown, *client.request_ids):
        told = (await http.get(f"{PATH}/{known_id}")).json()
        assert (told["id"], told["status"], told["error"]) == (shown, "completed", None)
        assert told["usage"] == {"input_tokens": 7, "output_tokens": 20, "total_tokens": 27}
        assert told["duration_s"] == round(2_001 / SAMPLE_RATE, 3)


async def test_a_raw_answer_that_failed_or_was_left_is_told_as_such(app, http, client):
    client.script, client.failure = [audio(2_400)], ReplicaDiedError("code2wav/0 died")
    body = json.dumps({**BODY, "response_format": "pcm"}).encode()
    await RawExchange(app, PATH, body).run()
    failed = (await http.get(f"{PATH}/{client.request_ids[-1]}")).json()
    assert (failed["status"], failed["error"]["code"], failed["duration_s"]) == ("failed", "replica_died", 0.1)
    client.failure = None
    running = asyncio.create_task((exchange := RawExchange(app, PATH, body)).run())
    await exchange.first_body.wait()
    assert (await http.get(f"{PATH}/{client.request_ids[-1]}")).json()["status"] == "in_progress"
    exchange.hung_up.set()
    await running
    left = (await http.get(f"{PATH}/{client.request_ids[-1]}")).json()
    assert (left["status"], left["usage"], left["error"]) == ("cancelled", None, None)


async def test_a_request_that_nobody_knows_is_a_404(http):
    answer = await http.get(f"{PATH}/req-0123")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "request_not_found"


async def test_a_failure_in_mid_audio_leaves_the_response_unfinished(app, client):
    client.script, client.failure = [audio(100)], ReplicaDiedError("code2wav/0 died")
    exchange = RawExchange(app, PATH, json.dumps({**BODY, "response_format": "pcm"}).encode())
    await exchange.run()
    assert exchange.status == 200
    assert exchange.body_sent == tone(100)
    assert not exchange.complete


async def test_a_failure_in_mid_events_is_a_last_error_event(http, client):
    client.script, client.failure = [audio(100)], ReplicaDiedError("code2wav/0 died")
    answer = await http.post(PATH, json={**BODY, "response_format": "pcm", "stream_format": "sse"})
    assert answer.status_code == 200
    assert "event: error\n" in answer.text
    assert events(answer.text)[-1]["error"]["message"] == "code2wav/0 died"
    assert "speech.audio.done" not in answer.text


@pytest.mark.parametrize("wish", [{"response_format": "pcm"}, {"response_format": "mp3"}, {"stream_format": "sse"}])
@pytest.mark.parametrize("script", [[], [audio(24_000)]], ids=["before_the_first_audio", "in_mid_audio"])
async def test_hanging_up_while_no_audio_comes_aborts_the_request(app, client: ScriptedClient, wish, script):
    client.script = script
    exchange = RawExchange(app, PATH, json.dumps({**BODY, **wish}).encode())
    running = asyncio.create_task(exchange.run())
    await (exchange.first_body.wait() if script else client.submitted.wait())
    assert client.aborted == []
    exchange.hung_up.set()
    await running
    assert client.aborted == client.request_ids


async def test_a_finished_request_is_not_aborted(http, client):
    client.script = TWO_CHUNKS
    await http.post(PATH, json=BODY)
    assert client.aborted == []


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"speed": 0.2}, "speed"),
        ({"speed": 4.1}, "speed"),
        ({"speed": "fast"}, "speed"),
        ({"response_format": "mp4"}, "response_format"),
        ({"stream_format": "websocket"}, "stream_format"),
        ({"sample_rate": 7_999}, "sample_rate"),
        ({"sample_rate": 48_001}, "sample_rate"),
        ({"sample_rate": 23_456, "response_format": "mp3"}, "sample_rate"),
        ({"sample_rate": 44_100, "response_format": "opus"}, "sample_rate"),
        ({"language": "de"}, "language"),
        ({"language": "de", "voice": "alloy"}, "language"),
        ({"language": "en", "voice": "ben"}, "language"),
        ({"language": "german", "voice": None}, "language"),
        ({"input": 5}, "input"),
        ({"voice": 5}, "voice"),
        ({"voice": {"name": "anna"}}, "voice"),
        ({"seed": 2**64}, "seed"),
        ({"input": None}, "input"),
        ({"model": None}, "model"),
    ],
)
async def test_a_wrong_field_is_a_400_that_names_it_and_reaches_no_stage(http, client, change, param):
    answer = await http.post(PATH, json={**BODY, **change})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param in error["message"]
    assert client.inputs == []


async def test_an_unknown_model_is_a_404_that_names_the_right_one(http, client):
    answer = await http.post(PATH, json={**BODY, "model": "tts-9"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "'voice'" in answer.json()["error"]["message"]
    assert client.inputs == []


async def test_openais_model_names_are_served(http, client):
    client.script = TWO_CHUNKS
    assert (await http.post(PATH, json={**BODY, "model": "tts-1"})).status_code == 200


SENTENCES = [f"This is the sentence with the number {number}." for number in range(6)]
LONG = {**BODY, "input": " ".join(SENTENCES), "response_format": "pcm", "seed": 2**32 - 1}
PART = [audio(1_000), end("code2wav", usage=Usage(7, 20, 1_000))]


def cutting(client: ScriptedClient) -> None:
    """The pipeline speaks no more than two of the sentences as one request."""
    speech, *others = client.pipeline.tasks
    client.pipeline = replace(client.pipeline, tasks=(replace(speech, chars_per_request=100), *others))


async def test_a_long_text_is_spoken_in_parts_and_is_one_file(http, client):
    cutting(client)
    client.script = PART
    answer = await http.post(PATH, json={**LONG, "voice": "ben", "speed": 1.1})
    assert answer.content == 3 * tone(1_000)
    assert client.inputs == [
        SpeechInput(part, "ben", 1.1, "", (2**32 - 1 + number) % 2**32, continues=number > 0)
        for number, part in enumerate(parts_of(LONG["input"], 110))
    ]
    own_id = client.request_ids[0]
    assert client.request_ids == [own_id, f"{own_id}.1", f"{own_id}.2"] and len({*client.clients}) == 1
    told = (await http.get(f"{PATH}/{own_id}")).json()
    assert told["usage"] == {"input_tokens": 21, "output_tokens": 60, "total_tokens": 81}
    assert (told["status"], told["duration_s"]) == ("completed", 0.125)
    mp3 = (await http.post(PATH, json={**LONG, "response_format": "mp3"})).content
    assert decoded(mp3).size == pytest.approx(3_000, abs=1_105 + 2 * 576)


async def test_a_client_that_does_not_read_leaves_all_but_two_parts_unmade(app, client):
    cutting(client)
    exchange = RawExchange(app, PATH, json.dumps(LONG).encode())
    running = asyncio.create_task(exchange.run())
    await eventually(lambda: len(client.streams) == 2)
    client.streams[1].push("code2wav", AudioChunk(tone(5, 5), SAMPLE_RATE))
    client.streams[1].push("code2wav", OutputEnd())
    client.streams[0].push("code2wav", AudioChunk(tone(5), SAMPLE_RATE))
    await exchange.first_body.wait()
    await asyncio.sleep(0.05)
    assert (len(client.streams), exchange.body_sent) == (2, tone(5))
    client.streams[0].push("code2wav", OutputEnd())
    assert await eventually(lambda: len(client.streams) == 3)
    exchange.hung_up.set()
    await running
    assert client.aborted == client.request_ids[2:] and exchange.body_sent == tone(10)


async def test_hanging_up_aborts_all_parts_that_are_open(app, client):
    cutting(client)
    exchange = RawExchange(app, PATH, json.dumps(LONG).encode())
    running = asyncio.create_task(exchange.run())
    await eventually(lambda: len(client.streams) == 2)
    exchange.hung_up.set()
    await running
    assert sorted(client.aborted) == sorted(client.request_ids) and len(client.request_ids) == 2


async def test_a_later_part_waits_for_a_place_and_the_first_does_not(http, client):
    cutting(client)
    client.script, client.num_admitted = PART, 1
    client.refusal = OverloadedError("full", retry_after_s=0.05)
    asking = asyncio.create_task(http.post(PATH, json=LONG))
    assert await eventually(lambda: len(client.clients) > 4)
    client.refusal = None
    assert (await asking).content == 3 * tone(1_000)
    client.refusal, client.num_admitted = OverloadedError("full", retry_after_s=0.05), 0
    assert (await http.post(PATH, json=LONG)).status_code == 503


async def test_a_part_without_anything_to_pronounce_is_left_out_and_a_text_of_them_is_a_400(http, client):
    cutting(client)
    asking = asyncio.create_task(http.post(PATH, json=LONG))
    silent = InvalidRequestError("nothing to speak: this voice reads English", param="input")
    for number in range(3):
        assert await eventually(lambda number=number: len(client.streams) > number)
        if number != 1:
            client.streams[number].fail(silent)
            continue
        client.streams[1].push("code2wav", AudioChunk(tone(5), SAMPLE_RATE))
        client.streams[1].push("code2wav", OutputEnd())
    assert (await asking).content == tone(5)
    client.failure = silent
    answer = await http.post(PATH, json=LONG)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


@pytest.mark.parametrize("text", ["x" * 20_001, " ... " * 100, " " * 500])
async def test_a_text_that_cannot_be_spoken_is_left_whole_for_the_runtime_to_refuse(http, client, text):
    cutting(client)
    client.refusal = InvalidRequestError("no", param="input")
    assert (await http.post(PATH, json={**LONG, "input": text})).status_code == 400
    assert len(client.clients) == 1
