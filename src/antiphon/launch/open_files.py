"""Whether this machine lets the server's processes open as many files as its limits may make them need.

In: a DeployConfig, the kernel's hard limit. Out: a warning, or "". Does not know: what is opened.
"""

import resource

from antiphon.config.deploy import DeployConfig

_BASE = 64
_PER_PROCESS = 8
"""Sockets of the three lanes and mapped arenas, for each process that another one speaks with."""


def num_needed(config: DeployConfig) -> int:
    """Descriptors of one api-server that has all requests: one a connection, and those for the other processes."""
    num_processes = 1 + config.server.api_servers + sum(stage.replicas for stage in config.stages.values())
    num_connections = config.admission.max_inflight + config.admission.max_queue + config.server.max_websockets
    return num_connections + _PER_PROCESS * num_processes + _BASE


def open_files_warning(config: DeployConfig) -> str:
    """What is too low and what to do about it; "" if nothing is. The hard limit counts: children get that."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_needed(config)
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return ""
    return (
        f"an api-server may need {needed} open files (admission.max_inflight + admission.max_queue + "
        f"server.max_websockets, and its lanes), "
        f"and the hard limit is {hard}: raise it (ulimit -Hn, or LimitNOFILE= in systemd), or lower admission.max_queue"
    )
