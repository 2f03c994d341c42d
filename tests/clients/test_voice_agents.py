"""The OpenAI services of pipecat and LiveKit agents: a sentence is spoken whole, and understood."""

from pathlib import Path

from tests.clients.environments import program, report
from tests.clients.hearing import assert_same
from tests.process.conftest import Server

SENTENCE = "Please put the book back on the table."
FOLDER = Path(__file__).parent
SHORTEST_S, LONGEST_S = 1.5, 5.0


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
