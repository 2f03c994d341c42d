"""This process's descriptors: which are open, and what happens when there are no more."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


def open_descriptors() -> dict[str, str]:
    """Number -> what is open there."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the one that listed them
            continue
    return found


@contextmanager
def only_more_descriptors(count: int) -> Iterator[None]:
    """Within it this process can open `count` more, and then gets EMFILE."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(count + 1)]
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def numbers_from(first: int) -> Iterator[None]:
    """Within it the next descriptor that this process opens has a number of at least `first`."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(first + 100, limits[1])), limits[1]))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < first - 1:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    try:
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
