"""The sim-emitter pipelines' frontend: the last message of a chat is the plan.

In: ChatInput. Out: EntryPayload with `plan` int64 [3]. Does not know: stages.
"""

import numpy as np

from antiphon.client.frontend import FrontendLimits
from antiphon.config.pipeline import Modality
from antiphon.errors import UnsupportedModalityError
from antiphon.messages.params import RequestParams
from antiphon.messages.payload import EntryPayload
from antiphon.messages.tasks import ChatInput, TaskInput
from antiphon.models.simulated.emitter_pipeline import EmitterPlan, Heard

_TEXT = frozenset({Modality.TEXT})
_OUTPUTS = {
    Heard.FIRST: _TEXT,
    Heard.LAST: frozenset({Modality.IMAGE}),
    Heard.ALL: frozenset({Modality.TEXT, Modality.AUDIO, Modality.IMAGE}),
}


class EmitterFrontend:
    """Has no limits of its own."""

    def __init__(self, limits: FrontendLimits) -> None:
        pass

    def prepare(self, task_input: TaskInput) -> EntryPayload:
        """See the module docstring."""
        if not isinstance(task_input, ChatInput) or not task_input.messages:
            raise UnsupportedModalityError("sim-emitter takes chats only", param="model")
        plan = EmitterPlan.parse(task_input.messages[-1].text)
        row = np.array([[plan.num_outputs, plan.row_bytes, int(plan.form)]], np.int64)
        return EntryPayload("chat", _TEXT, _OUTPUTS[plan.heard], RequestParams(), {"plan": row}, {})
