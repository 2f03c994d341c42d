"""WebSocket /v1/audio/speech/stream under the real uvicorn, with a real client, against a scripted runtime."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from antiphon.config.deploy import ServerDeploy
from antiphon.errors import InvalidRequestError, OverloadedError, ReplicaDiedError
from antiphon.messages.client import AudioChunk, OutputEnd, Usage
from antiphon.messages.tasks import SpeechInput
from antiphon.server.app import create_app
from antiphon.server.drain import Drain
from antiphon.server.settings import ServerSettings
from tests.unit.server.conftest import SAMPLE_RATE, ScriptedClient, audio, end, eventually, listening, tone

pytestmark = pytest.mark.anyio
SPOKEN = [audio(1_000), end("code2wav", usage=Usage(3, 4, 1_000))]


@dataclass
class Talk:
    """A client's end of one WebSocket; deltas are kept, other events are heard one by one."""

    socket: ClientConnection
    encoded: bytes = b""
    binary: bytes = b""

    async def say(self, kind: str, **fields: object) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def hear(self) -> dict:
        """The next event that is no delta."""
        async with asyncio.timeout(20):
            while True:
                message = await self.socket.recv()
                if isinstance(message, bytes):
                    self.binary += message
                    continue
                event = json.loads(message)
                if event["type"] != "speech.audio.delta":
                    return event
                self.encoded += base64.b64decode(event["audio"], validate=True)

    async def expect(self, kind: str) -> dict:
        event = await self.hear()
        assert event["type"] == kind, event
        return event


@asynccontextmanager
async def talking(client: ScriptedClient, drain: Drain | None = None, **limits: float) -> AsyncIterator[Talk]:
    settings = ServerDeploy(**limits)
    async with listening(create_app(client, ServerSettings(settings), drain or Drain()), settings) as server:
        port = server.servers[0].sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}/v1/audio/speech/stream") as socket:
            talk = Talk(socket)
            await talk.expect("session.created")
            yield talk


def texts(client: ScriptedClient) -> list[str]:
    return [each.text for each in client.inputs if isinstance(each, SpeechInput)]


async def test_a_text_in_pieces_is_one_audio_of_whole_sentences(client):
    client.script = SPOKEN
    async with talking(client) as talk:
        for piece in ("Hel", "lo there. How", " are you", "? And the last"):
            await talk.say("input_text.append", text=piece)
        assert await eventually(lambda: len(client.inputs) == 2)
        await talk.say("input_text.done")
        done = await talk.expect("speech.audio.done")
    assert texts(client) == ["Hello there.", "How are you?", "And the last"]
    assert len(client.clients) == 3 and len({*client.clients}) == 1 and client.clients[0]
    assert talk.encoded == 3 * tone(1_000)
    assert done["status"] == "completed"
    assert done["usage"] == {"input_tokens": 9, "output_tokens": 12, "total_tokens": 21}
    assert done["duration_s"] == round(3_000 / SAMPLE_RATE, 3)
    assert client.aborted == []


async def test_the_next_sentence_is_made_while_one_is_played_and_no_further_one(client):
    async with talking(client) as talk:
        await talk.say("input_text.append", text="One. Two. Three. Four. ")
        await talk.say("input_text.done")
        assert await eventually(lambda: len(client.streams) == 2)
        client.streams[1].push("code2wav", AudioChunk(tone(5, 5), SAMPLE_RATE))
        client.streams[1].push("code2wav", OutputEnd())
        await asyncio.sleep(0.05)
        assert len(client.streams) == 2
        client.streams[0].push("code2wav", AudioChunk(tone(5), SAMPLE_RATE))
        client.streams[0].push("code2wav", OutputEnd())
        for number in (2, 3):
            assert await eventually(lambda number=number: len(client.streams) > number)
            client.streams[number].push("code2wav", AudioChunk(tone(5, 5 * number), SAMPLE_RATE))
            client.streams[number].push("code2wav", OutputEnd())
        await talk.expect("speech.audio.done")
    assert talk.encoded == tone(20)


