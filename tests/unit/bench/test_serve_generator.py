"""The load generator against small servers that say exactly what they send."""

import asyncio
import base64
import contextlib
import fcntl
import json
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import IO

import pytest

from antiphon.bench.serve.generator import Generator
from antiphon.bench.serve.messages import DECODE_REPORT, Ask, Plan, Ready, Record, Result, Task

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PCM = b"\x01\x00\x02\x00\x03\x00"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def delta(**fields: object) -> bytes:
    return event({"choices": [{"delta": fields}], "usage": None})


EVENTS = (
    delta(role="assistant", content=""),
    delta(content="Hel"),
    delta(content="lo", audio={"transcript": "lo"}),
    delta(audio={"data": base64.b64encode(PCM).decode()}),
    delta(audio={"data": base64.b64encode(PCM[:2]).decode()}),
    event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}),
    b"data: [DONE]\n\n",
)


def chunked(data: bytes, size: int) -> bytes:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def answers(reply: bytes, delay_s: float = 0.0) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
        with contextlib.suppress(asyncio.CancelledError):  # the end of a test
            await asyncio.sleep(delay_s)
        writer.write(reply)
        await writer.drain()
        writer.close()

    return handle


def run(handler: Handler, task: Task = Task.CHAT_AUDIO, **fields: object) -> Result:
    async def main() -> Result:
        async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            values = {"asks": (Ask(0, "{}"),), "max_concurrency": 0, "deadline_s": 5.0, **fields}
            return await Generator(Plan("127.0.0.1", port, task, 1000, (), **values)).run()

    return asyncio.run(main())


def one(handler: Handler, task: Task = Task.CHAT_AUDIO, **fields: object) -> Record:
    (record,) = run(handler, task, **fields).records
    return record


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_chat_is_read_wherever_the_network_cuts_it(size: int) -> None:
    record = one(answers(chunked(b"".join(EVENTS), size)))
    assert record.error == ""
    assert len(record.text_s) == 2
    assert record.audio_durations_s == [0.003, 0.001]
    assert (record.num_input_tokens, record.num_output_tokens) == (7, 2)
    assert record.sent_s <= record.text_s[0] <= record.audio_s[-1] <= record.end_s


def test_what_was_said_is_summed_so_that_it_can_be_checked() -> None:
    handler = answers(chunked(b"".join(EVENTS), 50))
    record = one(handler, sums_audio=True)
    assert (record.text_crc32, record.pcm_crc32) == (zlib.crc32(b"Hello"), zlib.crc32(PCM + PCM[:2]))
    assert one(handler).pcm_crc32 == 0


def test_a_speech_is_its_bytes_and_its_name_is_in_the_head() -> None:
    reply = chunked(PCM, 100).replace(b"\r\n\r\n", b"\r\nX-Request-ID: req-1\r\n\r\n", 1)
    record = one(answers(reply), Task.SPEECH, sums_audio=True)
    assert (record.error, record.audio_durations_s, record.answer_id) == ("", [0.003], "req-1")
    assert record.pcm_crc32 == zlib.crc32(PCM)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\ntoo many!", "HTTP 503: too many!"),
        (chunked(b"".join(EVENTS[:-1]), 100), "the answer ended without [DONE]"),
        (chunked(b"".join(EVENTS), 100)[:-40], "the connection broke: the server hung up in mid-answer"),
        (chunked(EVENTS[1] + b'data: {"error": {"message": "a stage died"}}\n\n', 50), "a stage died"),
        (chunked(b"data: {nonsense\n\n", 50), "the answer cannot be read"),
        (b"SSH-2.0\r\n\r\n", "the answer cannot be read"),
    ],
)
def test_an_answer_that_is_none_is_an_error_of_its_request(reply: bytes, error: str) -> None:
    assert error in one(answers(reply)).error


def test_an_answer_that_never_comes_ends_at_its_deadline() -> None:
    assert one(answers(b"", delay_s=30.0), deadline_s=0.1).error == "no end within 0.1 s"


