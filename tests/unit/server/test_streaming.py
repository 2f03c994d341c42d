"""Work that ends with its client, and responses made while they are sent."""

import asyncio

import pytest

from antiphon.errors import RequestAbortedError, StageError
from antiphon.server.streaming import StreamedResponse, run_until_disconnect

pytestmark = pytest.mark.anyio


async def never_disconnects() -> dict:
    await asyncio.Event().wait()
    raise AssertionError


async def test_the_result_of_work_that_finishes_is_returned():
    async def work() -> int:
        await asyncio.sleep(0)
        return 5

    assert await run_until_disconnect(never_disconnects, work()) == 5


async def test_work_is_cancelled_and_awaited_when_the_client_hangs_up():
    cleaned_up = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.set()

    async def disconnects() -> dict:
        return {"type": "http.disconnect"}

    with pytest.raises(RequestAbortedError):
        await run_until_disconnect(disconnects, work())
    assert cleaned_up.is_set()


async def test_no_header_is_sent_before_the_first_bytes_and_an_error_before_them_is_raised():
    sent: list[dict] = []

    async def send(message: dict) -> None:
        sent.append(message)

    async def pieces():
        assert sent == []
        raise StageError("too early")
        yield b""

    with pytest.raises(StageError, match="too early"):
        await StreamedResponse(pieces(), media_type="audio/wav")({}, never_disconnects, send)
    assert sent == []


async def test_a_generator_without_bytes_is_an_error():
    async def pieces():
        return
        yield b""

    async def send(message: dict) -> None:
        raise AssertionError

    with pytest.raises(StageError, match="without any output"):
        await StreamedResponse(pieces(), media_type="audio/wav")({}, never_disconnects, send)


async def test_a_send_that_fails_closes_the_generator():
    closed = asyncio.Event()

    async def pieces():
        try:
            yield b"one"
            yield b"two"
        finally:
            closed.set()

    async def send(message: dict) -> None:
        if message.get("body") == b"one":
            raise OSError("connection lost")

    with pytest.raises(RequestAbortedError):
        await StreamedResponse(pieces(), media_type="audio/wav")({}, never_disconnects, send)
    assert closed.is_set()
