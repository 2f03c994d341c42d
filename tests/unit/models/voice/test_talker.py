"""The talker in a batch: what one request's text does to it does nothing to the others."""

import numpy as np
import pytest

from antiphon.connector.base import Chunk
from antiphon.errors import InvalidRequestError, StageError
from antiphon.messages.interstage import ChunkForm, ChunkHeader, TensorSpec
from antiphon.messages.params import RequestParams, SpeechParams
from antiphon.models.voice.talker import Talker
from antiphon.stage.engine.generation import GenerationEngine
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.request import EdgeInput, StageOutput, StageRequest
from antiphon.stage.scheduler.generation import GenerationScheduler


class SpelledVoice:
    """In the network's place: a phoneme is a character; it speaks ASCII and fails on an exclamation mark."""

    def phoneme_ids(self, text: str) -> list[list[int]]:
        if "!" in text:
            raise IndexError("no name for it")
        return [list(text.encode())] if text.isascii() else []

    def frames(self, ids: list[list[int]], speed: float) -> tuple[np.ndarray, np.ndarray]:
        codes = np.array(ids[0], np.float32)
        return codes[:, None], np.zeros(len(codes), np.uint8)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> GenerationEngine:
    monkeypatch.setattr("antiphon.models.voice.talker.AcousticModel.load", lambda _num_threads: SpelledVoice())
    engine = GenerationEngine(
        Talker(), ModelContext("cpu", 1, "", ""), GenerationScheduler(max_num_seqs=8, max_batch_size=8)
    )
    engine.startup()
    return engine


def request_of(name: str, text: str, task: str = "speech", *, continues: bool = False) -> StageRequest:
    rows = np.frombuffer(text.encode(), np.uint8)
    form = ChunkForm(name, 0, "client->talker", "client", (TensorSpec("text", "uint8", (), True),))
    edge = EdgeInput()
    edge.add(Chunk(ChunkHeader(form, 0, rows=len(rows)), {"text": rows}, 0))
    edge.ended = True
    return StageRequest(
        name, 0, task, RequestParams(speech=SpeechParams(continues=continues)), {"client": edge}, frozenset(), False
    )


def spoken(engine: GenerationEngine, *requests: StageRequest) -> dict[str, str | Exception]:
    """What each request has said when all have ended, or the error that ended it."""
    heard: dict[str, str | Exception] = {request.request_id: "" for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work():
        for result in engine.step():
            name, output = result.request.request_id, result.output
            if isinstance(output, StageOutput):
                rows = output.handoff.get("code2wav", {}).get("params")
                heard[name] = f"{heard[name]}" + (
                    "" if rows is None else f"[{bytes(rows[:, 0].astype('u1')).decode()}]"
                )
            else:
                heard[name] = output
            if not isinstance(output, StageOutput) or output.finished:
                engine.abort(name)
    return heard


def test_a_text_that_makes_the_network_raise_takes_no_clause_from_its_batch_mates(engine: GenerationEngine) -> None:
    heard = spoken(
        engine,
        request_of("req-before", "One comes first. Two comes next."),
        request_of("req-bad", "Help!"),
        request_of("req-after", "Three comes then. Four ends it."),
    )
    assert isinstance(heard["req-bad"], StageError)
    assert heard["req-before"] == "[One comes first.][Two comes next.]"
    assert heard["req-after"] == "[Three comes then.][Four ends it.]"


def test_a_speech_without_anything_this_voice_can_say_is_the_clients_mistake(engine: GenerationEngine) -> None:
    heard = spoken(
        engine,
        request_of("req-foreign", "你好。"),
        request_of("req-mixed", "Hello there. 你好。"),
        request_of("req-answer", "你好。", task="chat"),
    )
    error = heard["req-foreign"]
    assert isinstance(error, InvalidRequestError) and error.param == "input"
    assert heard["req-mixed"] == "[Hello there.]"
    assert heard["req-answer"] == "", "a chat's text is not its client's"


def test_of_a_text_that_continues_no_clause_is_wanted_early(engine):
    text = "Well, as you know, the sea is deep. Yes"
    heard = spoken(engine, request_of("a", text), request_of("b", text, continues=True))
    assert heard == {
        "a": "[Well, as you know,][the sea is deep.][Yes]",
        "b": "[Well, as you know, the sea is deep.][Yes]",
    }
