"""The llama.cpp engine on the packaged SmolLM2: one engine with two places, shared by all tests here."""

import http.client
import json
import os
import select
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from antiphon.connector.base import Chunk
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.messages.client import TextDelta, TokenLogprob
from antiphon.messages.conversation import Conversation, Turn
from antiphon.messages.interstage import ChunkForm, ChunkHeader, TensorSpec
from antiphon.messages.params import RequestParams, SamplingParams
from antiphon.models.voice.thinker import Thinker
from antiphon.models.voice.weights import smollm2_gguf
from antiphon.stage.engine import llama_cpp
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.engine.llama_cpp import LlamaCppEngine
from antiphon.stage.request import EdgeInput, StageOutput, StageRequest

xllamacpp = pytest.importorskip("xllamacpp")
TIMEOUT_S = 60.0
GREEDY = SamplingParams(max_tokens=10, temperature=0.0)
SKY = "Why is the sky blue? Answer in one sentence."


class SmallThinker(Thinker):
    """As the thinker, with a context that a test can fill."""

    context_tokens = 1024


class Served:
    """An engine, its private directory, and what it has answered."""

    def __init__(self, engine: LlamaCppEngine, directory: Path) -> None:
        self.engine = engine
        self.directory = directory
        self.texts: dict[str, str] = {}
        self.logprobs: dict[str, list[TokenLogprob]] = {}
        self.ends: dict[str, StageOutput | AntiphonError] = {}

    def ask(self, name: str, content: str, sampling: SamplingParams, json_schema: object = None) -> None:
        self.engine.add(request_of(name, content, sampling, json.dumps(json_schema) if json_schema else ""))

    def collect(self) -> None:
        """One step, as a stage's loop does when the engine's descriptor is readable."""
        for result in self.engine.step() if self.engine.has_work() else ():
            name, output = result.request.request_id, result.output
            assert name not in self.ends, "a result after the end"
            if isinstance(output, StageOutput):
                self.texts[name] = self.texts.get(name, "") + "".join(delta_of(delta).text for delta in output.client)
                told = (logprob for delta in output.client for logprob in delta_of(delta).logprobs)
                self.logprobs.setdefault(name, []).extend(told)
            if isinstance(output, AntiphonError) or output.finished:
                self.ends[name] = output

    def wait(self, *names: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not self.ends.keys() >= set(names):
            assert time.monotonic() < deadline_s, f"{set(names) - self.ends.keys()} did not end"
            select.select([self.engine.fileno()], [], [], 0.5)
            self.collect()

    def answer(self, name: str, content: str, sampling: SamplingParams) -> tuple[str, StageOutput]:
        self.ask(name, content, sampling)
        self.wait(name)
        end = self.ends[name]
        assert isinstance(end, StageOutput), end
        return self.texts[name], end


def delta_of(delta: object) -> TextDelta:
    assert isinstance(delta, TextDelta)
    return delta


def request_of(name: str, content: str, sampling: SamplingParams, json_schema: str = "") -> StageRequest:
    document = Conversation((Turn("user", content),), json_schema=json_schema).encode()
    edge = EdgeInput()
    form = ChunkForm(name, 0, "client->thinker", "api-server/0", (TensorSpec("messages", "uint8", (), True),))
    header = ChunkHeader(form, 0, rows=len(document))
    edge.add(Chunk(header, {"messages": document}))
    edge.ended = True
    return StageRequest(name, 0, "chat", RequestParams(sampling=sampling), {"client": edge}, frozenset(), True)


def listening_tcp_inodes() -> set[str]:
    """The inodes of all listening TCP sockets of this machine."""
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    lines = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return {fields[9] for fields in lines if fields[3] == "0A"}


def own_socket_inodes() -> set[str]:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return {link[8:-1] for link in links if link.startswith("socket:[")}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="ap-") as name:
        context = ModelContext("cpu", 1, "", f"{name}/thinker.0")
        engine = LlamaCppEngine(SmallThinker(), context, max_num_seqs=2)
        engine.startup()
        yield Served(engine, Path(name))
        engine.close()


def direct_answer(content: str, max_tokens: int) -> str:
    """What llama.cpp says without our engine: its own server object, greedy, not streamed."""
    params = xllamacpp.CommonParams()
    params.model.path = smollm2_gguf()
    params.n_ctx = 1024
    params.cpuparams.n_threads = 1
    params.verbosity = -1
    server = xllamacpp.Server(params)
    messages = [{"role": "user", "content": content}]
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0.0, "top_k": 40, "min_p": 0.05}
    answer = server.handle_chat_completions(body)
    return answer["choices"][0]["message"]["content"]


def test_a_greedy_answer_is_what_llama_cpp_gives_without_us(served: Served) -> None:
    text, _ = served.answer("req-greedy", SKY, GREEDY)
    assert text == direct_answer(SKY, GREEDY.max_tokens)
    assert len(text) > 20


