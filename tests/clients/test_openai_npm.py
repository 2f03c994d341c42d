"""OpenAI's npm client: speech and chat, streamed, and a refusal."""

import base64

from tests.clients.environments import node_folder, report
from tests.clients.hearing import RATE, assert_says
from tests.process.conftest import Server
from tests.wav import wav_of

SENTENCE = "The museum is closed on Monday morning."


def test_the_npm_client_speaks_chats_and_is_told_what_is_wrong(server: Server):
    told = report("node", "drive.mjs", server.url, SENTENCE, cwd=node_folder())
    pcm = base64.b64decode(told["speech"]["pcm"])
    assert_says(server, wav_of(pcm), SENTENCE)
    assert len(pcm) > 2 * RATE
    chat = told["chat"]
    assert chat["text"].strip()
    assert chat["transcript"] == chat["text"]
    assert chat["bytes"] > RATE and chat["finish"] in ("stop", "length")
    assert told["refusal"] == {"name": "BadRequestError", "status": 400, "param": "input"}
