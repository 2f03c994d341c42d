"""The web page in a real browser, on a real server: its microphone hears our own speech, and we hear what it plays."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import httpx
import numpy as np
import pytest
import uvicorn
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from antiphon.client.output_stream import StageMessage
from antiphon.config.pipeline import EngineKind, Modality, PipelineSpec, StageSpec, TaskSpec
from antiphon.messages.client import AudioChunk, OutputEnd, TextDelta
from antiphon.server.app import create_app
from antiphon.server.drain import Drain
from antiphon.server.settings import ServerSettings
from tests.process.conftest import Server, eventually
from tests.process.page_browser import Browser, chromium, require_browser
from tests.unit.server.conftest import ScriptedClient
from tests.wav import wav_of
from tests.words import word_errors, words

QUESTION = "What is the capital of France?"
GREETING = "Good morning, my friend."
SENTENCE = "The children played in the garden until dark."
RATE = 24_000
SILENCE_S = 2.5
"""After the question: long enough to end the turn, and for the answer to begin before it is heard again."""
HARDLY_ANY_S = 30.0
"""Of a text that takes more than a minute to say."""
FEW_TOKENS = "16"


@pytest.fixture(scope="module")
def browser(voice_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    require_browser()
    folder = tmp_path_factory.mktemp("browser")
    samples = spoken(voice_server, QUESTION)
    pause = np.zeros(int(SILENCE_S * RATE), np.int16)
    recording = folder / "question.wav"
    recording.write_bytes(wav_of(np.concatenate([np.zeros(RATE // 2, np.int16), samples, pause]).tobytes()))
    with chromium(folder / "profile", recording) as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, voice_server: Server) -> Iterator[Browser]:
    """The page, freshly loaded; afterwards: it asked nobody but its server, and its console shows no error."""
    browser.open(voice_server.url)
    browser.choose("max-tokens", FEW_TOKENS)
    browser.choose("temperature", "0")
    yield browser
    assert browser.strangers(voice_server.url) == set()
    assert browser.complaints() == []


def spoken(server: Server, text: str) -> np.ndarray:
    """[num_samples] int16."""
    body = {"model": "voice", "input": text, "response_format": "pcm", "seed": 1}
    return np.frombuffer(httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=120).content, np.int16)


def heard_words(server: Server, rate: int, samples: np.ndarray) -> str:
    """What the server's own listener makes of float32 samples."""
    file = wav_of((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes(), rate)
    answer = httpx.post(
        f"{server.url}/v1/audio/transcriptions", data={"model": "voice"}, files={"file": file}, timeout=120
    )
    return answer.json()["text"]


def loud_s(rate: int, samples: np.ndarray) -> float:
    """Seconds from the first sample that can be heard to the last."""
    loud = np.flatnonzero(np.abs(samples) > 1e-3)
    return (loud[-1] - loud[0]) / rate if loud.size else 0.0


def assert_spoken(server: Server, browser: Browser, text: str) -> None:
    """`text` has come out of the loudspeaker since it was last asked."""
    rate, samples = browser.take_played()
    assert loud_s(rate, samples) > 0.5, "nothing was played"
    heard = heard_words(server, rate, samples)
    assert word_errors(text, heard) <= 0.4 * len(words(text)), f"{text!r} was heard as {heard!r}"


def seconds_of(figure: str) -> float:
    """`340 ms` and `1.20 s` as seconds."""
    number, unit = figure.split()
    return float(number) / (1000 if unit == "ms" else 1)


def num_inflight(server: Server) -> int:
    return httpx.get(f"{server.url}/page/overview.json").json()["requests"]["inflight"]


def test_a_typed_question_is_answered_in_writing_and_aloud(page, voice_server):
    page.fill("text", "Tell me about the sea." + Keys.ENTER)
    answer = page.wait_for_answers(1)
    assert page.said("user") == ["Tell me about the sea."]
    assert len(words(answer)) > 5
    assert_spoken(voice_server, page, answer)
    assert 0 < seconds_of(page.text("ttft")) <= seconds_of(page.text("ttfa")) <= seconds_of(page.text("whole"))
    assert seconds_of(page.text("audio-length")) > 1


def test_the_stages_of_the_server_are_shown(page):
    stages = page.driver.find_elements("css selector", "#stages .name")
    assert [stage.text for stage in stages] == ["listener", "thinker", "talker", "code2wav"]
    assert page.text("server-state") == "ready"


def test_a_spoken_question_is_heard_and_answered(page, voice_server):
    page.element("talk").click()
    page.wait(lambda: page.said("user"), "nothing was heard")
    assert words(page.wait_for_answers(1))
    assert loud_s(*page.take_played()) > 0.5, "nothing was played"
    page.wait(lambda: page.said("user") != [""], "what was said is not written down")
    assert word_errors(QUESTION, page.said("user")[0]) <= 2
    assert page.element("talk").get_attribute("aria-pressed") == "false"


def test_who_starts_to_talk_interrupts_the_answer(page):
    page.choose("max-tokens", "120")
    page.element("keep-listening").click()
    page.element("talk").click()
    page.wait(lambda: len(page.turns("user")) >= 2, "the second question was not heard")
    assert "Stopped." in page.turns("answer")[0].text
    assert page.element("talk").get_attribute("aria-pressed") == "true"
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    page.wait(lambda: not page.element("stop").is_enabled(), "Escape does not stop the answer")
    assert page.element("talk").get_attribute("aria-pressed") == "false"


def test_stop_ends_the_sound_and_the_servers_work(page, voice_server):
    page.choose_mode("speech")
    page.fill("text", f"{SENTENCE} " * 30 + Keys.ENTER)
    page.wait(lambda: page.text("ttfa") != "–", "no audio comes")
    page.element("stop").click()
    page.wait(lambda: "Stopped." in page.turns("answer")[0].text, "the answer does not say that it was stopped")
    assert eventually(lambda: num_inflight(voice_server) == 0)
    _, samples = page.take_played()
    assert loud_s(RATE, samples) < HARDLY_ANY_S, "it plays to its end"
    page.driver.execute_async_script("setTimeout(arguments[0], 600)")
    assert loud_s(*page.take_played()) == 0.0, "it plays again"


def test_everything_can_be_done_with_the_keyboard_alone(page, voice_server):
    def press(*keys: str) -> None:
        ActionChains(page.driver).send_keys(*keys).perform()

    def tab_to(name: str) -> None:
        for _ in range(30):
            active = page.driver.switch_to.active_element
            if name in (active.get_attribute("id"), active.get_attribute("value")):
                return
            press(Keys.TAB)
        raise AssertionError(f"Tab does not reach {name}")

    tab_to("chat")
    press(Keys.ARROW_RIGHT)
    tab_to("text")
    press(GREETING, Keys.ENTER)
    page.wait_for_answers(1)
    assert_spoken(voice_server, page, GREETING)
    for name in ("talk", "send", "spoken", "voice", "format", "speed", "max-tokens", "api-key", "forget"):
        if page.element(name).is_displayed():
            tab_to(name)
    press(Keys.ENTER)
    page.wait(lambda: not page.turns("user"), "the conversation is still there")


@pytest.mark.parametrize("format", ["wav", "mp3", "opus"])
def test_every_format_can_be_heard(page, voice_server, format):
    page.choose_mode("speech")
    page.choose("format", format)
    page.fill("text", GREETING + Keys.ENTER)
    page.wait_for_answers(1)
    assert_spoken(voice_server, page, GREETING)


def test_a_file_is_written_down(page, voice_server, tmp_path):
    file = tmp_path / "sentence.wav"
    file.write_bytes(wav_of(spoken(voice_server, SENTENCE).tobytes()))
    page.choose_mode("transcription")
    page.element("file").send_keys(str(file))
    assert word_errors(SENTENCE, page.wait_for_answers(1)) <= 2


def test_a_refusal_is_told_in_words(page):
    page.choose_mode("speech")
    page.driver.execute_script("document.getElementById('text').value = 'word '.repeat(20000)")
    page.element("send").click()
    page.wait_for_answers(1)
    assert "characters" in page.driver.find_element("css selector", "[role=alert]").text
    page.complaints()  # the browser itself notes the status 400


def assert_fits(page: Browser, width: int, *names: str) -> None:
    """Nothing is wider than the screen, and what is shown of `names` lies inside of it with some room at its sides."""
    assert page.driver.execute_script("return document.documentElement.scrollWidth") <= width
    for name in names:
        box, is_shown = page.element(name).rect, page.element(name).is_displayed()
        assert not is_shown or (box["x"] >= 12 and box["x"] + box["width"] <= width - 12), (name, box)


@pytest.mark.parametrize("width", [360, 768])
def test_a_phone_shows_everything_without_scrolling_sideways(page, width):
    metrics = {"width": width, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.choose_mode("speech")
        page.fill("text", "a" * 200 + Keys.ENTER)
        page.wait(lambda: page.turns("answer"), "there is no answer")
        page.element("stop").click()
        for mode in ("chat", "speech", "transcription"):
            page.choose_mode(mode)
            assert_fits(page, width, "text", "talk", "file-label", "stop", "send", "show-details")
        page.element("show-details").click()
        assert_fits(page, width, "stages", "voice", "format", "api-key", "forget", "show-details")
        assert page.element("stages").is_displayed() and page.element("voice").is_displayed()
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@contextmanager
def scripted_server(pipeline: PipelineSpec, script: list[StageMessage], *keys: str) -> Iterator[str]:
    """The real HTTP server of a pipeline that no test has weights for: its one answer is `script`."""
    client = ScriptedClient(script, pipeline=pipeline, live={stage.name: 1 for stage in pipeline.stages})
    settings = ServerSettings(api_key_digests=tuple(sha256(key.encode()).hexdigest() for key in keys))
    config = uvicorn.Config(create_app(client, settings, Drain()), log_level="warning")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def pipeline_of(task: TaskSpec, sample_rate: int = RATE) -> PipelineSpec:
    stage = StageSpec("thinker", EngineKind.GENERATION, "nowhere:Model")
    return PipelineSpec("other", (stage,), (), (task,), "nowhere:Frontend", sample_rate=sample_rate)


ONLY_WRITES = TaskSpec("chat", {Modality.TEXT: "thinker"}, {Modality.TEXT: "thinker"})


def test_a_pipeline_that_only_writes_is_offered_no_sound(browser):
    script = [said("Only "), said("letters."), StageMessage("thinker", OutputEnd())]
    with scripted_server(pipeline_of(ONLY_WRITES), script) as url:
        browser.open(url)
        for name in ("modes", "talk", "voice", "format", "speed", "spoken", "keep-listening"):
            assert not browser.element(name).is_displayed(), name
        browser.fill("text", "Hello." + Keys.ENTER)
        assert browser.wait_for_answers(1) == "Only letters."
        assert browser.complaints() == []


def test_a_pipeline_that_this_page_has_nothing_for_says_so(browser):
    task = TaskSpec("image", {Modality.TEXT: "thinker"}, {Modality.IMAGE: "thinker"})
    with scripted_server(pipeline_of(task), []) as url:
        browser.open(url)
        assert "This page has nothing for what other does" in browser.text("welcome-text")
        assert not browser.element("send").is_displayed()


def test_a_server_that_has_gone_is_told_in_words(browser):
    with scripted_server(pipeline_of(ONLY_WRITES), []) as url:
        browser.open(url)
    browser.fill("text", "Are you there?" + Keys.ENTER)
    browser.wait_for_answers(1)
    assert "The server does not answer" in browser.turns("answer")[0].text
    browser.wait(lambda: browser.text("server-state") == "no answer", "the page does not say that the server is away")
    browser.complaints()  # the browser itself notes refused connections


def test_many_pieces_of_sound_are_played_as_one_at_the_pipelines_own_rate(browser):
    rate, num_pieces, piece = 22_050, 40, 551
    tone = (8000 * np.sin(2 * np.pi * 220 / rate * np.arange(num_pieces * piece))).astype("<i2")
    pieces = [AudioChunk(part.tobytes(), rate) for part in np.split(tone, num_pieces)]
    script = [StageMessage("thinker", output) for output in (*pieces, OutputEnd())]
    task = TaskSpec("speech", {Modality.TEXT: "thinker"}, {Modality.AUDIO: "thinker"})
    with scripted_server(pipeline_of(task, rate), script) as url:
        browser.open(url)
        for number in range(1, 6):
            browser.take_played()
            browser.fill("text", "A tone." + Keys.ENTER)
            browser.wait_for_answers(number)
            browser.wait(browser.is_silent, "it still plays")
            if not browser.has_missed_samples():
                break
        played_rate, samples = browser.take_played()
    loud = np.flatnonzero(np.abs(samples) > 1e-3)
    heard = samples[loud[0] : loud[-1] + 1]
    assert played_rate == rate
    assert abs(len(heard) - len(tone)) < 10
    assert np.abs(np.diff(heard)).max() < 1.1 * np.abs(np.diff(tone / 32768)).max(), "there is a jump between pieces"


def test_the_servers_key_is_asked_for_sent_and_kept_in_the_tab_only(browser):
    script = [said("Welcome."), StageMessage("thinker", OutputEnd())]
    with scripted_server(pipeline_of(ONLY_WRITES), script, "a secret") as url:
        browser.open(url)
        browser.fill("text", "Hello." + Keys.ENTER)
        browser.wait_for_answers(1)
        assert "This server wants an API key" in browser.turns("answer")[0].text
        browser.fill("api-key", "another")
        browser.fill("text", "Hello." + Keys.ENTER)
        browser.wait_for_answers(2)
        assert "does not know the API key" in browser.turns("answer")[1].text
        browser.fill("api-key", "a secret")
        browser.open(url)
        browser.fill("text", "Hello." + Keys.ENTER)
        assert browser.wait_for_answers(1) == "Welcome."
        assert browser.driver.execute_script("return localStorage.length") == 0
        browser.complaints()  # the browser itself notes the two refusals


def said(text: str) -> StageMessage:
    return StageMessage("thinker", TextDelta(text))
