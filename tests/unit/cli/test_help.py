"""The command line's frame: help without imports, names looked up in the table, errors as lines."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import antiphon
from antiphon.cli import main as cli_main
from antiphon.cli.main import COMMANDS, CommandEntry, cli, error_text
from antiphon.errors import AntiphonError, ConfigError, InvalidRequestError


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "antiphon", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_help_lists_every_command_with_its_line() -> None:
    text = CliRunner().invoke(cli, ["--help"], terminal_width=200).output
    for name, entry in COMMANDS.items():
        assert name in text
        assert entry.summary in text


def test_help_imports_no_command_and_nothing_heavy() -> None:
    script = (
        "import sys; from antiphon.cli.main import main\n"
        "sys.argv = ['antiphon', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted(name for name in sys.modules if name.startswith('antiphon.cli.')))\n"
        "print([name for name in ('numpy', 'rich', 'fastapi', 'yaml', 'msgspec') if name in sys.modules])\n"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.splitlines()[-2:] == ["['antiphon.cli.early_stop', 'antiphon.cli.main']", "[]"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_loads_and_answers_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert f"antiphon {name}" in result.output or f"cli {name}" in result.output


def test_version_is_the_packages_version() -> None:
    answer = run("--version")
    assert answer.returncode == 0
    assert antiphon.__version__ in answer.stdout


def test_a_misspelt_command_is_answered_with_the_nearest_one() -> None:
    answer = run("pln")
    assert answer.returncode == 2
    assert "there is no command 'pln'; did you mean 'plan'?" in answer.stderr


def failing_table(monkeypatch: pytest.MonkeyPatch, error: AntiphonError) -> None:
    @click.command("fail")
    def fail() -> None:
        raise error

    monkeypatch.setattr(CommandEntry, "load", lambda _self: fail)
    monkeypatch.setitem(COMMANDS, "fail", CommandEntry("nowhere:command", "Fail."))
    monkeypatch.setattr(sys, "argv", ["antiphon", "fail"])


def test_an_error_of_a_command_is_one_line_on_stderr_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing_table(monkeypatch, InvalidRequestError("the text is empty; give one", param="text"))
    with pytest.raises(SystemExit) as exit_:
        cli_main.main()
    assert exit_.value.code == 1
    captured = capsys.readouterr()
    assert captured.err == "error: the text is empty; give one\n"
    assert captured.out == ""


def test_each_problem_of_a_config_error_stands_on_its_own_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing_table(monkeypatch, ConfigError(["no stage a", "no edge b"]))
    with pytest.raises(SystemExit) as exit_:
        cli_main.main()
    assert exit_.value.code == 1
    assert capsys.readouterr().err == "error: no stage a\nerror: no edge b\n"


def test_error_text_of_a_plain_error_keeps_its_message() -> None:
    assert error_text(AntiphonError("what happened")) == "error: what happened"


def test_importing_antiphon_is_light_and_its_exports_come_when_used() -> None:
    script = "import sys, antiphon; print('antiphon.engine' in sys.modules, 'numpy' in sys.modules, antiphon.Engine)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout == "False False <class 'antiphon.engine.Engine'>\n"


def test_an_export_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        antiphon.Motor  # noqa: B018
