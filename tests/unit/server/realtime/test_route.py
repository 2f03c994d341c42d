"""The realtime route under the real uvicorn, with a real WebSocket client and stages that play a script."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from antiphon.client.output_stream import OutputStream, StageMessage
from antiphon.config.deploy import ServerDeploy
from antiphon.config.pipeline import PipelineSpec
from antiphon.errors import StageError
from antiphon.messages.client import Segment, Usage
from antiphon.messages.tasks import ChatInput, TaskInput, TranscriptionInput
from antiphon.server.app import create_app
from antiphon.server.drain import Drain
from antiphon.server.settings import ServerSettings
from tests.unit.server.conftest import PIPELINE, ScriptedClient, audio, end, eventually, listening, text
from tests.unit.server.realtime.talking import pcm, written

pytestmark = pytest.mark.anyio
NO_CHAT = PipelineSpec("quiet", PIPELINE.stages, (), PIPELINE.tasks[:1], "nowhere:Frontend")
ANSWER = [text("Hello "), text("there."), audio(2_400), end("thinker", usage=Usage(9, 3)), end("code2wav")]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop of a real api-server."""
    return "asyncio", {"use_uvloop": True}


@dataclass
class TalkingClient(ScriptedClient):
    """Writes every turn down as `words`, and plays its script for chats."""

    words: str = "What is it?"
    answer: list[StageMessage] = field(default_factory=lambda: list(ANSWER))

    async def submit(
        self,
        task_input: TaskInput,
        *,
        request_id: str,
        is_whole: bool = False,
        client: str = "",
        began_s: float | None = None,
    ) -> OutputStream:
        written_down = [StageMessage("listener", Segment(self.words, 0, 1)), end("listener")]
        self.script = self.answer if isinstance(task_input, ChatInput) else written_down
        return await super().submit(task_input, request_id=request_id, is_whole=is_whole, client=client)


@asynccontextmanager
async def serving(client: ScriptedClient, drain: Drain | None = None) -> AsyncIterator[str]:
    """The realtime route's address."""
    settings = ServerDeploy()
    async with listening(create_app(client, ServerSettings(settings), drain or Drain()), settings) as server:
        yield f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1/realtime"


async def say(socket: ClientConnection, kind: str, **fields: object) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def hear_until(socket: ClientConnection, kind: str) -> list[dict]:
    """Everything up to the next event of that kind."""
    heard: list[dict] = []
    async with asyncio.timeout(20):
        while not heard or heard[-1]["type"] != kind:
            heard.append(json.loads(await socket.recv()))
    return heard


async def ask(socket: ClientConnection, **response: object) -> None:
    await say(socket, "conversation.item.create", item=written("user", "Hi."))
    await say(socket, "response.create", response=response)


async def test_a_written_question_gets_a_spoken_answer():
    client = TalkingClient()
    async with serving(client) as url, connect(f"{url}?model=gpt-realtime") as socket:
        (created,) = await hear_until(socket, "session.created")
        assert created["session"]["model"] == "gpt-realtime"
        await ask(socket)
        heard = await hear_until(socket, "response.done")
        pieces = [event["delta"] for event in heard if event["type"] == "response.output_audio.delta"]
        assert b"".join(map(base64.b64decode, pieces)) == audio(2_400).output.pcm
        assert heard[-1]["response"]["output"][0]["content"][0]["transcript"] == "Hello there."
        assert heard[-1]["response"]["usage"]["total_tokens"] == 12
    assert isinstance(client.inputs[0], ChatInput)
    assert client.clients[0], "who asks is not told to the stages"


async def test_a_committed_turn_is_written_down_and_answered():
    client = TalkingClient()
    async with serving(client) as url, connect(url) as socket:
        turns = {"turn_detection": None, "transcription": {"model": "whisper-1"}}
        await say(socket, "session.update", session={"type": "realtime", "audio": {"input": turns}})
        for _ in range(3):
            await say(socket, "input_audio_buffer.append", audio=pcm(900, 0.5))
        await say(socket, "input_audio_buffer.commit")
        await say(socket, "response.create")
        heard = await hear_until(socket, "response.done")
        (told,) = [event for event in heard if event["type"].endswith("transcription.completed")]
        assert told["transcript"] == "What is it?"
        assert heard[-1]["response"]["status"] == "completed"
    spoken, chat = client.inputs
    assert isinstance(spoken, TranscriptionInput)
    assert abs(len(spoken.audio) - 2.7 * 16_000) < 16
    assert isinstance(chat, ChatInput)
    assert chat.messages[0].text == "What is it?"


async def test_a_cancelled_answer_is_aborted_in_the_stages_and_the_next_one_comes():
    client = TalkingClient(answer=[text("Once ")])
    async with serving(client) as url, connect(url) as socket:
        await ask(socket)
        await hear_until(socket, "response.output_audio_transcript.delta")
        await say(socket, "response.cancel")
        heard = await hear_until(socket, "response.done")
        assert heard[-1]["response"]["status"] == "cancelled"
        assert await eventually(lambda: client.aborted == client.request_ids)
        client.answer = list(ANSWER)
        await say(socket, "response.create")
        assert (await hear_until(socket, "response.done"))[-1]["response"]["status"] == "completed"


