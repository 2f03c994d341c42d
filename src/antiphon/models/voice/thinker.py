"""The thinker: SmolLM2-135M on the llama.cpp engine.

In: `messages` uint8 [num_bytes], a JSON list of {"role", "content"}. Out: `text`, to the client and the talker.
"""

import msgspec
import numpy as np

from antiphon.messages.client import TextDelta
from antiphon.models.voice.weights import model_path, smollm2_gguf
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.request import StageOutput, StageRequest


class Thinker:
    """Says which weights to load, what a request's conversation is, and where its text goes."""

    context_tokens = 8192

    def weights(self, context: ModelContext) -> str:
        """The GGUF file."""
        return model_path(context.model_path, smollm2_gguf())

    def messages(self, request: StageRequest) -> list[dict[str, str]]:
        """The conversation; called once its input is complete."""
        document = request.input.take()["messages"].tobytes()
        return msgspec.json.decode(document, type=list[dict[str, str]])

    def output(self, request: StageRequest, text: str) -> StageOutput:
        """A piece of text goes to the talker, if it is bound, and to the client."""
        handoff = {}
        if "talker" in request.consumers:
            handoff = {"talker": {"text": np.frombuffer(text.encode(), np.uint8)}}
        return StageOutput(handoff=handoff, client=(TextDelta(text),))