async def test_a_flush_speaks_what_there_is_and_is_answered_behind_its_audio(client):
    client.script = SPOKEN
    async with talking(client) as talk:
        await talk.say("input_text.append", text="An unfinished")
        await talk.say("input_text.flush")
        await talk.expect("speech.audio.flushed")
        assert (texts(client), talk.encoded) == (["An unfinished"], tone(1_000))
        await talk.say("input_text.append", text=" sentence")
        await talk.say("input_text.done")
        await talk.expect("speech.audio.done")
    assert texts(client) == ["An unfinished", "sentence"]


async def test_every_audio_is_measured_from_its_first_text_on(client):
    client.script = SPOKEN
    settings = ServerDeploy()
    async with listening(create_app(client, ServerSettings(settings), Drain()), settings) as server:
        address = f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        async with connect(f"ws://{address}/v1/audio/speech/stream") as socket:
            talk = Talk(socket)
            await talk.expect("session.created")
            for _ in range(2):
                await talk.say("input_text.append", text="One. Two.")
                await talk.say("input_text.done")
                await talk.expect("speech.audio.done")
        async with httpx.AsyncClient() as http:
            page = (await http.get(f"http://{address}/metrics")).text
    for family in ("ttfa", "e2e", "audio_underrun"):
        assert f'antiphon_{family}_seconds_count{{process="api-server/0",task="speech_stream"}} 2.0' in page


async def test_one_encoder_makes_one_file_of_all_sentences(client):
    client.script = SPOKEN
    async with talking(client) as talk:
        await talk.say("session.update", session={"response_format": "wav", "sample_rate": 48_000})
        await talk.expect("session.updated")
        await talk.say("input_text.append", text="One. Two. Three.")
        await talk.say("input_text.done")
        await talk.expect("speech.audio.done")
    assert talk.encoded.count(b"RIFF") == 1 and talk.encoded.startswith(b"RIFF")
    assert len(talk.encoded) == 44 + 2 * 6_000


async def test_audio_comes_as_binary_messages_if_the_client_asks_for_them(client):
    client.script = SPOKEN
    async with talking(client) as talk:
        await talk.say("session.update", session={"audio_messages": "binary"})
        await talk.expect("session.updated")
        await talk.say("input_text.append", text="One. Two.")
        await talk.say("input_text.flush")
        await talk.expect("speech.audio.flushed")
        assert (talk.binary, talk.encoded) == (2 * tone(1_000), b"")


async def test_the_session_is_described_and_its_wishes_reach_every_sentence(client):
    client.script = SPOKEN
    async with talking(client) as talk:
        await talk.say("session.update", session={"voice": "ben", "speed": 1.5, "seed": 7, "model": "tts-1"})
        await talk.say("session.update", session={"language": "de-AT", "instructions": "softly", "voice": None})
        await talk.expect("session.updated")
        session = (await talk.expect("session.updated"))["session"]
        assert session == {
            "id": session["id"],
            "object": "audio.speech.session",
            "model": "tts-1",
            "voice": "ben",
            "language": "de-AT",
            "speed": 1.5,
            "seed": 7,
            "response_format": "pcm",
            "audio_messages": "events",
            "sample_rate": SAMPLE_RATE,
        }
        await talk.say("input_text.append", text="Eins. Zwei.")
        await talk.say("input_text.done")
        await talk.expect("speech.audio.done")
    assert client.inputs == [
        SpeechInput(text="Eins.", voice="ben", speed=1.5, language="de-AT", seed=7),
        SpeechInput(text="Zwei.", voice="ben", speed=1.5, language="de-AT", seed=8, continues=True),
    ]


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"voice": "bob"}, "voice"),
        ({"language": "fr"}, "language"),
        ({"speed": 9}, "session.speed"),
        ({"sample_rate": 44_100, "response_format": "opus"}, "sample_rate"),
        ({"model": "tts-9"}, "model"),
    ],
)
async def test_a_wish_that_cannot_be_met_is_an_error_event_and_changes_nothing(client, session, param):
    client.script = SPOKEN
    async with talking(client) as talk:
        await talk.say("session.update", session=session, event_id="e-7")
        error = (await talk.expect("error"))["error"]
        assert (error["type"], error["param"], error["event_id"]) == ("invalid_request_error", param, "e-7")
        await talk.say("input_text.append", text="Hello.")
        await talk.say("input_text.done")
        assert (await talk.expect("speech.audio.done"))["status"] == "completed"
    assert client.inputs == [SpeechInput(text="Hello.")]


