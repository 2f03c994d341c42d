"""OutputStream: several stages' messages in one stream that ends or raises exactly once."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps

import pytest

from antiphon.client.output_stream import OutputStream, StageMessage
from antiphon.errors import AntiphonError, HandoffTimeoutError, OverloadedError, ReplicaDiedError, StageError
from antiphon.messages.client import (
    AudioChunk,
    ImageOutput,
    OutputEnd,
    Segment,
    TextDelta,
    TokenDelta,
    Usage,
)

Test = Callable[[], Coroutine[None, None, None]]
END = OutputEnd("stop", Usage(1, 2, 3))
FINALS = ("thinker", "code2wav")


def in_a_loop(test: Test) -> Callable[[], None]:
    """Run an async test in an event loop of its own."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Bench:
    """A stream and the aborts that it has asked for."""

    def __init__(
        self, *, finals: tuple[str, ...] = FINALS, deadline_s: float = 30.0, max_backlog_bytes: int = 1 << 20
    ) -> None:
        self.aborts: list[tuple[str, str]] = []
        self.stream = OutputStream(
            "req-1",
            deadline_s=deadline_s,
            max_backlog_bytes=max_backlog_bytes,
            abort=lambda request_id, reason: self.aborts.append((request_id, reason)),
        )
        if finals:
            self.stream.accept(finals)

    async def taken(self) -> tuple[list[StageMessage], AntiphonError | None]:
        """All messages until the end, and the error it ended with."""
        messages = []
        try:
            async for message in self.stream:
                messages.append(message)
        except AntiphonError as error:
            return messages, error
        return messages, None


@in_a_loop
async def test_two_finals_are_merged_in_the_order_of_arrival_and_both_must_end() -> None:
    bench = Bench()
    pcm = AudioChunk(b"\1\2", 24_000)
    bench.stream.push("thinker", TextDelta("a"))
    bench.stream.push("code2wav", pcm)
    bench.stream.push("thinker", END)
    assert not bench.stream.ended
    bench.stream.push("code2wav", pcm)
    bench.stream.push("code2wav", END)
    assert bench.stream.ended
    messages, error = await bench.taken()
    assert error is None
    assert messages == [
        StageMessage("thinker", TextDelta("a")),
        StageMessage("code2wav", pcm),
        StageMessage("thinker", END),
        StageMessage("code2wav", pcm),
        StageMessage("code2wav", END),
    ]
    assert await bench.taken() == ([], None), "it stays at its end"


@in_a_loop
async def test_a_reader_that_waits_is_woken_by_each_message_and_by_the_end() -> None:
    bench = Bench(finals=("thinker",))
    taking = asyncio.create_task(bench.taken())
    for output in (TextDelta("a"), TextDelta("b"), END):
        await asyncio.sleep(0)
        bench.stream.push("thinker", output)
    messages, error = await taking
    assert ([message.output for message in messages], error) == ([TextDelta("a"), TextDelta("b"), END], None)


@in_a_loop
async def test_all_that_has_come_is_taken_at_once_and_nothing_at_the_end() -> None:
    bench = Bench(finals=("thinker",))
    for text in "ab":
        bench.stream.push("thinker", TextDelta(text))
    assert [message.output for message in await bench.stream.take()] == [TextDelta("a"), TextDelta("b")]
    taking = asyncio.create_task(bench.stream.take())
    await asyncio.sleep(0)
    bench.stream.push("thinker", TextDelta("c"))
    bench.stream.push("thinker", END)
    assert [message.output for message in await taking] == [TextDelta("c"), END]
    assert await bench.stream.take() == [] and bench.stream.backlog_bytes == 0


@in_a_loop
async def test_of_a_long_backlog_16_kib_are_taken_and_the_rest_keeps_its_place_in_the_bound() -> None:
    bench, chunk = Bench(), AudioChunk(bytes(6 << 10), 24_000)
    for output in (TextDelta("a"), chunk, chunk, chunk, AudioChunk(bytes(20 << 10), 24_000)):
        bench.stream.push("code2wav", output)
    assert [message.output for message in await bench.stream.take()] == [TextDelta("a"), chunk, chunk]
    assert bench.stream.backlog_bytes == 26 << 10
    assert [len(await bench.stream.take()) for _ in range(2)] == [1, 1], "one too large is given alone"
    assert bench.stream.backlog_bytes == 0


@in_a_loop
async def test_what_came_before_an_error_is_taken_and_then_the_error_is_raised() -> None:
    bench = Bench()
    bench.stream.push("thinker", TextDelta("a"))
    bench.stream.fail(StageError("no voice"))
    assert len(await bench.stream.take()) == 1
    with pytest.raises(StageError, match="no voice"):
        await bench.stream.take()


@in_a_loop
async def test_outputs_before_an_error_are_given_and_then_the_error_is_raised() -> None:
    bench = Bench()
    bench.stream.push("thinker", TextDelta("a"))
    bench.stream.fail(StageError("no voice", code="mute"))
    messages, error = await bench.taken()
    assert messages == [StageMessage("thinker", TextDelta("a"))]
    assert type(error) is StageError and (error.message, error.code) == ("no voice", "mute")
    assert bench.aborts == []


