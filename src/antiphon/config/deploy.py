"""What an operator decides: replicas, devices, limits, connector, deadlines. One YAML key = one field.

In: nothing. Out: frozen dataclasses with defaults and ranges. Does not know: YAML, the command line, or any pipeline.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from antiphon.config.pipeline import EngineKind, OptionValue, StartWhen

Count = Annotated[int, Meta(ge=1, le=10**9)]
CountOrZero = Annotated[int, Meta(ge=0, le=10**9)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
ArenaMib = Annotated[int, Meta(ge=1, le=2**20)]
Seconds = Annotated[float, Meta(ge=0.001, le=1e7)]
WindowSeconds = Annotated[float, Meta(ge=0.1, le=3600.0)]
FramesPerS = Annotated[float, Meta(ge=0.01, le=1000.0)]
SecondsOrZero = Annotated[float, Meta(ge=0.0, le=1e7)]
Origins = Annotated[str, Meta(pattern=r"^((^|,) *(\*|[a-z][a-z0-9+.-]*://[^/\s,]+) *)*$")]
HostNames = Annotated[str, Meta(pattern=r"^((^|,) *(\*|[A-Za-z0-9._-]+) *)*$")]
Networks = Annotated[str, Meta(pattern=r"^((^|,) *[0-9a-fA-F.:]+(/\d+)? *)*$")]
DeviceName = Annotated[str, Meta(pattern=r"^(cpu|cuda|npu|xpu)(:\d+)?$")]


@dataclass(frozen=True)
class ServerDeploy:
    """The HTTP side. api_servers processes share one port; limits are per request.

    api_key_file: one key a line; "" = none. trusted_proxies: whose X-Forwarded-For is believed.
    cors_origins: whose web pages may use this server. allowed_hosts: what it may be called.
    max_request_s: 0 = no limit.
    """

    host: str = "127.0.0.1"
    port: Port = 8000
    api_servers: Count = 1
    api_key_file: str = ""
    trusted_proxies: Networks = ""
    cors_origins: Origins = ""
    allowed_hosts: HostNames = ""
    max_body_mib: Count = 32
    max_audio_s: Seconds = 1800.0
    max_text_chars: Count = 20_000
    max_pixels: Count = 32_000_000
    max_video_frames: Count = 128
    video_frames_per_s: FramesPerS = 2.0
    output_deadline_s: Seconds = 120.0
    max_request_s: SecondsOrZero = 0.0
    max_client_backlog_mib: Count = 16
    client_read_deadline_s: Seconds = 60.0
    client_send_deadline_s: Seconds = 300.0
    max_websockets: Count = 256
    websocket_idle_s: Seconds = 600.0
    websocket_max_s: Seconds = 3600.0
    realtime_max_turn_s: Seconds = 300.0


@dataclass(frozen=True)
class AdmissionDeploy:
    """max_inflight requests run at once, max_queue wait; what is beyond gets a 503 with Retry-After."""

    max_inflight: Count = 256
    max_queue: CountOrZero = 1024


class ConnectorKind(StrEnum):
    """How chunks move between processes. SHM: shared memory of one host."""

    SHM = "shm"


@dataclass(frozen=True)
class ConnectorDeploy:
    """The data plane between processes: kind (shm) and each producer's arena."""

    kind: ConnectorKind = ConnectorKind.SHM
    arena_mib: ArenaMib = 64


@dataclass(frozen=True)
class StageDeploy:
    """One stage. python "" = the launcher's interpreter; model "" = the packaged one; 0 = the pipeline's own value.

    engine: another engine than the pipeline's, where the stage offers it. dtype "" = float32 on cpu, else bfloat16.
    options: what else the stage's model reads; all of them once resolved.
    """

    replicas: Count = 1
    device: DeviceName = "cpu"
    threads: CountOrZero = 0
    python: str = ""
    model: str = ""
    max_num_seqs: CountOrZero = 0
    max_batch_size: CountOrZero = 0
    max_num_batched_tokens: CountOrZero = 0
    num_kv_blocks: CountOrZero = 0
    dtype: str = ""
    engine: EngineKind | None = None
    options: dict[str, OptionValue] = field(default_factory=dict)


@dataclass(frozen=True)
class EdgeDeploy:
    """One edge. None = the pipeline's own value; `whole` sends one chunk when the producer has finished."""

    first_rows: Count | None = None
    rows: Count | None = None
    whole: bool = False
    start_when: StartWhen | None = None
    deadline_s: Seconds = 120.0


@dataclass(frozen=True)
class TimeoutsDeploy:
    """How long to wait for processes. early_chunk_s: a chunk whose StartRequest does not come.

    release_s: a replica that was told to stop a request and does not say `released`; after it, it is killed.
    """

    startup_s: Seconds = 120.0
    drain_s: SecondsOrZero = 10.0
    early_chunk_s: Seconds = 30.0
    release_s: Seconds = 60.0


@dataclass(frozen=True)
class RestartsDeploy:
    """A process that dies is started again after backoff_s, twice that and so on, max_restarts times in a row.

    healthy_s: one that has lived that long since its start begins at 0 again. apart_s: how long the requests that were
    bound to it are started again one at a time, as one of them may be the cause; 0 = all at once.
    """

    max_restarts: CountOrZero = 5
    backoff_s: SecondsOrZero = 0.5
    healthy_s: Seconds = 300.0
    apart_s: SecondsOrZero = 10.0


@dataclass(frozen=True)
class MonitorDeploy:
    """The orchestrator's load monitor: whether it runs, its windows, and how long its files may take at the end."""

    enabled: bool = False
    window_s: WindowSeconds = 1.0
    write_s: SecondsOrZero = 30.0


@dataclass(frozen=True)
class DeployConfig:
    """Everything an operator can set. `stages` and `edges` hold every stage and edge of the pipeline once resolved."""

    pipeline: str = "voice"
    server: ServerDeploy = field(default_factory=ServerDeploy)
    admission: AdmissionDeploy = field(default_factory=AdmissionDeploy)
    connector: ConnectorDeploy = field(default_factory=ConnectorDeploy)
    timeouts: TimeoutsDeploy = field(default_factory=TimeoutsDeploy)
    restarts: RestartsDeploy = field(default_factory=RestartsDeploy)
    monitor: MonitorDeploy = field(default_factory=MonitorDeploy)
    stages: dict[str, StageDeploy] = field(default_factory=dict)
    edges: dict[str, EdgeDeploy] = field(default_factory=dict)