async def test_cancel_aborts_what_is_open_and_the_next_audio_may_begin_at_once(client):
    async with talking(client) as talk:
        await talk.say("input_text.append", text="One. Two. Three. ")
        assert await eventually(lambda: len(client.streams) == 2)
        client.streams[0].push("code2wav", AudioChunk(tone(5), SAMPLE_RATE))
        client.script = SPOKEN
        await talk.say("response.cancel")
        await talk.say("input_text.append", text="Again.")
        await talk.say("input_text.done")
        assert (await talk.expect("speech.audio.done"))["status"] == "cancelled"
        talk.encoded = b""
        assert (await talk.expect("speech.audio.done"))["status"] == "completed"
        assert talk.encoded == tone(1_000)
    assert sorted(client.aborted) == sorted(client.request_ids[:2])
    assert texts(client) == ["One.", "Two.", "Again."]


async def test_a_client_that_leaves_aborts_what_is_open(client):
    async with talking(client) as talk:
        await talk.say("input_text.append", text="One. Two. Three. ")
        assert await eventually(lambda: len(client.streams) == 2)
        talk.socket.transport.abort()
        assert await eventually(lambda: sorted(client.aborted) == sorted(client.request_ids))


@pytest.mark.parametrize("end_of_the_failed", ["input_text.done", "response.cancel"])
async def test_a_stage_that_fails_ends_the_audio_and_not_the_session(client, end_of_the_failed):
    client.script, client.failure = [audio(10)], ReplicaDiedError("code2wav/0 died")
    async with talking(client) as talk:
        await talk.say("input_text.append", text="One. Two. Three.")
        assert (await talk.expect("error"))["error"]["message"] == "code2wav/0 died"
        assert (await talk.expect("speech.audio.done"))["status"] == "failed"
        assert talk.encoded == tone(10)
        client.script, client.failure = SPOKEN, None
        await talk.say("input_text.append", text=" This belongs to what has failed. So does this.")
        await talk.say(end_of_the_failed)
        await talk.say("input_text.append", text="Again.")
        await talk.say("input_text.done")
        assert (await talk.expect("speech.audio.done"))["status"] == "completed"
        assert texts(client)[-1] == "Again." and len(client.inputs) <= 3


async def test_overload_is_told_as_such(client):
    client.refusal = OverloadedError("full", retry_after_s=2)
    async with talking(client) as talk:
        await talk.say("input_text.append", text="One. Two.")
        await talk.say("input_text.done")
        assert (await talk.expect("error"))["error"]["type"] == "overloaded_error"
        assert (await talk.expect("speech.audio.done"))["status"] == "failed"


async def test_a_sentence_without_anything_to_pronounce_is_left_out_and_a_text_of_them_is_an_error(client):
    async with talking(client) as talk:
        await talk.say("input_text.append", text="你好。\n\nHello.")
        await talk.say("input_text.done")
        assert await eventually(lambda: len(client.streams) == 2)
        client.streams[0].fail(InvalidRequestError("nothing to speak", param="input"))
        client.streams[1].push("code2wav", AudioChunk(tone(5), SAMPLE_RATE))
        client.streams[1].push("code2wav", OutputEnd())
        assert (await talk.expect("speech.audio.done"))["status"] == "completed"
        await talk.say("input_text.append", text=" ... !? \n")
        await talk.say("input_text.done")
        error = (await talk.expect("error"))["error"]
        assert (error["code"], error["param"]) == ("no_audio", "text")
        assert (await talk.expect("speech.audio.done"))["status"] == "failed"
        await talk.say("input_text.append", text="你好。")
        await talk.say("input_text.done")
        assert await eventually(lambda: len(client.streams) == 3)
        client.streams[2].fail(InvalidRequestError("this voice reads English", param="input"))
        error = (await talk.expect("error"))["error"]
        assert (error["message"], error["param"]) == ("this voice reads English", "text")


