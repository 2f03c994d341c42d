"""OpenAI's npm client: speech and chat, streamed, and a refusal."""

import base64

import numpy as np

from tests.clients.environments import node_folder, report
from tests.clients.hearing import RATE, assert_says, wav_of
from tests.process.conftest import Server

SENTENCE = "The museum is closed on Monday morning."


def test_the_npm_client_speaks_chats_and_is_told_what_is_wrong(server: Server):
    told = report("node", "drive.mjs", server.url, SENTENCE, cwd=node_folder())
    samples = np.frombuffer(base64.b64decode(told["speech"]["pcm"]), "<i2")
    assert_says(server, wav_of(samples), SENTENCE)
    assert len(samples) > RATE
    chat = told["chat"]
    assert chat["text"].strip()
    assert chat["transcript"] == chat["text"]
    assert chat["bytes"] > RATE and chat["finish"] in ("stop", "length")
    assert told["refusal"] == {"name": "BadRequestError", "status": 400, "param": "input"}
