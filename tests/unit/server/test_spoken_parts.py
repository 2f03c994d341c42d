"""The parts of a text as requests in turn, where a client leaves at the worst moment."""

import asyncio
from dataclasses import dataclass, field

import pytest

from antiphon.client.output_stream import OutputStream
from antiphon.ids import RequestId
from antiphon.messages.tasks import SpeechInput, TaskInput
from antiphon.server.spoken_parts import Mark, SpokenParts
from tests.unit.server.conftest import ScriptedClient

pytestmark = pytest.mark.anyio


@dataclass
class BusyClient(ScriptedClient):
    """Admits when it is told to."""

    has_place: asyncio.Event = field(default_factory=asyncio.Event)

    async def submit(
        self,
        task_input: TaskInput,
        *,
        request_id: str,
        is_whole: bool = False,
        client: str = "",
        began_s: float | None = None,
    ) -> OutputStream:
        await self.has_place.wait()
        return await super().submit(task_input, request_id=request_id, client=client)


async def test_a_part_that_is_admitted_in_the_moment_in_which_its_client_leaves_is_aborted():
    client = BusyClient()
    parts = SpokenParts(client, SpeechInput(""), RequestId("req-1"), caller="somebody")
    parts.add("One.", Mark.END)
    hearing = asyncio.ensure_future(anext(parts.give()))
    await asyncio.sleep(0.01)
    client.has_place.set()
    while not client.streams:
        await asyncio.sleep(0)
    assert not hearing.done()
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)
    assert client.aborted == client.request_ids == ["req-1"]
