"""The thinker: SmolLM2-135M on the llama.cpp engine.

In: `messages` uint8 [num_bytes], a Conversation. Out: `text`, to the client and the talker.
"""

import numpy as np

from antiphon.messages.client import TextDelta
from antiphon.messages.conversation import Conversation
from antiphon.models.voice.weights import model_path, smollm2_gguf
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.request import StageOutput, StageRequest


class Thinker:
    """Says which weights to load, what a request's conversation is, and where its text goes."""

    context_tokens = 8192

    def weights(self, context: ModelContext) -> str:
        """The GGUF file."""
        return model_path(context.model_path, smollm2_gguf())

    def conversation(self, request: StageRequest) -> Conversation:
        """The conversation; called once its input is complete."""
        return Conversation.decode(request.input.take()["messages"])

    def output(self, request: StageRequest, delta: TextDelta) -> StageOutput:
        """A piece of text goes to the talker, if it is bound, and to the client."""
        handoff = {}
        if "talker" in request.consumers:
            handoff = {"talker": {"text": np.frombuffer(delta.text.encode(), np.uint8)}}
        return StageOutput(handoff=handoff, client=(delta,))
