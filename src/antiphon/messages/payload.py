"""What a frontend makes of a task's input: the entry stage's arrays and the request's parameters.

In: arrays by key. Out: a value that the engine client submits. Does not know: how it travels.
"""

from dataclasses import dataclass

import numpy as np

from antiphon.config.pipeline import Modality
from antiphon.messages.params import RequestParams


@dataclass(frozen=True)
class EntryPayload:
    """The input of a request.

    `inputs` and `outputs` are modalities and pick the route. `rows` are the PER_ROW arrays of the entry
    edge (equal length along axis 0); `whole` belong to the request as a whole (a JSON document as uint8, say).
    """

    task: str
    inputs: frozenset[Modality]
    outputs: frozenset[Modality]
    params: RequestParams
    rows: dict[str, np.ndarray]
    whole: dict[str, np.ndarray]
