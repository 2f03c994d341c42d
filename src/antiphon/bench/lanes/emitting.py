"""Emitting engines for the lane benchmarks: a pipeline of emitters inside this process's library Engine.

In: what each request emits. Out: rates, latencies; StageError if a count is not what was asked for.
Does not know: goals, references.
"""

import asyncio
import time
from collections.abc import Iterable

from antiphon.engine import Engine
from antiphon.errors import StageError
from antiphon.messages.client import OutputEnd, TextDelta, TokenDelta
from antiphon.messages.tasks import ChatInput, ChatMessage
from antiphon.models.simulated.emitter_pipeline import ONE, THREE, EmitterPlan, Heard

_REFERENCE = "antiphon.models.simulated.emitter_pipeline:"
_MAX_OUTPUTS = 20_000


class Emitters:
    """Owns a running Engine: one emitting stage, or three in a row, each of `num_replicas`."""

    def __init__(self, num_replicas: int, *, num_stages: int = 1, arena_mib: int = 64) -> None:
        spec, name = (ONE, "ONE") if num_stages == 1 else (THREE, "THREE")
        settings: dict[str, str | int | float | bool] = {
            f"stages.{stage.name}.replicas": num_replicas for stage in spec.stages
        }
        settings["connector.arena_mib"] = arena_mib
        self.num_replicas = num_replicas
        self.num_stages = num_stages
        self.engine = Engine(_REFERENCE + name, settings=settings)

    async def __aenter__(self) -> "Emitters":
        await self.engine.startup()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()

    async def ask(self, plan: EmitterPlan) -> int:
        """Run one request; gives how many outputs came. StageError if it was not what was planned."""
        task_input = ChatInput((ChatMessage("user", str(plan)),))
        num_outputs = num_ends = 0
        stream = await self.engine.client.submit(task_input)
        async with stream:
            async for message in stream:
                output = message.output
                match output:
                    case TextDelta(text=text):
                        num_outputs += len(text)
                    case TokenDelta(token_ids=token_ids):
                        num_outputs += len(token_ids)
                    case OutputEnd():
                        num_ends += 1
                    case _:
                        raise StageError(f"{stream.request_id}: an emitter gave {type(output).__name__}")
        num_heard = self.num_stages if plan.heard is Heard.ALL else 1
        if (num_outputs, num_ends) != (plan.num_outputs * num_heard, num_heard):
            raise StageError(
                f"{stream.request_id}: {num_outputs} outputs and {num_ends} ends came, expected "
                f"{plan.num_outputs} and one of each of {num_heard} stages"
            )
        return num_outputs

    async def outputs_per_s(self, num_requests: int, plan: EmitterPlan) -> float:
        """Outputs that reach `num_requests` concurrent consumers, each of one request, per second."""
        began_s = time.perf_counter()
        counts = await asyncio.gather(*(self.ask(plan) for _ in range(num_requests)))
        return sum(counts) / (time.perf_counter() - began_s)

    async def fitting(self, num_requests: int, plan: EmitterPlan, seconds: float) -> EmitterPlan:
        """The plan with as many outputs as take about `seconds`.

        Two rounds warm up, the second of about that size: it meets the pages of the arenas that nobody has written.
        """
        for _ in range(2):
            rate = await self.outputs_per_s(num_requests, plan)
            num_heard = self.num_stages if plan.heard is Heard.ALL else 1
            num_outputs = min(_MAX_OUTPUTS, int(seconds * rate / num_requests / num_heard))
            plan = EmitterPlan(max(plan.num_outputs, num_outputs), plan.row_bytes, plan.form, plan.heard)
        return plan

    async def requests_per_s(self, num_requests: int, num_concurrent: int, plan: EmitterPlan) -> float:
        """Requests per second, `num_concurrent` at any time."""
        left = iter(range(num_requests))
        began_s = time.perf_counter()
        await asyncio.gather(*(self._ask_in_turn(left, plan) for _ in range(num_concurrent)))
        return num_requests / (time.perf_counter() - began_s)

    async def latencies_ms(self, num_requests: int, plan: EmitterPlan) -> list[float]:
        """How long each of them takes, one after the other."""
        taken_ms = []
        for _ in range(num_requests):
            began_s = time.perf_counter()
            await self.ask(plan)
            taken_ms.append((time.perf_counter() - began_s) * 1000)
        return taken_ms

    async def _ask_in_turn(self, left: Iterable[int], plan: EmitterPlan) -> None:
        for _ in left:
            await self.ask(plan)
