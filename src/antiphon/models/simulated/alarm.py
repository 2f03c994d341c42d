"""A descriptor that becomes readable at a moment, to the microsecond: a poll's own time-out counts whole milliseconds.

In: moments of time.monotonic. Out: a descriptor for a poller. Does not know: what happens then.
"""

import ctypes
import os
import time

_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK
_ABSOLUTE = 1
_NANOS = 1_000_000_000


class _Setting(ctypes.Structure):
    """struct itimerspec: when again, and when first."""

    _fields_ = (("again", ctypes.c_long * 2), ("first", ctypes.c_long * 2))


class Alarm:
    """Owns a timerfd (os.timerfd_create comes with Python 3.13; this is the same by way of the C library)."""

    def __init__(self) -> None:
        self._fd = -1

    def startup(self) -> None:
        """Make the descriptor."""
        library = ctypes.CDLL(None, use_errno=True)
        self._set = library.timerfd_settime
        self._fd = library.timerfd_create(time.CLOCK_MONOTONIC, _CLOEXEC_NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def fileno(self) -> int:
        """Readable from the moment that was set on."""
        return self._fd

    def set(self, at_s: float) -> None:
        """Go off then (time.monotonic), at once if that is over."""
        self._arm(max(1, int(at_s * _NANOS)))

    def clear(self) -> None:
        """Not readable until it is set again."""
        self._arm(0)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _arm(self, at_ns: int) -> None:
        setting = _Setting(first=(at_ns // _NANOS, at_ns % _NANOS))
        self._set(self._fd, _ABSOLUTE, ctypes.byref(setting), None)
