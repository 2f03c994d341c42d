"""The answers to one chat request: one request in the stages for each, told as they come.

In: a ChatInput and a number. Out: what each answer's stages say, all of it that has come at once.
Does not know: HTTP, events, the shape of an answer.
"""

import asyncio
import dataclasses
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec

from antiphon.client.engine_client import EngineClient
from antiphon.client.output_stream import OutputStream, StageMessage
from antiphon.ids import RequestId, part_id
from antiphon.messages.params import part_seed
from antiphon.messages.tasks import ChatInput

News = list[tuple[int, list[StageMessage]]]
"""Which answer, and what its stages have said since; [] when that was all."""


class AnswerStreams:
    """Owns the streams of one chat request. Leaving its `async with` block aborts all that have not ended.

    The first answer has the request's own id and seed, the others have ids and seeds counted on from them.
    """

    def __init__(self, streams: list[OutputStream]) -> None:
        self._streams = streams
        self._open = set(range(len(streams)))
        self._taking: dict[asyncio.Task[list[StageMessage]], int] = {}

    @classmethod
    async def submit(
        cls, client: EngineClient, chat: ChatInput, num: int, request_id: RequestId, *, is_whole: bool, caller: str
    ) -> Self:
        """All of them or none: what one is refused with is raised, and the others are aborted."""
        submits = [
            client.submit(_seeded(chat, index), request_id=part_id(request_id, index), is_whole=is_whole, client=caller)
            for index in range(num)
        ]
        if num == 1:
            return cls([await submits[0]])
        tasks = [asyncio.ensure_future(submit) for submit in submits]
        try:
            return cls(await asyncio.gather(*tasks))
        except BaseException:
            await _abort(tasks)
            raise

    @property
    def num_open(self) -> int:
        """Answers that may have more."""
        return len(self._open)

    async def take(self) -> News:
        """All that has come, of at least one answer. Raises what any of them has failed with."""
        if len(self._streams) == 1:
            messages = await self._streams[0].take()
            if not messages:
                self._open.clear()
            return [(0, messages)]
        for index in self._open.difference(self._taking.values()):
            self._taking[asyncio.ensure_future(self._streams[index].take())] = index
        done, _ = await asyncio.wait(self._taking, return_when=asyncio.FIRST_COMPLETED)
        return self._noted(sorted((self._taking.pop(task), task.result()) for task in done))

    def _noted(self, news: News) -> News:
        self._open.difference_update(index for index, messages in news if not messages)
        return news

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._taking:
            task.cancel()
        await asyncio.gather(*self._taking, return_exceptions=True)
        for stream in self._streams:
            await stream.aclose()


async def _abort(tasks: Sequence[asyncio.Future[OutputStream]]) -> None:
    """Give up what is being submitted and what has been."""
    for task in tasks:
        task.cancel()
    for made in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(made, OutputStream):
            await made.aclose()


def _seeded(chat: ChatInput, index: int) -> ChatInput:
    seed = part_seed(chat.sampling.seed, index)
    return dataclasses.replace(chat, sampling=msgspec.structs.replace(chat.sampling, seed=seed)) if index else chat
