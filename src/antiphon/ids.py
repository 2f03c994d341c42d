"""Names of things that cross process boundaries: requests, replicas, edges.

In: parts of a name. Out: the name in its one spelling. Does not know: what is behind a name.
"""

import os
from typing import NewType

RequestId = NewType("RequestId", str)
ORCHESTRATOR = "orchestrator"
"""What the orchestrator's process is called, where a replica is called `talker/1`."""


def new_request_id() -> RequestId:
    """A fresh id, e.g. `req-9f86d081884c7d65` (64 random bits)."""
    return RequestId(f"req-{os.urandom(8).hex()}")


def part_id(request_id: RequestId, number: int) -> RequestId:
    """`part_id("req-9f86", 2) == "req-9f86.2"`: a request that serves a part of another; the first one is 0."""
    return RequestId(f"{request_id}.{number}") if number else request_id


def replica_id(stage: str, index: int) -> str:
    """`replica_id("talker", 1) == "talker/1"`: the spelling used in logs, `ps`, metrics and errors."""
    return f"{stage}/{index}"


def stage_of(replica: str) -> str:
    """`stage_of("talker/1") == "talker"`."""
    return replica.rpartition("/")[0]


def edge_name(producer: str, consumer: str) -> str:
    """`edge_name("thinker", "talker") == "thinker->talker"`."""
    return f"{producer}->{consumer}"
