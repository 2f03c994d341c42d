"""The load generator: sends what is due when it is due, reads what comes, and watches its own lateness.

In: a Plan as a line on stdin, and a second line when the run shall begin. Out: Reports, one per line on stdout.
Does not know: which server that is, what is measured with it.

`python -m antiphon.bench.serve.generator --parent PID`
"""

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Iterable

import uvloop

from antiphon.bench.serve.answer import Answer, ChatBody, SpeechBody
from antiphon.bench.serve.connection import AnswerProtocol
from antiphon.bench.serve.messages import (
    DECODE_PLAN,
    ENCODE,
    Ask,
    Plan,
    Progress,
    Ready,
    Record,
    Report,
    Result,
    Task,
)
from antiphon.bench.serve.probe import authorization
from antiphon.process import die_with_parent, set_title

LAG_PERIOD_S = 0.01
_PROGRESS_PERIOD_S = 0.25
_WARMUP_CONCURRENCY = 8


class Generator:
    """Owns the clock of a run, and what has come of its requests."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began_s = 0.0
        self._num_sent = 0
        self._num_failed = 0
        self._loop_lags_s: list[float] = []
        self._records: list[Record] = []

    async def warm_up(self) -> Ready:
        """Send the warm-up; nothing of it is kept but its errors."""
        self._begin()
        await self._send_all(self._plan.warmups, self._plan.max_concurrency or _WARMUP_CONCURRENCY)
        errors = tuple(record.error for record in self._records if record.error)
        return Ready(errors)

    async def run(self) -> Result:
        """Send everything, wait for every end."""
        self._begin()
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        watches = [asyncio.create_task(watch()) for watch in (self._watch_lag, self._tell_progress)]
        await self._send_all(self._plan.asks, self._plan.max_concurrency)
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        return Result(self._records, self._loop_lags_s, wall_s, cpu_s)

    def _begin(self) -> None:
        self._num_sent = self._num_failed = 0
        self._records = []
        self._began_s = time.perf_counter()

    def _now_s(self) -> float:
        return time.perf_counter() - self._began_s

    async def _send_all(self, asks: Iterable[Ask], max_concurrency: int) -> None:
        """Each ask at its time, and not before a place is free; a place that gets free is used at once."""
        places = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        open_tasks: set[asyncio.Task[None]] = set()
        for ask in asks:
            ready_s = max(ask.due_s, self._now_s()) if places is not None else ask.due_s
            if (wait_s := ask.due_s - self._now_s()) > 0:
                await asyncio.sleep(wait_s)
            if places is not None:
                is_full = places.locked()
                await places.acquire()
                ready_s = self._now_s() if is_full else ready_s
            task = asyncio.create_task(self._send(ask, ready_s))
            if places is not None:
                task.add_done_callback(lambda _: places.release())
            open_tasks.add(task)
            task.add_done_callback(open_tasks.discard)
        if open_tasks:
            await asyncio.wait(open_tasks)

    async def _send(self, ask: Ask, ready_s: float) -> None:
        """One request to its end; all that can go wrong with it is in its record."""
        plan, answer = self._plan, Answer(self._plan.sample_rate, self._plan.sums_audio)
        body = SpeechBody(answer) if plan.task is Task.SPEECH else ChatBody(answer)
        protocol = AnswerProtocol(_request(plan, ask), answer, body, self._now_s, ask.bytes_per_s)
        sent_s = self._now_s()
        self._num_sent += 1
        try:
            async with asyncio.timeout(plan.deadline_s):
                await asyncio.get_running_loop().create_connection(lambda: protocol, plan.host, plan.port)
                if ask.leaves_after_s:
                    await asyncio.wait({protocol.ended}, timeout=ask.leaves_after_s)
                    protocol.leave()
                await protocol.ended
        except TimeoutError:
            answer.error = f"no end within {plan.deadline_s:g} s"
            protocol.close()
        except OSError as error:
            answer.error = f"cannot connect: {error}"
        self._num_failed += bool(answer.error)
        self._records.append(_record(ask, ready_s, sent_s, protocol.end_s or self._now_s(), answer, protocol))

    async def _watch_lag(self) -> None:
        """How late a timer fires is how late everything else is seen."""
        while True:
            due_s = self._now_s() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self._loop_lags_s.append(max(0.0, self._now_s() - due_s))

    async def _tell_progress(self) -> None:
        while True:
            _tell(Progress(self._num_sent, len(self._records), self._num_failed))
            await asyncio.sleep(_PROGRESS_PERIOD_S)


def _request(plan: Plan, ask: Ask) -> bytes:
    body = ask.body.encode()
    head = f"POST {plan.task.path} HTTP/1.1\r\nHost: {plan.host}:{plan.port}\r\nContent-Type: application/json\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in authorization().items())
    return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _record(ask: Ask, ready_s: float, sent_s: float, end_s: float, answer: Answer, protocol: AnswerProtocol) -> Record:
    return Record(
        number=ask.number,
        due_s=ask.due_s,
        ready_s=ready_s,
        sent_s=sent_s,
        end_s=end_s,
        text_s=answer.text_s,
        audio_s=answer.audio_s,
        audio_durations_s=answer.audio_durations_s,
        num_input_tokens=answer.num_input_tokens,
        num_output_tokens=answer.num_output_tokens,
        answer_id=protocol.answer_id,
        text_crc32=answer.text_crc32,
        pcm_crc32=answer.pcm_crc32,
        num_bytes=protocol.num_bytes,
        error=answer.error,
        has_left=protocol.has_left,
    )


def _tell(report: Report) -> None:
    """All of it: under PYTHONUNBUFFERED the buffer of sys.stdout is none, and may write a part of a long line."""
    with open(sys.stdout.fileno(), "wb", closefd=False) as stdout:
        stdout.write(ENCODE(report) + b"\n")


def main() -> None:
    """The process: plan, warm-up, wait for the word, run, result. Without the word (stdin closed) it ends."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the benchmark decides
    set_title("load generator")
    plan = DECODE_PLAN.decode(sys.stdin.buffer.readline())
    generator = Generator(plan)
    gc.freeze()  # the plan is large, and stays
    _tell(uvloop.run(generator.warm_up()))
    if sys.stdin.buffer.readline():
        _tell(uvloop.run(generator.run()))


if __name__ == "__main__":
    main()
