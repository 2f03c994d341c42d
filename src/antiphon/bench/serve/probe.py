"""What a server counts about itself, read from outside before and after a run.

In: a server's address. Out: its counters' growth by replica, edge and lane. Does not know: who starts servers, loads.
"""

import http.client
import re
import time
from dataclasses import dataclass

import msgspec

from antiphon import env
from antiphon.errors import ConfigError

Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]
_SAMPLE = re.compile(r"^antiphon_(\w+?)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_NUM_SCRAPES = 8
_REPORT_PERIOD_S = 1.0
_SETTLE_S = 1.3 * _REPORT_PERIOD_S
_TIMEOUT_S = 10.0


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


@dataclass(frozen=True)
class ServerAddress:
    """Where an OpenAI-compatible server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "ServerAddress":
        """`http://host:port`, with or without a path; ConfigError for anything else."""
        found = re.fullmatch(r"http://(\[[\da-fA-F:]+\]|[^/:\s]+)(?::(\d+))?(?:/.*)?", url)
        if found is None:
            raise ConfigError([f"{url!r} is no address of a server; write http://host:port (there is no TLS)"])
        return cls(found[1].strip("[]"), int(found[2] or 80))

    def model(self) -> str:
        """The first of /v1/models."""
        try:
            models = msgspec.json.decode(self._get("/v1/models"), type=_Models).data
        except msgspec.DecodeError as error:
            raise ConfigError([f"/v1/models of {self.host}:{self.port} has no list of models: {error}"]) from error
        if not models:
            raise ConfigError([f"{self.host}:{self.port} serves no model; name one with --model"])
        return models[0].id

    def samples(self, *, settled: bool = True) -> Samples:
        """Everything that /metrics counts, as antiphon names it; empty for a server that has no such page.

        The runtime's counters come once a second; `settled` waits for the next. Each api-server counts its own lanes
        and any of them may answer, so several pages are read and the highest figures kept.
        """
        if settled:
            time.sleep(_SETTLE_S)
        found: Samples = {}
        for _ in range(_NUM_SCRAPES):
            try:
                page = self._get("/metrics")
            except ConfigError:
                return {}
            for key, value in parse_samples(page.decode()).items():
                found[key] = max(value, found.get(key, value))
        return found

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Connection": "close", **authorization()})
            answer = connection.getresponse()
            body = answer.read()
        except OSError as error:
            raise ConfigError([f"nothing answers at {self.host}:{self.port}: {error}"]) from error
        finally:
            connection.close()
        if answer.status != 200:
            raise ConfigError([f"GET {path} of {self.host}:{self.port} was answered with {answer.status}"])
        return body


def authorization() -> dict[str, str]:
    """The header with this process's API key; empty without one."""
    key = env.api_key()
    return {"Authorization": f"Bearer {key}"} if key else {}


def parse_samples(page: str) -> Samples:
    """The antiphon_ lines of a Prometheus page; names without the prefix."""
    found: Samples = {}
    for line in page.splitlines():
        if match := _SAMPLE.match(line):
            found[match[1], tuple(_LABEL.findall(match[2] or ""))] = float(match[3])
    return found


def growth(before: Samples, after: Samples) -> Samples:
    """How much each `..._total` has grown, without what has not."""
    grown = {key: value - before.get(key, 0.0) for key, value in after.items() if key[0].endswith("_total")}
    return {key: value for key, value in grown.items() if value}


def by_owner(grown: Samples, label: str) -> dict[str, dict[str, float]]:
    """Owner -> counter -> growth, for the counters whose labels have `label`; other labels are summed over."""
    found: dict[str, dict[str, float]] = {}
    for (name, labels), value in sorted(grown.items()):
        owner = dict(labels).get(label)
        if owner is not None:
            counters = found.setdefault(owner, {})
            counters[name] = counters.get(name, 0.0) + value
    return found


def by_lane(grown: Samples) -> dict[str, dict[str, float]]:
    """`talker/0 control` -> messages and bytes."""
    found: dict[str, dict[str, float]] = {}
    for (name, labels), value in sorted(grown.items()):
        named = dict(labels)
        if "lane" in named and name in ("lane_messages_total", "lane_bytes_total"):
            found.setdefault(f"{named.get('process', '')} {named['lane']}".strip(), {})[name] = value
    return found