def test_max_tokens_is_kept_and_counted(served: Served) -> None:
    _, end = served.answer("req-length", SKY, SamplingParams(max_tokens=7, temperature=0.0))
    assert (end.finish_reason, end.usage.num_output_tokens) == ("length", 7)
    assert end.usage.num_input_tokens > 10


def test_a_stop_word_ends_the_text_before_it(served: Served) -> None:
    whole, _ = served.answer("req-whole", SKY, GREEDY)
    word = whole.split()[4]
    text, end = served.answer("req-stop", SKY, SamplingParams(max_tokens=10, temperature=0.0, stop=(word,)))
    assert end.finish_reason == "stop"
    assert text == whole[: whole.index(word)]


def test_log_probabilities_are_those_of_the_text_that_is_shown(served: Served) -> None:
    asked = msgspec.structs.replace(GREEDY, logprobs=2)
    whole, _ = served.answer("req-logprobs", SKY, asked)
    told = served.logprobs["req-logprobs"]
    assert b"".join(entry.token.data for entry in told).decode() == whole
    assert all(entry.best[0] == entry.token and entry.best[0].logprob >= entry.best[1].logprob for entry in told)
    none = msgspec.structs.replace(GREEDY, logprobs=0, stop=(" ".join(whole.split()[4:6]),))
    text, _ = served.answer("req-logprobs-stop", SKY, none)
    told = served.logprobs["req-logprobs-stop"]
    assert text and b"".join(entry.token.data for entry in told).decode() == text, "no token of the stop text"
    assert not any(entry.best for entry in told)


def test_bias_and_penalties_change_the_answer(served: Served) -> None:
    whole, _ = served.answer("req-unbiased", SKY, msgspec.structs.replace(GREEDY, max_tokens=40))
    biased, _ = served.answer("req-biased", SKY, msgspec.structs.replace(GREEDY, logit_bias=((19556, 100.0),)))
    assert biased == "Hello" * 10
    fresh = msgspec.structs.replace(GREEDY, max_tokens=40, presence_penalty=2.0, frequency_penalty=2.0)
    text, _ = served.answer("req-fresh", SKY, fresh)
    assert text != whole


def test_an_answer_in_json_fits_its_schema_and_a_schema_that_is_none_is_the_clients_error(served: Served) -> None:
    colours = {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3}
    schema = {"type": "object", "properties": {"colours": colours}}
    schema |= {"required": ["colours"], "additionalProperties": False}
    served.ask("req-json", "Name colours.", SamplingParams(max_tokens=60, temperature=0.0), json_schema=schema)
    served.ask("req-bad", "Name colours.", GREEDY, json_schema={"type": "colour"})
    served.wait("req-json", "req-bad")
    assert set(json.loads(served.texts["req-json"])["colours"]) <= {"red", "blue"}
    error = served.ends["req-bad"]
    assert isinstance(error, InvalidRequestError) and error.param == "response_format"
    assert error.message.startswith("`response_format`: no grammar can be made of this JSON Schema (")
    assert served.answer("req-after-json", SKY, GREEDY)[0]


def test_ignore_eos_goes_on_to_max_tokens_where_an_answer_would_end(served: Served) -> None:
    question = "Say only the word yes."
    _, ended = served.answer("req-eos", question, SamplingParams(max_tokens=64, temperature=0.0))
    assert ended.finish_reason == "stop" and ended.usage.num_output_tokens < 64
    sampling = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    _, end = served.answer("req-no-eos", question, sampling)
    assert (end.finish_reason, end.usage.num_output_tokens) == ("length", 64)


def test_a_seed_repeats_a_sampled_answer(served: Served) -> None:
    sampling = SamplingParams(max_tokens=12, temperature=1.0, seed=7)
    first, _ = served.answer("req-seed-1", SKY, sampling)
    assert served.answer("req-seed-2", SKY, sampling)[0] == first


def test_three_requests_on_two_places_all_finish_with_their_own_answers(served: Served) -> None:
    questions = {"req-a": SKY, "req-b": "Name a colour.", "req-c": "What is two plus two?"}
    alone = {name: served.answer(f"{name}-alone", question, GREEDY)[0] for name, question in questions.items()}
    before = served.engine.statistics()
    for name, question in questions.items():
        served.ask(name, question, GREEDY)
    statistics = served.engine.statistics()
    assert (statistics.num_running, statistics.num_waiting, statistics.max_running) == (2, 1, 2)
    served.wait(*questions)
    assert {name: served.texts[name][:8] for name in questions} == {name: text[:8] for name, text in alone.items()}
    statistics = served.engine.statistics()
    assert (statistics.num_running, statistics.num_waiting) == (0, 0)
    num_tokens = sum(served.ends[name].usage.num_output_tokens for name in questions)
    assert statistics.num_tokens - before.num_tokens == num_tokens
    assert statistics.busy_s > before.busy_s
    assert served.engine.statistics().busy_s == statistics.busy_s, "without a request it is idle"


