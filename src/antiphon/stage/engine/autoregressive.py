"""The autoregressive engine: the engine of sequences, its steps computed by torch over a paged KV cache.

In: StageRequests. Out: StepResults. Does not know: lanes, sockets, what the model is.
"""

from typing import Any

from antiphon.config.pipeline import StageSpec
from antiphon.stage.engine.autoregressive_model import AutoregressiveModel
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.engine.sequences import KV_BLOCK_SIZE, SequenceEngine
from antiphon.stage.runner.autoregressive import AutoregressiveRunner
from antiphon.stage.runner.device import Device


class AutoregressiveEngine(SequenceEngine):
    """Owns the runner, which owns the model, its KV cache, and the sequences' samplers."""

    def __init__(self, model: AutoregressiveModel[Any], context: ModelContext, spec: StageSpec) -> None:
        device = Device(context.device, context.dtype)
        self._runner: AutoregressiveRunner = AutoregressiveRunner(
            model, device, context, spec, block_size=KV_BLOCK_SIZE
        )
        super().__init__(model, self._runner, spec)

    @property
    def model_s(self) -> float:
        """Seconds in forward passes so far."""
        return self._runner.model_s
