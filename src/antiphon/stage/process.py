"""A stage replica's process: builds engine, inbox, router and loop from the deployment, then runs the loop.

In: a Bootstrap. Out: a serving replica. Does not know: any model; the engine table is the only list of engines.
"""

import gc
import os
import signal
from collections.abc import Callable

from antiphon.config.pipeline import EngineKind, StageSpec
from antiphon.config.resolve import Deployment
from antiphon.connector.registry import make_connector
from antiphon.ids import stage_of
from antiphon.messages import codec
from antiphon.messages.bootstrap import Bootstrap
from antiphon.messages.client import MAX_QUEUED_BYTES, MAX_QUEUED_FRAMES
from antiphon.messages.control import Ready
from antiphon.models.registry import load_attribute, load_pipeline
from antiphon.monitor.trace import open_trace
from antiphon.process import ChildProcess
from antiphon.stage.engine.base import StageEngine
from antiphon.stage.engine.generation import GenerationEngine, ModelJob
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.engine.sequences import SequenceEngine
from antiphon.stage.inbox import Inbox
from antiphon.stage.loop import StageLoop
from antiphon.stage.outputs import OutputRouter
from antiphon.stage.report import StatisticsReporter
from antiphon.stage.scheduler.generation import GenerationScheduler
from antiphon.stage.spans import StageSpans
from antiphon.transport.channel import GatheringOutlet, Inlet, Outlet


def make_engine(spec: StageSpec, context: ModelContext) -> StageEngine:
    """The engine that the stage's spec names, around the model class that it names."""
    model_class = load_attribute(spec.model)
    assert isinstance(model_class, type), f"{spec.model} is not a class"
    match spec.engine:
        case EngineKind.GENERATION:
            scheduler: GenerationScheduler[ModelJob] = GenerationScheduler(
                max_num_seqs=spec.max_num_seqs, max_batch_size=spec.max_batch_size
            )
            return GenerationEngine(model_class(**spec.arguments), context, scheduler)
        case EngineKind.AUTOREGRESSIVE:
            from antiphon.stage.engine.autoregressive import AutoregressiveEngine

            return AutoregressiveEngine(model_class(**spec.arguments), context, spec)
        case EngineKind.LLAMA_CPP:
            from antiphon.stage.engine.llama_cpp import LlamaCppEngine

            return LlamaCppEngine(model_class(**spec.arguments), context, max_num_seqs=spec.max_num_seqs)
        case EngineKind.SIMULATED:
            model = model_class(context, **spec.arguments)
            return SequenceEngine(model, model, spec)


class StageProcess:
    """Owns everything of one replica: sockets, arena, engine, loop."""

    def __init__(self, bootstrap: Bootstrap, deployment: Deployment, on_joined: Callable[[], None]) -> None:
        self._bootstrap = bootstrap
        self._deployment = deployment
        config, stage = deployment.config, stage_of(bootstrap.name)
        self._spec = deployment.stage_spec(stage)
        deploy = config.stages[stage]
        private_path = f"{bootstrap.run_directory}/{bootstrap.name.replace('/', '.')}"
        context = ModelContext(
            deploy.device, self._spec.threads, deploy.model, private_path, deploy.dtype, deploy.options
        )
        self._engine = make_engine(self._spec, context)
        self._control = Inlet(bootstrap.control_address, codec.TO_REPLICA)
        self._connector = make_connector(
            config.connector.kind,
            bootstrap.connector_address,
            config.connector.arena_mib << 20,
            num_requests=config.admission.max_inflight,
        )
        self._events = GatheringOutlet()
        self._client_lane = Outlet(max_queued=MAX_QUEUED_FRAMES, max_queued_bytes=MAX_QUEUED_BYTES)
        self._trace = open_trace(bootstrap.run_directory, bootstrap.name, is_on=bootstrap.is_traced)
        self._loop = self._build_loop(stage, on_joined)

    def startup(self) -> None:
        """Load the model, open sockets, ask to join the pool; `on_joined` is called when that is done.

        The sockets come last: whoever dies while it loads leaves no file, for only who has asked is cleaned up after.
        """
        self._engine.startup()
        signal.signal(signal.SIGTERM, lambda *_: self._loop.stop())
        self._loop.wake_on_signals()
        gc.collect()
        gc.freeze()  # what start-up made lives as long as the process; the collector need not look at it again
        self._control.startup()
        self._connector.startup()
        bootstrap = self._bootstrap
        ready = Ready(bootstrap.name, bootstrap.control_address, bootstrap.connector_address, pid=os.getpid())
        self._events.send(self._bootstrap.orchestrator_address, ready)
        self._events.flush()

    def run(self) -> None:
        """Serve until SIGTERM or until the orchestrator says Leave, then give everything back."""
        self._loop.run()
        self._engine.close()
        self._connector.close()
        self._control.close()
        self._events.close()
        self._client_lane.close()
        self._trace.close()

    def _build_loop(self, stage: str, on_joined: Callable[[], None]) -> StageLoop:
        bootstrap, deployment, connector = self._bootstrap, self._deployment, self._connector
        out_edges = deployment.pipeline.out_edges(stage)
        plans = {edge.name: deployment.chunk_plan(edge) for edge in out_edges}
        lanes = {
            "control": self._control.counters,
            "control_out": self._events.counters,
            "client": self._client_lane.counters,
        }
        router = OutputRouter(
            bootstrap.name,
            self._spec,
            out_edges,
            plans,
            connector,
            self._client_lane,
            deadlines_s={edge.name: deployment.config.edges[edge.name].deadline_s for edge in out_edges},
        )
        return StageLoop(
            bootstrap.name,
            self._spec,
            deployment.in_edge_rules(stage),
            engine=self._engine,
            connector=connector,
            inbox=Inbox(connector, early_deadline_s=deployment.config.timeouts.early_chunk_s),
            router=router,
            control=self._control,
            events=self._events,
            orchestrator_address=bootstrap.orchestrator_address,
            unhurried_address=bootstrap.unhurried_address,
            reporter=StatisticsReporter(
                bootstrap.name,
                self._engine,
                connector,
                router.counters,
                lanes,
                self._events,
                bootstrap.unhurried_address,
            ),
            spans=StageSpans(self._trace, self._spec.engine),
            on_joined=on_joined,
            drain_s=deployment.config.timeouts.drain_s,
        )


def main(bootstrap: Bootstrap, child: ChildProcess) -> None:
    """Run as a child of the launcher."""
    with child.reporting_failure():
        pipeline = load_pipeline(bootstrap.pipeline)
        deployment = Deployment(bootstrap.pipeline, pipeline, bootstrap.config, ())
        process = StageProcess(bootstrap, deployment, on_joined=child.ready)
        process.startup()
    process.run()
