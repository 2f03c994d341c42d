"""The OpenAI services of pipecat and LiveKit agents: a sentence is spoken whole, and understood."""

from pathlib import Path

from tests.clients.environments import program, report
from tests.clients.hearing import assert_same
from tests.process.conftest import Server

SENTENCE = "Please put the book back on the table."
FOLDER = Path(__file__).parent
SHORTEST_S, LONGEST_S = 1.5, 5.0
QUESTION = "What is the capital of France?"


def assert_spoken(answer: dict) -> None:
    """As much sound as its words take."""
    num_chars = len(answer["text"])
    assert 0.03 * num_chars < answer["seconds"] < 1.0 + 0.15 * num_chars, answer
    assert num_chars > 0


def test_pipecats_services_speak_and_hear(server: Server):
    told = report(program("pipecat"), str(FOLDER / "drive_pipecat.py"), server.url, SENTENCE)
    assert told["errors"] == []
    assert SHORTEST_S < told["seconds"] < LONGEST_S
    assert_same(SENTENCE, told["heard"])


def test_livekits_services_speak_as_bytes_and_as_events_and_hear(server: Server):
    told = report(program("livekit"), str(FOLDER / "drive_livekit.py"), server.url, SENTENCE)
    assert set(told["seconds"]) == {"tts-1", "gpt-4o-mini-tts"}
    for model, heard in told["heard"].items():
        assert SHORTEST_S < told["seconds"][model] < LONGEST_S
        assert_same(SENTENCE, heard)


def test_livekits_realtime_model_converses_and_interrupts_with_its_default_settings(server: Server):
    told = report(program("livekit"), str(FOLDER / "drive_livekit_realtime.py"), server.url, QUESTION)
    assert told["errors"] == []
    for heard in told["heard"]:
        assert_same(QUESTION, heard)
    assert len(told["heard"]) == 2
    assert_spoken(told["answer"])
    assert told["cut"]


def test_pipecats_realtime_service_converses_and_interrupts_with_its_default_settings(server: Server):
    told = report(program("pipecat"), str(FOLDER / "drive_pipecat_realtime.py"), server.url, QUESTION)
    assert told["errors"] == []
    question, _, again = told["heard"]
    assert_same(QUESTION, question)
    assert_same(QUESTION, again)
    whole, cut, *_ = told["answers"]
    assert_spoken(whole)
    assert cut["seconds"] > 0