@in_a_loop
async def test_the_first_error_counts_and_nothing_comes_after_it() -> None:
    bench = Bench()
    bench.stream.fail(StageError("first"))
    bench.stream.fail(ReplicaDiedError("second"))
    bench.stream.push("thinker", TextDelta("late"))
    messages, error = await bench.taken()
    assert messages == []
    assert error is not None and error.message == "first"


@in_a_loop
async def test_messages_after_the_end_and_a_failure_after_it_are_dropped() -> None:
    bench = Bench(finals=("thinker",))
    bench.stream.push("thinker", END)
    bench.stream.push("thinker", TextDelta("late"))
    bench.stream.fail(StageError("late"))
    assert await bench.taken() == ([StageMessage("thinker", END)], None)


@in_a_loop
async def test_messages_of_a_stage_after_its_own_end_are_dropped() -> None:
    bench = Bench()
    bench.stream.push("thinker", END)
    bench.stream.push("thinker", TextDelta("late"))
    bench.stream.push("thinker", END)
    assert not bench.stream.ended
    bench.stream.push("code2wav", END)
    messages, _ = await bench.taken()
    assert messages == [StageMessage("thinker", END), StageMessage("code2wav", END)]


@in_a_loop
async def test_a_stages_end_that_comes_before_the_acceptance_does_not_end_the_request() -> None:
    bench = Bench(finals=())
    bench.stream.push("thinker", END)
    assert not bench.stream.ended
    bench.stream.accept(FINALS)
    assert not bench.stream.ended
    bench.stream.push("code2wav", END)
    assert bench.stream.ended


@in_a_loop
async def test_silence_beyond_the_deadline_aborts_and_names_the_stages_that_owe_an_end() -> None:
    bench = Bench(deadline_s=0.01)
    bench.stream.push("thinker", END)
    messages, error = await bench.taken()
    assert messages == [StageMessage("thinker", END)]
    assert isinstance(error, HandoffTimeoutError)
    assert "req-1 had no output for 0.01 s" in error.message and error.message.endswith("the logs of code2wav")
    assert bench.aborts == [("req-1", "its stages said nothing in time")]
    await bench.stream.aclose()
    assert len(bench.aborts) == 1


@pytest.mark.parametrize(
    "output", [AudioChunk(bytes(60), 24_000), ImageOutput(bytes(60), 4, 5, 3), TextDelta("a"), Segment("a", 0, 1)]
)
def test_a_backlog_over_the_bound_aborts_and_fails_after_what_was_kept(
    output: AudioChunk | ImageOutput | TextDelta | Segment,
) -> None:
    async def test() -> None:
        bench = Bench(max_backlog_bytes=140)
        for _ in range(2):
            bench.stream.push("code2wav", output)
        assert bench.aborts == [] and 120 <= bench.stream.backlog_bytes <= 140
        bench.stream.push("code2wav", output)
        assert bench.aborts == [("req-1", "its client does not read")]
        bench.stream.push("code2wav", output)
        messages, error = await bench.taken()
        assert len(messages) == 3
        assert isinstance(error, OverloadedError) and "raise server.max_client_backlog_mib" in error.message
        assert bench.stream.backlog_bytes == 0 and len(bench.aborts) == 1

    asyncio.run(test())


@in_a_loop
async def test_what_is_taken_makes_room_in_the_backlog() -> None:
    bench = Bench(max_backlog_bytes=200)
    for _ in range(20):
        bench.stream.push("thinker", TokenDelta([1]))
        await anext(bench.stream)
    assert bench.aborts == [] and bench.stream.backlog_bytes == 0


@in_a_loop
async def test_leaving_early_aborts_once_and_drops_what_waits() -> None:
    bench = Bench()
    bench.stream.push("thinker", TextDelta("a"))
    await bench.stream.aclose()
    await bench.stream.aclose()
    assert bench.aborts == [("req-1", "its client has gone")]
    assert bench.stream.ended and bench.stream.backlog_bytes == 0
    bench.stream.push("thinker", TextDelta("late"))
    assert await bench.taken() == ([], None)


@in_a_loop
async def test_the_end_of_its_block_aborts_a_stream_only_if_it_has_not_ended() -> None:
    left, read = Bench(finals=("thinker",)), Bench(finals=("thinker",))
    for bench in (left, read):
        bench.stream.push("thinker", TextDelta("a"))
    async with left.stream as stream:
        await anext(stream)
    async with read.stream as stream:
        stream.push("thinker", END)
        assert len([message async for message in stream]) == 2
    assert (len(left.aborts), read.aborts) == (1, [])


@in_a_loop
async def test_a_failed_stream_is_not_aborted_when_it_is_closed() -> None:
    bench = Bench()
    bench.stream.fail(StageError("no voice"))
    await bench.stream.aclose()
    assert bench.aborts == []