async def test_a_client_that_vanishes_while_it_is_answered_leaves_nothing_behind():
    client, drain = TalkingClient(answer=[text("Once ")]), Drain()
    async with serving(client, drain) as url:
        socket = await connect(url)
        await ask(socket)
        await hear_until(socket, "response.output_audio_transcript.delta")
        assert drain.num_open() == 1
        socket.transport.abort()
        assert await eventually(lambda: drain.num_open() == 0)
        assert client.aborted == client.request_ids


async def test_a_stage_that_fails_ends_its_response_and_not_the_session():
    client = TalkingClient(answer=[text("Hel")], failure=StageError("talker/0 has died"))
    async with serving(client) as url, connect(url) as socket:
        await ask(socket)
        done = (await hear_until(socket, "response.done"))[-1]["response"]
        assert done["status"] == "failed"
        assert done["status_details"]["error"]["message"] == "talker/0 has died"
        assert done["output"][0]["status"] == "incomplete"
        client.failure, client.answer = None, list(ANSWER)
        await say(socket, "response.create")
        assert (await hear_until(socket, "response.done"))[-1]["response"]["status"] == "completed"


async def test_a_bad_event_is_told_with_its_id_and_the_session_goes_on():
    async with serving(TalkingClient()) as url, connect(url) as socket:
        await hear_until(socket, "session.created")
        for kind, fields, param in (
            ("response.cancel", {}, "response_id"),
            ("session.update", {"session": {"audio": {"output": {"voice": "zoe"}}}}, "session.audio.output.voice"),
            ("session.update", {"session": {"turn_detection": {"type": "other_vad"}}}, None),
            ("conversation.item.delete", {}, "item_id"),
            ("transcription_session.update", {}, "type"),
            ("input_audio_buffer.append", {"audio": "%"}, "audio"),
        ):
            await say(socket, kind, event_id="mine", **fields)
            error = (await hear_until(socket, "error"))[-1]["error"]
            assert (error["type"], error["event_id"]) == ("invalid_request_error", "mine")
            assert error["param"] == (param or "session.audio.input.turn_detection.type")
        await ask(socket)
        assert (await hear_until(socket, "response.done"))[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize(
    "by",
    [
        {"additional_headers": {"OpenAI-Beta": "realtime=v1"}},
        {"subprotocols": ["realtime", "openai-insecure-api-key.none", "openai-beta.realtime-v1"]},
    ],
    ids=["header", "subprotocol"],
)
async def test_a_client_of_the_beta_is_known_by(by):
    async with serving(TalkingClient()) as url, connect(url, **by) as socket:
        assert socket.subprotocol == ("realtime" if "subprotocols" in by else None)
        (created,) = await hear_until(socket, "session.created")
        assert created["session"]["modalities"] == ["text", "audio"]
        await ask(socket)
        heard = await hear_until(socket, "response.done")
        assert "response.audio.delta" in [event["type"] for event in heard]


@pytest.mark.parametrize(
    ("query", "pipeline", "status", "code"),
    [
        ("?model=gpt-5", PIPELINE, 404, "model_not_found"),
        (
            "",
            PipelineSpec("quiet", PIPELINE.stages, (), PIPELINE.tasks[:1], "nowhere:Frontend"),
            400,
            "unsupported_modality",
        ),
    ],
    ids=["unknown model", "no chat"],
)
async def test_what_is_not_served_is_refused_before_the_acceptance(query, pipeline, status, code):
    async with serving(TalkingClient(pipeline=pipeline)) as url:
        with pytest.raises(InvalidStatus) as refused:
            await connect(url + query)
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body)["error"]["code"] == code


async def test_a_draining_server_ends_an_idle_session_at_once():
    drain = Drain()
    async with serving(TalkingClient(), drain) as url, connect(url) as socket:
        await hear_until(socket, "session.created")
        async with asyncio.timeout(20):
            await drain.finish(60.0, lambda error: None)
        assert (await hear_until(socket, "error"))[-1]["error"]["code"] == "shutting_down"
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1012


async def test_a_draining_server_lets_a_session_finish_its_answer():
    client, drain = TalkingClient(answer=ANSWER[:2]), Drain()
    async with serving(client, drain) as url, connect(url) as socket:
        await ask(socket)
        await hear_until(socket, "response.output_audio_transcript.delta")
        draining = asyncio.create_task(drain.finish(60.0, lambda error: None))
        await asyncio.sleep(0.1)
        for message in ANSWER[2:]:
            client.streams[-1].push(message.stage, message.output)
        heard = await hear_until(socket, "error")
        assert heard[-2]["response"]["status"] == "completed"
        async with asyncio.timeout(20):
            await draining
