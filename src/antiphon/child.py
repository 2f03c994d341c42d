"""The command line of every child process: read the bootstrap, become that process, run its main.

In: `--bootstrap FILE --status-fd N --parent PID`. Out: a running child. Does not know: which child.
"""

import argparse
from collections.abc import Callable

from antiphon.messages.bootstrap import Bootstrap
from antiphon.process import ChildProcess


def run_child(main: Callable[[Bootstrap, ChildProcess], None]) -> None:
    """Parse the arguments that the launcher gave and run `main` as that process."""
    parser = argparse.ArgumentParser(description="A process of `antiphon serve`; not for calling by hand.")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--status-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True, help="see die_with_parent")
    arguments = parser.parse_args()
    bootstrap = Bootstrap.read(arguments.bootstrap)
    child = ChildProcess(bootstrap.name, arguments.status_fd)
    child.startup()
    main(bootstrap, child)
