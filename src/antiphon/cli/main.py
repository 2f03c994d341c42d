"""The `antiphon` command: a table of commands, each imported when it is used.

In: the command line. Out: a command's run and its exit code; an AntiphonError as `error: ...` lines and exit code 1.
Does not know: what a command does.
"""

import difflib
import importlib
import sys
from dataclasses import dataclass

import click

from antiphon import __version__
from antiphon.cli.early_stop import hand_over
from antiphon.errors import AntiphonError, ConfigError


@dataclass(frozen=True)
class CommandEntry:
    """Where a command is (`module:attribute`), and its line in `antiphon --help`, which imports no command."""

    reference: str
    summary: str

    def load(self) -> click.Command:
        """Import the command."""
        module_name, _, attribute = self.reference.partition(":")
        command = vars(importlib.import_module(module_name))[attribute]
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.reference} is a {type(command).__name__}, not a click command")
        return command


COMMANDS = {
    "serve": CommandEntry("antiphon.cli.serve:command", "Serve a pipeline over HTTP (OpenAI-compatible)."),
    "join": CommandEntry("antiphon.cli.join:command", "Add a replica to a running server, or take one out."),
    "say": CommandEntry("antiphon.cli.say:command", "Speak a text into an audio file."),
    "transcribe": CommandEntry("antiphon.cli.transcribe:command", "Write down what an audio file says."),
    "plan": CommandEntry(
        "antiphon.cli.plan:command", "Show the processes that serve would start, and every set value."
    ),
    "check": CommandEntry("antiphon.cli.check:command", "Check whether this machine can serve, and what is missing."),
    "top": CommandEntry("antiphon.cli.top:command", "Show what a running server does, and what holds it up."),
    "monitor": CommandEntry(
        "antiphon.cli.monitor:command", "Show or draw what the orchestrator's monitor has written."
    ),
    "bench": CommandEntry(
        "antiphon.cli.bench:command", "Measure a pipeline, parts of the runtime, and what is left after chaos."
    ),
}


class LazyGroup(click.Group):
    """Looks commands up in COMMANDS and imports the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported; None if there is none."""
        return COMMANDS[cmd_name].load() if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, but an unknown name is answered with the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there is {', '.join(COMMANDS)}"
            ctx.fail(f"there is no command {args[0]!r}; {hint}")
        name, command, rest = super().resolve_command(ctx, args)
        hand_over(name or "")
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command list of `--help`, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="antiphon")
def cli() -> None:
    """Serve multi-stage models: text and audio stream out while later stages still work."""


def main() -> None:
    """Run the command that the command line names."""
    try:
        cli(prog_name="antiphon")
    except AntiphonError as error:
        click.echo(error_text(error), err=True)
        sys.exit(1)


def error_text(error: AntiphonError) -> str:
    """`error: <message>`; one such line for each problem of a ConfigError."""
    problems = error.problems if isinstance(error, ConfigError) else (error.message,)
    return "\n".join(f"error: {problem}" for problem in problems)