async def test_the_text_of_one_audio_is_bounded(client):
    client.script = SPOKEN
    async with talking(client, max_text_chars=20) as talk:
        await talk.say("input_text.append", text="Twelve chars")
        await talk.say("input_text.append", text=" and nine")
        error = (await talk.expect("error"))["error"]
        assert (error["code"], error["param"]) == ("string_above_max_length", "text")
        await talk.say("input_text.done")
        assert (await talk.expect("speech.audio.done"))["status"] == "completed"
    assert texts(client) == ["Twelve chars"]


@pytest.mark.parametrize(
    ("before", "kind", "problem"),
    [
        ((), "input_text.done", "no text has come"),
        ((), "input_text.flush", "no text has come"),
        ((), "response.cancel", "no audio is under way"),
        (("input_text.append", "input_text.done"), "input_text.append", "the text is complete"),
        (("input_text.append", "input_text.done"), "input_text.flush", "the text is complete"),
        (("input_text.append",), "session.update", "an audio is under way"),
    ],
)
async def test_an_event_out_of_order_is_told_what_is_the_matter(client, before, kind, problem):
    async with talking(client) as talk:
        for each in (*before, kind):
            await talk.say(each, text="Hello.", session={"speed": 2})
        error = (await talk.expect("error"))["error"]
        assert error["code"] == "invalid_event_order" and problem in error["message"]


async def test_flushes_without_a_text_between_them_are_answered_once(client):
    async with talking(client) as talk:
        await talk.say("input_text.append", text="Hello")
        for _ in range(50):
            await talk.say("input_text.flush")
        await talk.say("input_text.done")
        await talk.say("input_text.done")
        await talk.expect("error")
        client.streams[0].push("code2wav", AudioChunk(tone(5), SAMPLE_RATE))
        client.streams[0].push("code2wav", OutputEnd())
        await talk.expect("speech.audio.flushed")
        await talk.expect("speech.audio.done")


async def test_a_server_that_shuts_down_ends_idle_sessions_and_lets_an_audio_end(client):
    drain = Drain()
    async with talking(client, drain) as talk:
        await talk.say("input_text.append", text="Hello.")
        await talk.say("input_text.done")
        assert await eventually(lambda: len(client.streams) == 1)
        finishing = asyncio.create_task(drain.finish(10, lambda error: None))
        await asyncio.sleep(0.05)
        client.streams[0].push("code2wav", AudioChunk(tone(5), SAMPLE_RATE))
        client.streams[0].push("code2wav", OutputEnd())
        assert (await talk.expect("speech.audio.done"))["status"] == "completed"
        assert (await talk.expect("error"))["error"]["code"] == "shutting_down"
        with pytest.raises(ConnectionClosed):
            await talk.hear()
        await finishing


async def test_a_client_that_does_not_read_is_cut_off_and_its_requests_aborted(client):
    async with talking(client, client_read_deadline_s=0.3) as talk:
        talk.socket.transport.pause_reading()
        await talk.say("input_text.append", text="One. Two. Three")
        assert await eventually(lambda: len(client.streams) == 2)
        for _ in range(100):
            client.streams[0].push("code2wav", AudioChunk(tone(24_000), SAMPLE_RATE))
        assert await eventually(lambda: sorted(client.aborted) == sorted(client.request_ids), 20)


async def test_a_pipeline_that_does_not_speak_refuses_before_the_handshake(client):
    client.pipeline = replace(client.pipeline, tasks=client.pipeline.tasks[1:])
    with pytest.raises(InvalidStatus) as raised:
        async with talking(client):
            pass
    assert raised.value.response.status_code == 400
