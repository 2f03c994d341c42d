"""SIGTERM and Ctrl-C before a command has taken them over: the process ends without a word, for nothing has begun.

In: signals. Out: exit code 0 of `serve`, which runs until it is told to stop; 128 + number of any other command.
Does not know: what commands do. Imports nothing heavy: it is there before everything else.
"""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

_RUNS_UNTIL_TOLD = "serve"
_DEFAULTS: dict[signal.Signals, signal.Handlers | Callable[[int, FrameType | None], None]] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


def end_when_told() -> None:
    """End at SIGTERM or SIGINT from now on, until `hand_over` or the command's own handlers."""
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is default:  # a shell's background job ignores SIGINT, and shall go on so
            signal.signal(number, _end)


def hand_over(command: str) -> None:
    """`command` is about to run: Python's defaults again, but for the one that takes the signals over itself."""
    if command != _RUNS_UNTIL_TOLD:
        for number, default in _DEFAULTS.items():
            if signal.getsignal(number) is _end:
                signal.signal(number, default)


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(0 if sys.argv[1:2] == [_RUNS_UNTIL_TOLD] else 128 + number)
