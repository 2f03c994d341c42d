"""API keys at start: where they come from, and that a mistake never leaves the server open or shows a key."""

from hashlib import sha256
from pathlib import Path

import pytest

from antiphon import env
from antiphon.errors import ConfigError
from antiphon.launch.api_keys import read_key_digests


@pytest.fixture(autouse=True)
def no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(env.API_KEY, raising=False)


def digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def test_keys_of_all_sources_count_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the web page\nsk-file \n\nsk-both\n")
    monkeypatch.setenv(env.API_KEY, "sk-env")
    found = read_key_digests(("sk-both", "sk-given"), str(file))
    assert found == tuple(map(digest, ("sk-both", "sk-given", "sk-env", "sk-file")))


def test_no_source_is_no_key() -> None:
    assert read_key_digests((), "") == ()


@pytest.mark.parametrize("content", ["", "\n", "# sk-commented\n"])
def test_a_file_without_a_key_does_not_open_the_server(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(ConfigError, match="has no key"):
        read_key_digests((), str(file))


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="/nowhere/keys: No such file"):
        read_key_digests((), "/nowhere/keys")


@pytest.mark.parametrize("bad", ["", " ", "two words", "schlüssel", "tab\tbed"])
def test_what_no_client_can_send_is_refused_where_it_stands_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    monkeypatch.setenv(env.API_KEY, bad)
    with pytest.raises(ConfigError, match="--api-key number 2") as raised:
        read_key_digests(("sk-good", bad), "")
    assert "ANTIPHON_API_KEY" in raised.value.message
    assert not bad.strip() or bad not in raised.value.message
