"""The limit of open files against what the deployment may need."""

import resource

import pytest

from antiphon.config.resolve import Setting, resolve
from antiphon.launch.open_files import num_needed, open_files_warning
from antiphon.models.registry import load_pipeline


def needed(**settings: int) -> int:
    given = tuple(Setting(path.replace("__", "."), value, "test") for path, value in settings.items())
    return num_needed(resolve("voice", load_pipeline("voice"), settings=given).config)


def limit(monkeypatch: pytest.MonkeyPatch, hard: int) -> str:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (256, hard))
    return open_files_warning(resolve("voice", load_pipeline("voice")).config)


def test_more_requests_and_more_processes_need_more() -> None:
    default = needed()
    assert default > 256 + 1024
    assert needed(admission__max_queue=2024) == default + 1000
    assert needed(server__max_websockets=1256) == default + 1000
    assert needed(stages__talker__replicas=11) > default + 10
    assert needed(server__api_servers=3) > default


def test_a_limit_that_is_too_low_is_told_with_both_numbers_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    text = limit(monkeypatch, 1024)
    assert "1024" in text
    assert str(needed()) in text
    assert "ulimit -Hn" in text


@pytest.mark.parametrize("hard", [1 << 20, resource.RLIM_INFINITY])
def test_a_limit_that_is_high_enough_is_not_mentioned(monkeypatch: pytest.MonkeyPatch, hard: int) -> None:
    assert limit(monkeypatch, hard) == ""
    assert limit(monkeypatch, needed()) == ""
    assert limit(monkeypatch, needed() - 1)
