"""SmolLM2-135M on the autoregressive engine says what transformers' generate says, on the same weights."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from antiphon.config.pipeline import StageSpec  # noqa: E402
from antiphon.connector.base import Chunk  # noqa: E402
from antiphon.messages.conversation import Conversation, Turn  # noqa: E402
from antiphon.messages.interstage import ChunkForm, ChunkHeader, TensorSpec  # noqa: E402
from antiphon.messages.params import RequestParams, SamplingParams  # noqa: E402
from antiphon.models.hf_text.pipeline import THINKER  # noqa: E402
from antiphon.models.hf_text.thinker import Thinker  # noqa: E402
from antiphon.stage.engine.autoregressive import AutoregressiveEngine  # noqa: E402
from antiphon.stage.engine.generation_model import ModelContext  # noqa: E402
from antiphon.stage.request import EdgeInput, StageOutput, StageRequest  # noqa: E402
from antiphon.stage.runner.device import Device  # noqa: E402
from antiphon.stage.runner.paged_attention import NAME  # noqa: E402

MAX_TOKENS = 12
LONG = "Here is a list of things that I saw on my way through the town this morning: " + ", ".join(
    f"{count} {thing}" for count, thing in enumerate(("dogs", "boats", "red doors", "bakers", "old bicycles"), 2)
)
PROMPTS = (
    "Tell me about the sea.",
    "What is two plus two?",
    "Write a poem about a cat.",
    "Why is the sky blue? Explain it in detail, and give an example with numbers.",
    "Name three fruits.",
    "Who was Napoleon?",
    "How do I cook rice?",
    "Say hello.",
    f"{LONG}. Which of them can swim?",
    f"{LONG}. {LONG}. How many dogs were there?",
    "Translate 'good morning' into French.",
    "Give me a title for a story about a lighthouse.",
    "What do bees eat?",
    "List the planets.",
    "Is seven a prime number?",
    "Explain gravity to a child, please.",
    "Grüße aus Köln! Wie geht es dir?",
    "def add(a, b):",
    "Which animals live in the desert, and how do they find water there?",
    "Goodbye!",
)
LIMITS = {
    "default limits": THINKER,
    "prefill in chunks of 64": replace(THINKER, max_num_batched_tokens=64),
    "few blocks": replace(THINKER, num_kv_blocks=20, max_num_seqs=8),
}


class LoadedOnce(Thinker):
    """The thinker; engines that share it share its weights."""

    _is_loaded = False

    def load(self, context: ModelContext, device: Device) -> None:
        if not self._is_loaded:
            super().load(context, device)
            self._is_loaded = True

    def generate(self, contents: tuple[str, ...]) -> tuple[str, ...]:
        """transformers' greedy answers, as one batch padded on the left."""
        chats = [[{"role": "user", "content": content}] for content in contents]
        texts = self.tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        inputs = self.tokenizer(texts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt")
        with torch.no_grad():
            full = self.network.generate(**inputs, max_new_tokens=MAX_TOKENS, do_sample=False)
        answers = full[:, inputs["input_ids"].shape[1] :]
        return tuple(self.tokenizer.batch_decode(answers, skip_special_tokens=True))


@pytest.fixture(scope="module")
def thinker() -> LoadedOnce:
    return LoadedOnce()


@pytest.fixture(scope="module")
def expected(thinker: LoadedOnce) -> tuple[str, ...]:
    engine_of(thinker, THINKER)
    thinker.network.set_attn_implementation("sdpa")
    try:
        answers = thinker.generate(PROMPTS)
    finally:
        thinker.network.set_attn_implementation(NAME)
    return answers


def engine_of(thinker: LoadedOnce, spec: StageSpec) -> AutoregressiveEngine:
    engine = AutoregressiveEngine(thinker, ModelContext("cpu", 1, "", ""), spec)
    engine.startup()
    return engine


def request_of(name: str, content: str) -> StageRequest:
    document = Conversation((Turn("user", content),)).encode()
    edge = EdgeInput()
    form = ChunkForm(name, 0, "client->thinker", "api-server/0", (TensorSpec("messages", "uint8", (), True),))
    header = ChunkHeader(form, 0, 0, len(document), 1)
    edge.add(Chunk(header, {"messages": document}))
    edge.ended = True
    params = RequestParams(sampling=SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0))
    return StageRequest(name, 0, "chat", params, {"client": edge}, frozenset(), True)


@pytest.mark.parametrize("limits", LIMITS)
def test_smollm2_answers_twenty_prompts_as_generate_does(
    thinker: LoadedOnce, expected: tuple[str, ...], limits: str
) -> None:
    engine = engine_of(thinker, LIMITS[limits])
    texts = dict.fromkeys(PROMPTS, "")
    for content in PROMPTS:
        engine.add(request_of(content, content))
    num_finished, longest_prompt = 0, 0
    while engine.has_work():
        for result in engine.step():
            assert isinstance(result.output, StageOutput), result.output
            texts[result.request.request_id] += "".join(delta.text for delta in result.output.client)
            num_finished += result.output.finished
            longest_prompt = max(longest_prompt, result.output.usage.num_input_tokens)
    assert tuple(texts.values()) == expected
    assert num_finished == len(PROMPTS) and longest_prompt > 64
    assert (engine.num_preemptions > 0) == (limits == "few blocks")
