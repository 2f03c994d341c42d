"""One run of load against one server: the server started or found, the load generator in a process of its own.

In: a target, ServeSettings. Out: a ServeRun; StageError if the load generator was the bottleneck.
Does not know: tables, files, arms.
"""

import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from antiphon.bench.processes import BenchServer, end
from antiphon.bench.report import Json, fingerprint
from antiphon.bench.serve.arrivals import Load, due_times_s
from antiphon.bench.serve.dataset import Prompt, TokenRange, made_up_prompts, prompts_of_file
from antiphon.bench.serve.expected import Checker, checker_of
from antiphon.bench.serve.messages import (
    DECODE_REPORT,
    ENCODE,
    Ask,
    Plan,
    Progress,
    Ready,
    Report,
    Result,
    Task,
)
from antiphon.bench.serve.metrics import Lateness, Slo, Totals, Values, totals_of, values_of
from antiphon.bench.serve.probe import Samples, ServerAddress, growth
from antiphon.config.pipeline import Modality, PipelineSpec
from antiphon.errors import ConfigError, StageError
from antiphon.models.registry import load_pipeline

_GENERATOR = "load generator"
_STOP_TIMEOUT_S = 10.0
_DEFAULT_SAMPLE_RATE = 24_000
_SHORT = TokenRange(128, 128)


@dataclass(frozen=True)
class ServeSettings:
    """What is asked, how often, how fast. output_tokens None: answers end where the model ends them."""

    load: Load
    num_requests: int
    task: Task = Task.CHAT
    num_warmups: int = 4
    input_tokens: TokenRange = _SHORT
    output_tokens: TokenRange | None = _SHORT
    prompts_file: Path | None = None
    slo: Slo = field(default_factory=Slo)
    model: str = ""
    max_lag_s: float = 0.02
    checks_audio: bool = True
    deadline_s: float = 600.0

    def prompts(self) -> list[Prompt]:
        """The warm-up's, then the run's."""
        count = self.num_warmups + self.num_requests
        if self.prompts_file is not None:
            return prompts_of_file(self.prompts_file, count, self.output_tokens, self.load.seed)
        if self.output_tokens is not None:
            return made_up_prompts(count, self.input_tokens, self.output_tokens, self.load.seed)
        prompts = made_up_prompts(count, self.input_tokens, TokenRange(1, 1), self.load.seed)
        return [Prompt(prompt.text, prompt.num_input_tokens, 0) for prompt in prompts]


@dataclass(frozen=True)
class Target:
    """A server that runs (`url`), or a pipeline to be served for the run, with its deployment."""

    url: str = ""
    pipeline: str = ""
    deploy_file: str = ""
    settings: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, deploy_file: str = "", settings: tuple[str, ...] = ()) -> "Target":
        """A URL is a server's; anything else is a pipeline's name or reference."""
        if "://" not in text:
            return cls("", text, deploy_file, settings)
        if deploy_file or settings:
            raise ConfigError([f"--deploy and --set change a server that is started for the run, not {text}"])
        return cls(text)


@dataclass(frozen=True)
class ServeRun:
    """What one run has measured. counters: how much the server's have grown. cpu_s: process -> CPU seconds."""

    settings: ServeSettings
    target: Target
    result: Result
    totals: Totals
    values: Values
    lateness: Lateness
    counters: Samples
    cpu_s: dict[str, float]
    environment: Json = field(default_factory=dict)


def run_serve(target: Target, settings: ServeSettings, progress: Callable[[Progress], None]) -> ServeRun:
    """Serve the target if need be, warm it up, measure; see the module docstring."""
    environment = fingerprint()
    spec = None if target.url else load_pipeline(target.pipeline)
    server = _server_of(target)
    with server or nullcontext():
        address = ServerAddress.parse(target.url) if server is None else ServerAddress(server.host, server.port)
        checker = checker_of(spec)
        plan = make_plan(address, spec, checker, settings)
        with GeneratorProcess(plan) as generator:
            generator.warm_up()
            counters = address.samples()
            cpu_s = server.cpu_s() if server is not None else {}
            result = generator.run(progress)
            used = _used(cpu_s, server.cpu_s()) if server is not None else {}
            grown = growth(counters, address.samples())
    used[_GENERATOR] = result.cpu_s
    lateness = Lateness.of(result)
    if problem := lateness.problem(settings.max_lag_s):
        raise StageError(problem)
    if checker is not None:
        result = checked(result, plan, checker, settings)
    totals = totals_of(result.records, settings.slo)
    return ServeRun(settings, target, result, totals, values_of(result.records), lateness, grown, used, environment)


