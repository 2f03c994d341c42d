"""A real headless Chromium that opens the web page, and hears what the page plays.

In: a server's URL, a recording for the microphone. Out: what the page shows, the samples that reached its loudspeaker.
"""

import base64
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.missing import missing

WAIT_S = 120.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
    "--window-size=1280,860",
)
_LOUDSPEAKER = """
window.played = [];
const connect = AudioNode.prototype.connect;
const taps = new Map();
AudioNode.prototype.connect = function (target, ...rest) {
  if (target instanceof AudioDestinationNode) {
    const { context } = target;
    if (!taps.has(context)) {
      const tap = context.createScriptProcessor(4096, 1, 1);
      tap.onaudioprocess = ({ inputBuffer, playbackTime }) =>
        window.played.push([context.sampleRate, inputBuffer.getChannelData(0).slice(), playbackTime]);
      connect.call(tap, target);
      taps.set(context, tap);
    }
    connect.call(this, taps.get(context));
  }
  return connect.call(this, target, ...rest);
};
"""
"""Runs before the page's own scripts: whatever the page connects to a loudspeaker is written down here too."""
_IS_SILENT = "return (window.played.at(-1)?.[1] ?? []).every((sample) => Math.abs(sample) < 1e-4);"
_TAKE_PLAYED = """
const bytes = new Uint8Array(window.played.reduce((sum, [, part]) => sum + 4 * part.length, 0));
let at = 0;
for (const [, part] of window.played) { bytes.set(new Uint8Array(part.buffer), at); at += 4 * part.length; }
let letters = "";
for (let i = 0; i < bytes.length; i += 32768) letters += String.fromCharCode(...bytes.subarray(i, i + 32768));
return [window.played[0]?.[0] ?? 0, btoa(letters)];
"""


def require_browser() -> tuple[str, str]:
    """Paths of chromium and chromedriver; skips the test where there are none, fails it in CI."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        missing("chromium and chromedriver are not installed (Debian: apt-get install chromium chromium-driver)")
    return chromium, chromedriver


@dataclass
class Browser:
    """One Chromium. Its tab opens one page after another; what it asked of the network is kept."""

    driver: webdriver.Chrome
    requested: list[str] = field(default_factory=list)

    def open(self, url: str) -> None:
        """Load the page anew and wait until it knows its server."""
        self.driver.get(url)
        self.wait(lambda: self.text("model") != "", "the page has not read the server's overview")

    def element(self, name: str) -> WebElement:
        return self.driver.find_element(By.ID, name)

    def text(self, name: str) -> str:
        return self.element(name).text

    def fill(self, name: str, text: str) -> None:
        self.element(name).clear()
        self.element(name).send_keys(text)

    def choose(self, name: str, value: str) -> None:
        """As if a person had chosen `value` in a field."""
        script = "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
        self.driver.execute_script(script + "field.dispatchEvent(new Event('input'));", name, value)

    def choose_mode(self, mode: str) -> None:
        self.driver.find_element(By.CSS_SELECTOR, f"input[name=mode][value={mode}]").click()

    def turns(self, kind: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, f".turn.{kind}")

    def said(self, kind: str) -> list[str]:
        return [turn.find_element(By.CLASS_NAME, "said").text for turn in self.turns(kind)]

    def wait(self, check: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not check():
            assert time.monotonic() < deadline_s, f"{what}; the conversation: {self.text('conversation')!r}"
            time.sleep(0.1)

    def wait_for_answers(self, number: int) -> str:
        """The text of answer `number` (from 1) when it is complete and has been played to its end."""
        self.wait(lambda: len(self.turns("answer")) >= number, f"there is no answer {number}")
        turn = self.turns("answer")[number - 1]
        self.wait(lambda: turn.get_attribute("aria-busy") == "false", "the answer does not end")
        self.wait(lambda: not self.element("stop").is_enabled(), "the answer is not played to its end")
        return turn.find_element(By.CLASS_NAME, "said").text

    def take_played(self) -> tuple[int, np.ndarray]:
        """Sample rate and float32 samples that have reached a loudspeaker since the page was loaded or last asked.

        Waits for silence: samples are written down in blocks, and the last one comes when it is full.
        """
        self.wait(self.is_silent, "it still plays")
        rate, encoded = self.driver.execute_script(_TAKE_PLAYED)
        self.driver.execute_script("window.played = [];")
        return rate, np.frombuffer(base64.b64decode(encoded), np.float32)

    def is_silent(self) -> bool:
        """True if the last block that was written down holds no sound."""
        return bool(self.driver.execute_script(_IS_SILENT))

    def has_missed_samples(self) -> bool:
        """True if this machine was too busy to write all played samples down."""
        times = self.driver.execute_script("return window.played.map(([rate, , time]) => Math.round(time * rate))")
        return any(later - earlier > 4096 for earlier, later in pairwise(times))

    def collect_requests(self) -> None:
        """Move the network log into `requested`."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])

    def strangers(self, url: str) -> set[str]:
        """Hosts that pages have asked, but the server at `url`; blob: and data: stay inside the browser."""
        self.collect_requests()
        hosts = {urlsplit(asked).netloc for asked in self.requested if asked.startswith(("http", "ws"))}
        return hosts - {urlsplit(url).netloc}

    def complaints(self) -> list[str]:
        """Errors on the page's console since last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@contextmanager
def chromium(folder: Path, recording: Path) -> Iterator[Browser]:
    """A Chromium with an empty profile in `folder`; its microphone hears `recording`, again and again."""
    binary, driver_path = require_browser()
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*_FLAGS, f"--user-data-dir={folder}", f"--use-file-for-fake-audio-capture={recording}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    try:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _LOUDSPEAKER})
        yield Browser(driver)
    finally:
        driver.quit()