def test_a_prompt_over_the_context_is_the_clients_mistake_and_the_next_is_served(served: Served) -> None:
    served.ask("req-long", "word " * 3000, GREEDY)
    served.wait("req-long")
    error = served.ends["req-long"]
    assert isinstance(error, InvalidRequestError)
    assert error.param == "messages"
    assert "context" in error.message
    assert served.answer("req-after", SKY, GREEDY)[0]


def test_an_abort_stops_a_running_request_and_frees_its_place(served: Served) -> None:
    endless = SamplingParams(max_tokens=900, temperature=0.0, ignore_eos=True)
    for name in ("req-endless-1", "req-endless-2"):
        served.ask(name, SKY, endless)
    deadline_s = time.monotonic() + TIMEOUT_S
    while not {"req-endless-1", "req-endless-2"} <= served.texts.keys():
        assert time.monotonic() < deadline_s
        select.select([served.engine.fileno()], [], [], 0.5)
        served.collect()
    served.engine.abort("req-endless-1")
    served.engine.abort("req-endless-2")
    served.engine.abort("req-unknown")
    texts = dict(served.texts)
    text, end = served.answer("req-next", SKY, GREEDY)  # would wait behind 1,800 tokens if an abort only forgot
    assert text and end.finished
    assert served.texts["req-endless-1"] == texts["req-endless-1"], "an aborted request gave more"
    assert not served.ends.keys() & {"req-endless-1", "req-endless-2"}


def cpu_s_of_a_moment() -> float:
    before_s = time.process_time()
    time.sleep(0.2)
    return time.process_time() - before_s


def test_an_abort_stops_the_reading_of_a_prompt(served: Served) -> None:
    began_s = time.process_time()
    served.answer("req-read", "first " * 400, SamplingParams(max_tokens=1))
    whole_s, began_s = time.process_time() - began_s, time.process_time()
    served.ask("req-unread", "second " * 400, SamplingParams(max_tokens=1))
    while time.process_time() < began_s + whole_s / 10:
        time.sleep(0.001)
    served.engine.abort("req-unread")
    while cpu_s_of_a_moment() > 0.02:
        pass
    assert time.process_time() - began_s < whole_s / 2


def test_a_request_that_is_aborted_while_it_waits_is_never_run(served: Served) -> None:
    for name in ("req-w1", "req-w2", "req-w3"):
        served.ask(name, SKY, SamplingParams(max_tokens=12, temperature=0.0))
    served.engine.abort("req-w3")
    served.wait("req-w1", "req-w2")
    served.answer("req-w4", SKY, GREEDY)
    assert "req-w3" not in served.texts


def test_nothing_listens_on_tcp(served: Served) -> None:
    assert served.answer("req-tcp", SKY, GREEDY)[0]
    assert not listening_tcp_inodes() & own_socket_inodes()


def test_the_unix_socket_lies_in_the_private_directory_and_refuses_who_has_no_key(served: Served) -> None:
    path = served.directory / "thinker.0.llama.sock"
    assert stat.S_ISSOCK(path.stat().st_mode)
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 401
    assert b"choices" not in response.read()
    connection.close()


def test_the_socket_of_a_killed_process_does_not_stop_its_successor() -> None:
    with tempfile.TemporaryDirectory(prefix="ap-") as name:
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(f"{name}/thinker.0.llama.sock")
        engine = LlamaCppEngine(SmallThinker(), ModelContext("cpu", 1, "", f"{name}/thinker.0"), max_num_seqs=1)
        engine.startup()
        text, _ = Served(engine, Path(name)).answer("req-successor", SKY, GREEDY)
        engine.close()
    assert text


def test_the_model_is_freed_when_no_worker_is_in_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp looks at what it was told only between batches; freed in the middle of one, it ended the process."""
    monkeypatch.setattr(llama_cpp, "_BATCH_TOKENS", 1024)
    with tempfile.TemporaryDirectory(prefix="ap-") as name:
        engine = LlamaCppEngine(SmallThinker(), ModelContext("cpu", 1, "", f"{name}/thinker.0"), max_num_seqs=1)
        engine.startup()
        request = request_of("req-reads", "blue " * 400, GREEDY)
        engine.add(request)
        deadline_s = time.monotonic() + TIMEOUT_S
        while not request.timeline.first_step_s and time.monotonic() < deadline_s:
            time.sleep(0.01)
        engine.close()
        assert [worker.is_alive() for worker in engine._workers] == [False]