def test_a_closed_loop_keeps_as_many_open_as_it_may_and_never_more() -> None:
    num_open, most = 0, 0
    reply = answers(chunked(b"".join(EVENTS), 100), delay_s=0.02)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_open, most
        num_open += 1
        most = max(most, num_open)
        await reply(reader, writer)
        num_open -= 1

    records = run(handle, asks=tuple(Ask(number, "{}") for number in range(12)), max_concurrency=3).records
    assert most == 3 and len(records) == 12 and not any(record.error for record in records)
    waited, first_end_s = sorted(record.ready_s for record in records), min(record.end_s for record in records)
    assert waited[2] < first_end_s <= waited[3]  # the fourth was ready when the first had ended


def test_an_open_loop_sends_when_a_request_is_due_however_slow_the_server_is() -> None:
    asks, num_asked, all_are_asked = tuple(Ask(number, "{}", number * 0.05) for number in range(5)), 0, asyncio.Event()
    reply = answers(chunked(b"".join(EVENTS), 100))

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_asked
        num_asked += 1
        if num_asked == len(asks):
            all_are_asked.set()
        await all_are_asked.wait()
        await reply(reader, writer)

    records = run(handle, asks=asks).records
    assert [record.error for record in records] == [""] * len(asks)
    sent = sorted(record.sent_s for record in records)
    assert all(sent_s >= ask.due_s for sent_s, ask in zip(sent, asks, strict=True))


async def steady(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer of 10 deltas, one every 100 ms."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(HEAD)
    for piece in [EVENTS[1]] * 10 + [EVENTS[-1]]:
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await asyncio.sleep(0.1)
    writer.write(b"0\r\n\r\n")
    writer.close()


def test_a_client_that_is_told_to_leave_hangs_up_in_mid_answer_and_that_is_no_error() -> None:
    left, stayed = run(steady, asks=(Ask(0, "{}", leaves_after_s=0.5), Ask(1, "{}"))).records
    assert (left.number, left.has_left, left.error, stayed.has_left, stayed.error) == (0, True, "", False, "")
    assert 0 < len(left.text_s) < len(stayed.text_s) == 10


def test_a_client_that_would_leave_after_the_end_has_read_the_whole_answer() -> None:
    record = one(answers(chunked(b"".join(EVENTS), 100)), asks=(Ask(0, "{}", leaves_after_s=5.0),))
    assert (record.has_left, record.error, len(record.text_s)) == (False, "", 2)


def test_a_client_that_reads_slowly_takes_its_time_and_gets_everything() -> None:
    reply = chunked(b"".join(EVENTS[:-1]) * 200 + EVENTS[-1], 1000)
    slow, fast = (one(answers(reply), asks=(Ask(0, "{}", bytes_per_s=rate),)) for rate in (500_000.0, 0.0))
    assert (
        (slow.error, len(slow.text_s), slow.num_bytes)
        == ("", 400, len(reply))
        == (
            fast.error,
            len(fast.text_s),
            fast.num_bytes,
        )
    )
    assert slow.text_s[-1] - slow.text_s[0] > 0.1 * len(reply) / 500_000


def is_full(pipe: IO[bytes]) -> bool:
    (num_bytes,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return num_bytes >= fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) - select.PIPE_BUF


def test_a_long_report_is_whole_also_when_nobody_buffers_and_a_signal_comes_in_the_middle() -> None:
    """As in a container with PYTHONUNBUFFERED=1: a write to the pipe then ends where it is interrupted."""
    says = (
        "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "from antiphon.bench.serve.generator import _tell; from antiphon.bench.serve.messages import Ready, Result\n"
        "_tell(Ready()); _tell(Result([], [0.5] * 200_000, 1.0, 1.0))"
    )
    with subprocess.Popen([sys.executable, "-u", "-c", says], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert DECODE_REPORT.decode(process.stdout.readline()) == Ready()
        while not is_full(process.stdout):
            time.sleep(0.01)
        process.send_signal(signal.SIGUSR1)
        result = DECODE_REPORT.decode(process.stdout.readline())
    assert isinstance(result, Result) and len(result.loop_lags_s) == 200_000
