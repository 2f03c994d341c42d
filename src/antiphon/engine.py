"""The library: a whole multi-stage server inside an async program, without HTTP.

In: a pipeline's name and TaskInputs. Out: StageMessages. Does not know: HTTP.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from antiphon.client.engine_client import EngineClient
from antiphon.client.factory import make_engine_client
from antiphon.client.output_stream import StageMessage
from antiphon.config.pipeline import PipelineSpec
from antiphon.config.resolve import Setting, parse_settings, resolve
from antiphon.errors import ReplicaDiedError
from antiphon.launch.launcher import Launcher
from antiphon.messages.client import AudioChunk
from antiphon.messages.tasks import SpeechInput, TaskInput, as_task_input
from antiphon.models.registry import load_pipeline

_WATCH_S = 0.2


class Engine:
    """Owns the stage processes and the orchestrator of one pipeline; a client of them lives in this process.

    tasks: start only the stages that these tasks cross (all if empty). settings: dotted path -> value,
    as in the deploy file, e.g. {"stages.talker.replicas": 2}. trace: a file that `close` writes, with spans of every
    request (Chrome trace events). enable_orch_monitor: write the orchestrator's load to a file, as
    `antiphon serve --enable-orch-monitor` does (docs/monitoring.md).

        async with Engine("voice", tasks=("speech",)) as engine:
            async for message in engine.generate("speech", "Hello there."):
                ...
    """

    def __init__(
        self,
        pipeline: str = "voice",
        *,
        tasks: tuple[str, ...] = (),
        deploy_file: str = "",
        settings: dict[str, str | int | float | bool] | None = None,
        trace: str = "",
        enable_orch_monitor: bool = False,
    ) -> None:
        assignments = parse_settings(tuple(f"{path}={value}" for path, value in (settings or {}).items()))
        if enable_orch_monitor:
            assignments += (Setting("monitor.enabled", True, "enable_orch_monitor"),)
        spec = load_pipeline(pipeline)
        self._deployment = resolve(pipeline, spec, deploy_file=deploy_file, settings=assignments)
        trace_path = Path(trace) if trace else None
        self._launcher = Launcher(self._deployment, stages=stages_of_tasks(spec, tasks), trace=trace_path)
        self._client: EngineClient | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def client(self) -> EngineClient:
        """The engine client; exists from `startup` to `close`."""
        if self._client is None:
            raise RuntimeError("use the engine inside `async with Engine(...)`")
        return self._client

    async def startup(self) -> None:
        """Start every process and wait until all serve; ConfigError with the first real error."""
        try:
            self._launcher.start()
            await asyncio.to_thread(self._launcher.wait_ready)
            client = make_engine_client(self._launcher.client_bootstrap("engine"))
            await client.startup()
            self._client = client
        except BaseException:
            self._launcher.stop()
            raise
        self._watcher = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Abort what is open and end every process."""
        if self._watcher is not None:
            self._watcher.cancel()
        try:
            if self._client is not None:
                await self._client.close()
        finally:
            self._client = None
            await asyncio.to_thread(self._launcher.stop)

    async def generate(self, task: str, inputs: TaskInput | str | np.ndarray) -> AsyncIterator[StageMessage]:
        """Run a request and give its outputs as they come; leaving the loop early aborts it.

        inputs: see as_task_input. Errors: see EngineClient.submit and OutputStream.
        """
        async with await self.client.submit(as_task_input(task, inputs)) as stream:
            async for message in stream:
                yield message

    async def __aenter__(self) -> Self:
        await self.startup()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            problem = self._launcher.watch()
            if problem:
                self.client.fail_all(ReplicaDiedError(problem))
                return


def stages_of_tasks(pipeline: PipelineSpec, tasks: tuple[str, ...]) -> tuple[str, ...]:
    """The stages that the given tasks may cross, in pipeline order; all of them if `tasks` is empty."""
    if not tasks:
        return tuple(stage.name for stage in pipeline.stages)
    used: set[str] = set()
    for name in tasks:
        task = pipeline.task(name)
        for modality in task.entries:
            used.update(pipeline.route(name, frozenset({modality}), frozenset(task.finals)).stages)
    return tuple(stage.name for stage in pipeline.stages if stage.name in used)


def say(text: str, *, voice: str = "", speed: float = 1.0) -> bytes:
    """Speak `text`: s16le mono PCM at 24 kHz. Starts and ends the needed processes; use Engine for more than one."""

    async def run() -> bytes:
        pcm = bytearray()
        async with Engine("voice", tasks=("speech",)) as engine:
            async for message in engine.generate("speech", SpeechInput(text, voice=voice, speed=speed)):
                if isinstance(message.output, AudioChunk):
                    pcm += message.output.pcm
        return bytes(pcm)

    return asyncio.run(run())
