"""`antiphon bench lanes` with real stage processes: every output that was asked for reaches its consumer, and the
check of it can fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from antiphon.bench.lanes.emitting import Emitters
from antiphon.errors import StageError
from antiphon.messages.client import TextDelta
from antiphon.messages.tasks import ChatInput, ChatMessage
from antiphon.models.simulated.emitter_pipeline import EmitterPlan, Form, Heard

NUM_OUTPUTS = 40


def test_three_emitting_stages_give_every_consumer_what_was_asked_for() -> None:
    sizes, forms = (0, 8192, 1 << 20), (Form.TEXT, Form.TOKENS)
    plans = [EmitterPlan(NUM_OUTPUTS, size, form, heard) for size in sizes for form in forms for heard in Heard]

    async def run() -> list[int]:
        async with Emitters(1, num_stages=3) as emitters:
            assert await emitters.requests_per_s(8, 4, plans[-1]) > 0
            return [await emitters.ask(plan) for plan in plans]

    first, last, everything = NUM_OUTPUTS, NUM_OUTPUTS, 3 * NUM_OUTPUTS
    assert uvloop.run(run()) == 6 * [first, last, everything]


def test_text_apart_comes_in_as_many_deltas_as_outputs_however_short_the_steps_are() -> None:
    plan = EmitterPlan(NUM_OUTPUTS, 0, Form.APART, Heard.FIRST)

    async def run() -> list[str]:
        async with Emitters(1) as emitters:
            stream = await emitters.engine.client.submit(ChatInput((ChatMessage("user", str(plan)),)))
            async with stream:
                return [message.output.text async for message in stream if isinstance(message.output, TextDelta)]

    texts = uvloop.run(run())
    assert len(texts) == NUM_OUTPUTS and set(map(len, texts)) == {1}


def test_a_lost_output_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage is asked for one output fewer than the check expects."""

    async def run() -> None:
        async with Emitters(1) as emitters:
            submit = emitters.engine.client.submit

            async def submit_less(_: ChatInput) -> object:
                fewer = EmitterPlan(NUM_OUTPUTS - 1, 0, Form.TEXT, Heard.FIRST)
                return await submit(ChatInput((ChatMessage("user", str(fewer)),)))

            monkeypatch.setattr(emitters.engine.client, "submit", submit_less)
            await emitters.ask(EmitterPlan(NUM_OUTPUTS, 0, Form.TEXT, Heard.FIRST))

    with pytest.raises(StageError, match="39 outputs and 1 ends came, expected 40"):
        uvloop.run(run())


def test_the_command_writes_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "lanes.json"
    command = [sys.executable, "-m", "antiphon", "bench", "lanes", "--quick", "--only", "d,f", "--out", str(out)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    measures = [row["measure"] for row in json.loads(out.read_bytes())["rows"]]
    assert "d: hop of 1 KiB, p50 / bare relay" in measures
    assert "f: SSE text deltas, 32 connections / bare uvicorn" in measures
    assert all(row["ours"] > 0 for row in json.loads(out.read_bytes())["rows"])
