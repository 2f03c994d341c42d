"""Part f of `bench lanes`: text deltas over HTTP from one api-server, against bare uvicorn with the same payload.

In: an effort. Out: rows; StageError if a delta was lost. Does not know: the runtime.
"""

import asyncio
import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

import msgspec

from antiphon.bench.lanes.bare import Helper
from antiphon.bench.lanes.effort import Effort
from antiphon.bench.measures import Bound, Goal, Row
from antiphon.bench.processes import BenchServer, exact_cpu_s
from antiphon.errors import StageError
from antiphon.models.simulated.emitter_pipeline import ONE, EmitterPlan, Form, Heard

_REFERENCE = "antiphon.models.simulated.emitter_pipeline:ONE"
_NUM_CONNECTIONS = 32
_READ_BYTES = 1 << 18
_EVENT = re.compile(rb'data: [^\n]*"content":"([a-z]+)"[^\n]*\n\n')
_RETRY_S = 0.05
_GOAL = Goal(Bound.AT_LEAST, 0.5)


@dataclass(frozen=True)
class Relayed:
    """Text deltas per second, and the milliseconds of CPU that 1,000 of them cost the process that sends them."""

    per_s: float
    cpu_ms: float


async def sse(effort: Effort) -> list[Row]:
    """Part f."""
    server = BenchServer(f"stages.a.max_batch_size={_NUM_CONNECTIONS}", pipeline=_REFERENCE)
    try:
        await asyncio.to_thread(server.__enter__)
        sample = _EVENT.search(await _read(server.host, server.port, 2))
        if sample is None:
            raise StageError("no text delta came over HTTP")
        port = _free_port()
        async with Helper("http", str(port), str(effort.num_deltas), sample[0].decode()) as helper:
            await _until_served(port)
            ours, bare = [], []
            for _ in range(effort.repeats):
                api_server = server.pid_of("api-server/0")
                ours.append(await relay(server.host, server.port, effort.num_deltas, api_server))
                bare.append(await relay("127.0.0.1", port, effort.num_deltas, helper.pid))
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)
    label = f"f: SSE text deltas, {_NUM_CONNECTIONS} connections / bare uvicorn"
    return [
        Row(label, "deltas/s", median(each.per_s for each in ours), median(each.per_s for each in bare), _GOAL),
        Row(
            "f: CPU of the api-server for 1,000 of them / bare uvicorn's",
            "ms",
            median(each.cpu_ms for each in ours),
            median(each.cpu_ms for each in bare),
        ),
    ]


async def relay(host: str, port: int, num_deltas: int, pid: int) -> Relayed:
    """Over 32 connections at once, from process `pid`; StageError if not every delta came in an event of its own."""
    began_s, used_s = time.perf_counter(), exact_cpu_s(pid)
    bodies = await asyncio.gather(*(_read(host, port, num_deltas) for _ in range(_NUM_CONNECTIONS)))
    taken_s, used_s = time.perf_counter() - began_s, exact_cpu_s(pid) - used_s
    for body in bodies:
        num_events = len(_EVENT.findall(body))
        if num_events != num_deltas:
            raise StageError(f"port {port}: {num_events} events came over a connection, expected {num_deltas}")
    num_relayed = num_deltas * len(bodies)
    return Relayed(num_relayed / taken_s, 1e6 * used_s / num_relayed)


async def _read(host: str, port: int, num_deltas: int) -> bytes:
    """Everything that a chat is answered with."""
    content = str(EmitterPlan(num_deltas, 0, Form.APART, Heard.FIRST))
    body = msgspec.json.encode({"model": ONE.name, "messages": [{"role": "user", "content": content}], "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = bytearray()
    while data := await reader.read(_READ_BYTES):
        answer += data
    writer.close()
    return bytes(answer)


async def _until_served(port: int) -> None:
    while True:
        with suppress(ConnectionRefusedError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(_RETRY_S)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
