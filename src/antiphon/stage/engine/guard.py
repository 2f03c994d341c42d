"""The one place where a model's code is called so that its faults end requests, never the process.

In: a call into a model, and the requests it is for. Out: what it gives, or an AntiphonError.
Does not know: engines or models.
"""

import logging
import traceback
from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol, TypeVar

from antiphon.errors import AntiphonError, StageError
from antiphon.stage.engine.base import StepResult
from antiphon.stage.request import StageOutput, StageRequest

P = ParamSpec("P")
T = TypeVar("T")
Outcome = StageOutput | AntiphonError
log = logging.getLogger(__name__)
_SEQUENCE = (list, tuple)


class ForRequest(Protocol):
    """A part of a batch that belongs to one request."""

    @property
    def request(self) -> StageRequest:
        """Whose it is."""


Item = TypeVar("Item", bound=ForRequest)


def guarded(
    requests: Sequence[StageRequest], call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | AntiphonError:
    """What `call` gives, or the error that ends the requests it was for."""
    try:
        return call(*args, **kwargs)
    except AntiphonError as error:
        return error
    except Exception as error:  # a model's fault ends a request, never the process
        names = ", ".join(request.request_id for request in requests)
        log.exception("req=%s the model raised", names)
        return StageError(f"{names}: the model raised {_text_of(error)}")


def _text_of(error: Exception) -> str:
    """As the last line of its traceback, which also has a text for an error that cannot say its own."""
    return "".join(traceback.format_exception_only(error)).strip()


def outputs_of(batch: list[Item], call: Callable[[list[Item]], Sequence[Outcome]]) -> list[StepResult]:
    """Call a model for a whole batch; if it raises, again for each item alone, so that only the guilty fail."""
    requests = [item.request for item in batch]
    outputs = guarded(requests, call, batch)
    if isinstance(outputs, _SEQUENCE) and len(outputs) == len(batch):
        return [
            StepResult(request, made if type(made) is StageOutput else _outcome(request, made))
            for request, made in zip(requests, outputs, strict=True)
        ]
    if len(batch) == 1:
        error = outputs if isinstance(outputs, AntiphonError) else _not_one_for_each(outputs, batch)
        return [StepResult(requests[0], error)]
    return [result for item in batch for result in outputs_of([item], call)]


def one_by_one(batch: list[Item], step: Callable[[Item], StageOutput]) -> list[Outcome]:
    """For a model that has no use for a batch: `step` of each item, once, whatever happens to the others."""
    return [guarded([item.request], step, item) for item in batch]


def _outcome(request: StageRequest, made: object) -> Outcome:
    if isinstance(made, StageOutput | AntiphonError):
        return made
    return StageError(f"{request.request_id}: the model made a {type(made).__name__} where a StageOutput was expected")


def _not_one_for_each(outputs: object, batch: list[Item]) -> StageError:
    made = f"{len(outputs)} outputs" if isinstance(outputs, _SEQUENCE) else f"a {type(outputs).__name__}"
    return StageError(f"the model made {made} for {len(batch)} requests; make a list with one output for each")
