"""The hf-text thinker on a tiny random checkpoint with a byte-level tokenizer, in a folder as a hub would give it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from antiphon.connector.base import Chunk  # noqa: E402
from antiphon.errors import ConfigError, InvalidRequestError, UnsupportedOptionError  # noqa: E402
from antiphon.messages.client import CalledTool, TextDelta  # noqa: E402
from antiphon.messages.conversation import Conversation, Turn  # noqa: E402
from antiphon.messages.interstage import ChunkForm, ChunkHeader, TensorSpec  # noqa: E402
from antiphon.messages.params import RequestParams, SamplingParams  # noqa: E402
from antiphon.messages.tasks import ToolCall  # noqa: E402
from antiphon.models.hf_text.chat_template import ChatTemplate  # noqa: E402
from antiphon.models.hf_text.pipeline import THINKER  # noqa: E402
from antiphon.models.hf_text.thinker import Thinker  # noqa: E402
from antiphon.stage.engine.autoregressive import AutoregressiveEngine  # noqa: E402
from antiphon.stage.engine.autoregressive_model import Accepted  # noqa: E402
from antiphon.stage.engine.generation_model import ModelContext  # noqa: E402
from antiphon.stage.request import EdgeInput, StageOutput, StageRequest  # noqa: E402

CONTEXT = 96
TOOL_TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "{% endfor %}<assistant>"
)
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token per byte, and <end>."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    raw = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tokenizer = tmp_path_factory.mktemp("checkpoint"), byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[AutoregressiveEngine]:
    made = AutoregressiveEngine(Thinker(), ModelContext("cpu", 1, str(checkpoint), ""), THINKER)
    made.startup()
    yield made
    made.close()


def request_of(content: str, *, consumers: frozenset[str] = frozenset(), **sampling: object) -> StageRequest:
    document = Conversation((Turn("user", content),)).encode()
    edge = EdgeInput()
    form = ChunkForm("r", 0, "client->thinker", "api-server/0", (TensorSpec("messages", "uint8", (), True),))
    header = ChunkHeader(form, 0, 0, len(document), 1)
    edge.add(Chunk(header, {"messages": document}))
    edge.ended = True
    params = RequestParams(sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 30, **sampling}))
    return StageRequest("r", 0, "chat", params, {"client": edge}, consumers, True)


def answer(engine: AutoregressiveEngine, request: StageRequest) -> tuple[str, list[StageOutput]]:
    engine.add(request)
    outputs: list[StageOutput] = []
    while engine.has_work():
        for result in engine.step():
            assert isinstance(result.output, StageOutput), result.output
            outputs.append(result.output)
    deltas = [delta for output in outputs for delta in output.client]
    assert all(isinstance(delta, TextDelta) for delta in deltas)
    return "".join(delta.text for delta in deltas), outputs


def generated(checkpoint: Path, content: str, max_tokens: int = 30) -> list[int]:
    network = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    ids = torch.tensor([byte_tokenizer()(f"<user>{content}<assistant>")["input_ids"]])
    full = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False)
    return full[0, ids.shape[1] :].tolist()


def text_of(ids: list[int]) -> str:
    return byte_tokenizer().decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("content", ["Hello.", "Grüße, 世界", "", "What is two plus two?"])
def test_the_text_is_that_of_generate(engine: AutoregressiveEngine, checkpoint: Path, content: str) -> None:
    ids = generated(checkpoint, content)
    text, outputs = answer(engine, request_of(content))
    assert text == text_of(ids).rstrip("�") or text == text_of(ids)
    assert outputs[-1].usage.num_input_tokens == len(f"<user>{content}<assistant>".encode())
    assert outputs[-1].usage.num_output_tokens == len(ids)


def test_a_stop_string_ends_the_text_before_it(engine: AutoregressiveEngine) -> None:
    whole, _ = answer(engine, request_of("Hello."))
    stop = whole[8:11]
    text, outputs = answer(engine, request_of("Hello.", stop=(stop,)))
    assert text == whole[: whole.index(stop)]
    assert outputs[-1].finished and outputs[-1].finish_reason == "stop"
    assert sum(output.finished for output in outputs) == 1


def test_the_log_probabilities_are_those_of_the_text_that_is_shown(
    engine: AutoregressiveEngine, checkpoint: Path
) -> None:
    ids = generated(checkpoint, "Hello.")
    whole, outputs = answer(engine, request_of("Hello.", logprobs=2))
    told = [logprob for output in outputs for delta in output.client for logprob in delta.logprobs]
    assert b"".join(entry.token.data for entry in told).decode(errors="replace").startswith(whole.rstrip("\ufffd"))
    assert all(entry.token == entry.best[0] and len(entry.best) == 2 for entry in told), "greedy takes the likeliest"
    network = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    prompt = byte_tokenizer()("<user>Hello.<assistant>")["input_ids"]
    logits = network(torch.tensor([prompt])).logits[0, -1]
    assert told[0].token.logprob == pytest.approx(torch.log_softmax(logits, -1)[ids[0]].item(), abs=1e-4)
    text, outputs = answer(engine, request_of("Hello.", logprobs=0, stop=(whole[8:11],)))
    told = [logprob for output in outputs for delta in output.client for logprob in delta.logprobs]
    assert b"".join(entry.token.data for entry in told).decode(errors="replace") == text, "no token of the stop text"
    assert not any(entry.best for entry in told)


def test_tools_reach_a_template_that_knows_them_and_are_refused_by_one_that_does_not(
    engine: AutoregressiveEngine,
) -> None:
    tool = '{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}'
    turns = (
        Turn("user", "Rain?"),
        Turn("assistant", tool_calls=(ToolCall("c1", "weather", '{"city": "Ulm"}'),)),
        Turn("tool", "no", tool_call_id="c1"),
    )
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    plain = ChatTemplate(tokenizer)
    for conversation, param in ((Conversation(turns[:1], (tool,)), "tools"), (Conversation(turns), "messages")):
        with pytest.raises(UnsupportedOptionError, match="no place for") as caught:
            plain.render(conversation)
        assert caught.value.param == param
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TOOL_TEMPLATE
    assert ChatTemplate(tokenizer).render(Conversation(turns, (tool,))) == (
        '[weather]<user>Rain?<assistant>weather({"city": "Ulm"})<tool>no<assistant>'
    )


def test_a_call_is_no_text_and_the_talker_does_not_hear_of_it(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TOOL_TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    options = {option.name: option.default for option in THINKER.options}
    made = AutoregressiveEngine(Thinker(), ModelContext("cpu", 1, str(tmp_path), "", options=options), THINKER)
    made.startup()
    model = made._model
    request = request_of("Rain?", consumers=frozenset({"talker"}))
    document = Conversation((Turn("user", "Rain?"),), ('{"function": {"name": "weather"}}',)).encode()
    state = model.open(request)
    model.receive(request, state, {"client": {"messages": document}}, True)
    assert model.tokenizer.decode(state.ids) == "[weather]<user>Rain?<assistant>"
    written = tokenizer('Hm. <tool_call>{"name": "weather", "arguments": {"a": 1}}</tool_call>')["input_ids"]
    outputs = [model.accept([Accepted(request, state, {}, 0, token, None)])[0] for token in written]
    outputs += model.accept([Accepted(request, state, {}, 0, tokenizer.eos_token_id, "stop")])
    said = [made for output in outputs for made in output.client]
    assert "".join(made.text for made in said if isinstance(made, TextDelta)) == "Hm. "
    assert [made for made in said if isinstance(made, CalledTool)] == [CalledTool("weather", '{"a": 1}')]
    heard = [output.handoff["talker"]["text"].tobytes() for output in outputs if output.handoff]
    assert b"".join(heard) == b"Hm. "
    assert (outputs[-1].finished, outputs[-1].finish_reason) == (True, "tool_calls")


def test_what_a_template_refuses_is_the_clients_error() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        ChatTemplate(tokenizer).render(Conversation((Turn("user", "Hi."),)))


def test_an_answer_cut_at_max_tokens_says_so(engine: AutoregressiveEngine) -> None:
    _, outputs = answer(engine, request_of("Hello.", max_tokens=3))
    assert (outputs[-1].finish_reason, outputs[-1].usage.num_output_tokens) == ("length", 3)


def test_the_talker_gets_the_text_if_it_is_bound(engine: AutoregressiveEngine) -> None:
    text, outputs = answer(engine, request_of("Hello.", consumers=frozenset({"talker"})))
    handed = [output.handoff["talker"]["text"].tobytes() for output in outputs if output.handoff]
    assert b"".join(handed).decode() == text
    _, alone = answer(engine, request_of("Hello."))
    assert not any(output.handoff for output in alone)


def test_a_conversation_beyond_the_models_context_is_refused(engine: AutoregressiveEngine) -> None:
    with pytest.raises(InvalidRequestError, match=rf"tokens; the model's context is {CONTEXT}") as caught:
        engine.add(request_of("x" * CONTEXT))
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")


def test_an_answer_ends_where_the_models_context_ends(engine: AutoregressiveEngine) -> None:
    _, outputs = answer(engine, request_of("x" * 70, max_tokens=500, ignore_eos=True))
    usage = outputs[-1].usage
    assert usage.num_input_tokens + usage.num_output_tokens == CONTEXT
    assert outputs[-1].finish_reason == "length"


def test_accept_changes_no_state_if_one_entry_cannot_be_decoded(engine: AutoregressiveEngine) -> None:
    model = engine._model
    requests = [request_of("Hello."), request_of("Hello.")]
    states = [model.open(request) for request in requests]
    good, bad = (
        Accepted(request, state, {}, 0, token, None)
        for request, state, token in zip(requests, states, (5, -1), strict=True)
    )
    with pytest.raises(TypeError, match="StreamInput"):
        model.accept([good, bad])
    assert states[0].ids == []
    (output,) = model.accept([good])
    assert states[0].ids == [5] and output.client == (TextDelta(text_of([5])),)


def test_without_a_chat_template_the_contents_are_the_prompt(checkpoint: Path, tmp_path: Path) -> None:
    for path in checkpoint.iterdir():
        if path.name != "chat_template.jinja":
            (tmp_path / path.name).symlink_to(path)
    engine = AutoregressiveEngine(Thinker(), ModelContext("cpu", 1, str(tmp_path), ""), THINKER)
    engine.startup()
    _, outputs = answer(engine, request_of("Hello."))
    assert outputs[-1].usage.num_input_tokens == len("Hello.")
    with pytest.raises(InvalidRequestError, match="no tokens"):
        engine.add(request_of(""))


def test_a_folder_that_is_no_checkpoint_is_a_config_error(tmp_path: Path) -> None:
    engine = AutoregressiveEngine(Thinker(), ModelContext("cpu", 1, str(tmp_path), ""), THINKER)
    with pytest.raises(ConfigError, match=str(tmp_path)):
        engine.startup()


def test_a_checkpoint_that_lacks_weights_is_a_config_error_that_names_them(checkpoint: Path, tmp_path: Path) -> None:
    network = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    weights = {name: value for name, value in network.state_dict().items() if name != "model.norm.weight"}
    network.save_pretrained(tmp_path, state_dict=weights)
    byte_tokenizer().save_pretrained(tmp_path)
    engine = AutoregressiveEngine(Thinker(), ModelContext("cpu", 1, str(tmp_path), ""), THINKER)
    with pytest.raises(ConfigError, match=r"lacks the weights model\.norm\.weight"):
        engine.startup()
