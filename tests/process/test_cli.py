"""The commands as a user types them, each in a process of its own; say and transcribe on the real voice pipeline."""

import re
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from antiphon.cli.main import COMMANDS
from tests.words import word_errors

SENTENCE = "The sea is very deep and the sky is very blue."


def antiphon(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "antiphon", *arguments]
    environment = {"COLUMNS": "200", "PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


def rows(table: str) -> list[list[str]]:
    """The cells of a printed table, one list per line."""
    return [[cell.strip() for cell in line.strip("│┃").split("│")] for line in table.splitlines() if "│" in line]


def test_help_lists_every_command() -> None:
    ended = antiphon("--help")
    assert ended.returncode == 0
    for name, entry in COMMANDS.items():
        assert re.search(rf"^ +{name} +{re.escape(entry.summary[:20])}", ended.stdout, re.MULTILINE), ended.stdout


def test_plan_shows_every_process_and_who_set_which_value(tmp_path: Path) -> None:
    deploy = tmp_path / "two.yaml"
    deploy.write_text("stages:\n  talker:\n    replicas: 2\nserver:\n  port: 9001\n")
    ended = antiphon("plan", "voice", "--deploy", str(deploy), "--set", "server.api_servers=2")
    assert ended.returncode == 0, ended.stderr
    table = rows(ended.stdout)
    processes = [row[0] for row in table if "/" in row[0] or row[0] == "orchestrator"]
    assert processes == [
        "orchestrator",
        "api-server/0",
        "api-server/1",
        "listener/0",
        "thinker/0",
        "talker/0",
        "talker/1",
        "code2wav/0",
    ]
    assert ["stages.talker.replicas", "2", "two.yaml"] in table
    assert ["server.port", "9001", "two.yaml"] in table
    assert ["server.api_servers", "2", "--set"] in table
    assert "HTTP on 127.0.0.1:9001" in ended.stdout


def test_plan_shows_how_each_edge_hands_off() -> None:
    ended = antiphon("plan", "sim-relay", "--set", "edges.encoder->decoder.whole=true")
    assert ended.returncode == 0, ended.stderr
    assert "rows <- encoder (one chunk; starts at" in ended.stdout
    assert "rows <- encoder (chunks of 1+, then 4+ rows; starts at first chunk)" in antiphon("plan", "sim-relay").stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("plan", "voicee"), "error: there is no pipeline 'voicee'; did you mean 'voice'?\n"),
        (("plan", "--set", "stages.talker"), "error: --set stages.talker: expected path=value"),
        (("plan", "--deploy", "/nowhere.yaml"), "error: deploy file /nowhere.yaml: "),
        (
            ("say", "hello", "--out", "/nowhere/out.wav"),
            "error: cannot write /nowhere/out.wav: /nowhere does not exist",
        ),
        (("say", "hello", "--out", "out.xyz"), "error: "),
        (("transcribe", "/nowhere.wav"), "error: cannot read /nowhere.wav: No such file or directory\n"),
        (("transcribe", __file__), "error: "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(arguments: tuple[str, ...], line: str) -> None:
    ended = antiphon(*arguments)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert ended.stderr.startswith(line), ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr


def test_say_writes_a_file_that_transcribe_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "sentence.wav"
    said = antiphon("say", SENTENCE, "--out", str(path), "--seed", "1", timeout_s=120)
    assert said.returncode == 0, said.stderr
    assert re.fullmatch(rf"{re.escape(str(path))}: \d+\.\d\d s of audio; TTFA \d+ ms, RTF \d+\.\d+\n", said.stdout)
    with wave.open(str(path)) as audio:
        assert (audio.getframerate(), audio.getnchannels(), audio.getsampwidth()) == (24_000, 1, 2)
        samples = np.frombuffer(audio.readframes(audio.getnframes()), np.int16)
    assert 2.0 < len(samples) / 24_000 < 8.0
    assert np.abs(samples).max() > 3_000
    heard = antiphon("transcribe", str(path), timeout_s=120)
    assert heard.returncode == 0, heard.stderr
    assert word_errors(SENTENCE, heard.stdout) <= 1, heard.stdout
    timed = antiphon("transcribe", str(path), "--timestamps", "--language", "en", timeout_s=120)
    assert timed.returncode == 0, timed.stderr
    assert re.match(r" +\d+\.\d\d +\d+\.\d\d  \w", timed.stdout), timed.stdout