def _server_of(target: Target) -> BenchServer | None:
    if target.url:
        return None
    return BenchServer(*target.settings, pipeline=target.pipeline, deploy_file=target.deploy_file)


def checked(result: Result, plan: Plan, checker: Checker, settings: ServeSettings) -> Result:
    """The same records; those whose answer is another than it must be are marked."""
    prompts = settings.prompts()[settings.num_warmups :]
    records = []
    for record in result.records:
        if record.error or record.has_left:  # there is no whole answer
            records.append(record)
            continue
        expected = checker(settings.task, prompts[record.number].text, record)
        is_text_wrong = settings.task is not Task.SPEECH and record.text_crc32 != zlib.crc32(expected.text.encode())
        is_audio_wrong = plan.sums_audio and record.pcm_crc32 != zlib.crc32(expected.pcm())
        records.append(msgspec.structs.replace(record, is_wrong=is_text_wrong or is_audio_wrong))
    return msgspec.structs.replace(result, records=records)


def _used(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}


def make_plan(
    address: ServerAddress, spec: PipelineSpec | None, checker: Checker | None, settings: ServeSettings
) -> Plan:
    """Everything that the load generator needs; ConfigError if the pipeline cannot do the task."""
    if spec is not None:
        _check_task(spec, settings.task)
    model = settings.model or address.model()
    prompts = settings.prompts()
    sample_rate = spec.sample_rate if spec is not None else _DEFAULT_SAMPLE_RATE
    due_s = [0.0] * settings.num_warmups + due_times_s(settings.load, settings.num_requests)
    asks = tuple(
        Ask(
            number - settings.num_warmups,
            msgspec.json.encode(request_body(settings.task, model, prompt, sample_rate)).decode(),
            due,
        )
        for number, (prompt, due) in enumerate(zip(prompts, due_s, strict=True))
    )
    return Plan(
        host=address.host,
        port=address.port,
        task=settings.task,
        sample_rate=sample_rate,
        warmups=asks[: settings.num_warmups],
        asks=asks[settings.num_warmups :],
        max_concurrency=settings.load.max_concurrency,
        deadline_s=settings.deadline_s,
        sums_audio=settings.checks_audio and checker is not None and settings.task is not Task.CHAT,
    )


def _check_task(spec: PipelineSpec, task: Task) -> None:
    known = {found.name: found for found in spec.tasks}
    name = "speech" if task is Task.SPEECH else "chat"
    if name not in known or (task is Task.CHAT_AUDIO and Modality.AUDIO not in known[name].finals):
        raise ConfigError([f"pipeline {spec.name} cannot do --task {task}; it has the tasks {', '.join(known)}"])


def request_body(task: Task, model: str, prompt: Prompt, sample_rate: int) -> Json:
    """The JSON of one request; its answer will be streamed, with max_tokens and ignore_eos where a length is asked.

    sample_rate: of the speech; another rate than the API's is asked for.
    """
    length: Json = {"max_tokens": prompt.max_tokens, "ignore_eos": True} if prompt.max_tokens else {}
    if task is Task.SPEECH:
        rate: Json = {} if sample_rate == _DEFAULT_SAMPLE_RATE else {"sample_rate": sample_rate}
        return {"model": model, "input": prompt.text, "response_format": "pcm", **rate}
    body: Json = {
        "model": model,
        "messages": [{"role": "user", "content": prompt.text}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        **length,
    }
    audio: Json = {"modalities": ["text", "audio"], "audio": {"format": "pcm16"}}
    return {**body, **audio} if task is Task.CHAT_AUDIO else {**body, "modalities": ["text"]}


class GeneratorProcess(AbstractContextManager["GeneratorProcess"]):
    """Owns the process of one load generator."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "antiphon.bench.serve.generator", "--parent", str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end(self._process, _STOP_TIMEOUT_S)

    def warm_up(self) -> None:
        """Send the warm-up; StageError if the server fails at it."""
        self._tell(ENCODE(self._plan))
        ready = self._read()
        assert isinstance(ready, Ready)
        if ready.errors:
            raise StageError(f"{len(ready.errors)} requests of the warm-up failed; the first: {ready.errors[0]}")

    def run(self, progress: Callable[[Progress], None]) -> Result:
        """Send the rest; `progress` is called a few times per second."""
        self._tell(b"go")
        while not isinstance(report := self._read(), Result):
            if isinstance(report, Progress):
                progress(report)
        return report

    def _tell(self, line: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def _read(self) -> Report:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._gone()
        return DECODE_REPORT.decode(line)

    def _gone(self) -> StageError:
        assert self._process is not None
        return StageError(f"the load generator ended (exit code {self._process.wait()}); its error is above")
