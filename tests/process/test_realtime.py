"""Spoken conversations through the whole runtime, as OpenAI's own realtime client has them."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher

import av
import numpy as np
import openai
import pytest
from openai.resources.realtime.realtime import RealtimeConnection

from tests.process.conftest import Server, eventually
from tests.process.metrics_page import assert_nothing_is_held, totals
from tests.wav import wav_of
from tests.words import words

QUESTION = "What is the capital of France?"
SECOND_MS = 48
"""Bytes of a millisecond of 24 kHz pcm."""
PIECE_BYTES = 100 * SECOND_MS


@pytest.fixture(scope="module")
def client(voice_server: Server) -> openai.OpenAI:
    address = voice_server.url.replace("http", "ws") + "/v1"
    return openai.OpenAI(
        base_url=f"{voice_server.url}/v1", websocket_base_url=address, api_key="none", max_retries=0, timeout=120
    )


@pytest.fixture(scope="module")
def question(client: openai.OpenAI) -> bytes:
    """24 kHz pcm of the question, silence around it; of one seed, so that it is always heard alike."""
    wishes = {"response_format": "pcm", "extra_body": {"seed": 1}}
    spoken = client.audio.speech.create(model="tts-1", voice="alloy", input=QUESTION, **wishes).read()
    return bytes(500 * SECOND_MS) + spoken + bytes(1_000 * SECOND_MS)


@contextmanager
def talking(client: openai.OpenAI, **session: object) -> Iterator[RealtimeConnection]:
    with client.realtime.connect(model="gpt-realtime") as talk:
        assert talk.recv().type == "session.created"
        talk.session.update(session={"type": "realtime", "temperature": 0, **session})
        assert talk.recv().type == "session.updated"
        yield talk


def append(talk: RealtimeConnection, pcm: bytes) -> None:
    for at in range(0, len(pcm), PIECE_BYTES):
        talk.input_audio_buffer.append(audio=base64.b64encode(pcm[at : at + PIECE_BYTES]).decode())


def hear_until(talk: RealtimeConnection, kind: str) -> list:
    heard = []
    while not heard or heard[-1].type != kind:
        heard.append(talk.recv())
        assert heard[-1].type != "error" or kind == "error", heard[-1]
    return heard


def ask(talk: RealtimeConnection, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    talk.conversation.item.create(item={"type": "message", "role": "user", "content": content})
    talk.response.create()


def listen(client: openai.OpenAI, pcm: bytes) -> list[str]:
    file = ("answer.wav", wav_of(pcm))
    return words(client.audio.transcriptions.create(model="whisper-1", file=file, language="en").text)


def is_at_rest(server: Server) -> bool:
    now = totals(server)
    return now["requests_inflight"] == now["requests_open"] == 0


def test_a_spoken_question_is_heard_and_answered_aloud(client, question):
    transcription = {"audio": {"input": {"transcription": {"model": "whisper-1", "language": "en"}}}}
    with talking(client, max_output_tokens=24, **transcription) as talk:
        append(talk, question)
        heard = hear_until(talk, "response.done")
    kinds = [event.type for event in heard]
    assert kinds.index("input_audio_buffer.speech_started") < kinds.index("input_audio_buffer.speech_stopped")
    assert kinds.index("input_audio_buffer.committed") < kinds.index("response.created")
    (told,) = [event for event in heard if event.type == "conversation.item.input_audio_transcription.completed"]
    assert words(told.transcript) == words(QUESTION)
    response = heard[-1].response
    assert response.status in ("completed", "incomplete")
    transcript = response.output[0].content[0].transcript
    deltas = [event.delta for event in heard if event.type == "response.output_audio_transcript.delta"]
    assert "".join(deltas) == transcript
    pcm = b"".join(base64.b64decode(e.delta) for e in heard if e.type == "response.output_audio.delta")
    assert np.abs(np.frombuffer(pcm, "<i2")).max() > 1_000
    again = client.audio.speech.create(model="tts-1", voice="alloy", input=transcript, response_format="pcm").read()
    assert 0.85 < len(pcm) / len(again) < 1.15, transcript
    said, said_again = listen(client, pcm), listen(client, again)
    assert SequenceMatcher(None, said, said_again).ratio() > 0.7, (transcript, said, said_again)


def test_speech_interrupts_the_answer_and_the_model_forgets_what_was_not_played(client, question, voice_server):
    no_answer = {"input": {"turn_detection": {"type": "server_vad", "create_response": False}}}
    with talking(client, max_output_tokens=400, audio=no_answer) as talk:
        ask(talk, "Tell me a very long story about the sea, with many details.")
        first = hear_until(talk, "response.output_audio.delta")
        append(talk, question)
        heard = first + hear_until(talk, "response.done")
        done = heard[-1].response
        assert (done.status, done.status_details.reason) == ("cancelled", "turn_detected")
        item = done.output[0]
        talk.conversation.item.truncate(item_id=item.id, content_index=0, audio_end_ms=400)
        hear_until(talk, "conversation.item.truncated")
        talk.conversation.item.retrieve(item_id=item.id)
        kept = hear_until(talk, "conversation.item.retrieved")[-1].item.content[0].transcript
        assert item.content[0].transcript.startswith(kept)
        assert len(kept) <= 6 < len(item.content[0].transcript)
        assert eventually(lambda: is_at_rest(voice_server)), "a stage goes on with what was cancelled"


def test_an_answer_is_cancelled_and_what_cannot_be_done_is_told(client):
    with talking(client, max_output_tokens=200, audio={"input": {"turn_detection": None}}) as talk:
        ask(talk, "Count from one to one hundred.")
        hear_until(talk, "response.output_audio_transcript.delta")
        talk.response.create(event_id="second")
        error = hear_until(talk, "error")[-1].error
        assert (error.code, error.event_id) == ("conversation_already_has_active_response", "second")
        talk.response.cancel()
        assert hear_until(talk, "response.done")[-1].response.status_details.reason == "client_cancelled"
        for session, param in (
            ({"tools": [{"type": "function", "name": "f"}]}, "session.tools"),
            ({"audio": {"output": {"voice": "zoe"}}}, "session.audio.output.voice"),
            (
                {"audio": {"input": {"transcription": {"language": "de"}}}},
                "session.audio.input.transcription.language",
            ),
            (
                {"audio": {"input": {"turn_detection": {"type": "other_vad"}}}},
                "session.audio.input.turn_detection.type",
            ),
        ):
            talk.session.update(session={"type": "realtime", **session})
            assert hear_until(talk, "error")[-1].error.param == param
        talk.send({"type": "nonsense"})
        assert hear_until(talk, "error")[-1].error.param == "type"
        talk.response.create(response={"output_modalities": ["text"], "max_output_tokens": 5})
        assert hear_until(talk, "response.done")[-1].response.output[0].content[0].type == "output_text"


def test_the_beta_client_talks_too(client, question):
    with client.beta.realtime.connect(model="gpt-4o-realtime-preview") as talk:
        session = talk.recv().session
        assert session.modalities == ["text", "audio"]
        talk.session.update(session={"input_audio_format": "g711_ulaw", "turn_detection": None, "modalities": ["text"]})
        telephone = (np.frombuffer(question, "<i2")[::3]).astype("<i2").tobytes()
        talk.input_audio_buffer.append(audio=base64.b64encode(mu_law(telephone)).decode())
        talk.input_audio_buffer.commit()
        talk.response.create(response={"max_response_output_tokens": 5})
        heard = hear_until(talk, "response.done")
        assert "conversation.item.created" in [event.type for event in heard]
        assert "response.text.delta" in [event.type for event in heard]


def mu_law(pcm: bytes) -> bytes:
    """By FFmpeg."""
    encoder = av.CodecContext.create("pcm_mulaw", "w")
    encoder.sample_rate, encoder.layout, encoder.format = 8_000, "mono", "s16"
    frame = av.AudioFrame.from_ndarray(np.frombuffer(pcm, "<i2").reshape(1, -1), format="s16", layout="mono")
    frame.sample_rate = 8_000
    return b"".join(bytes(packet) for packet in encoder.encode(frame) + encoder.encode(None))


def test_a_client_that_vanishes_in_mid_answer_leaves_nothing(client, voice_server):
    with talking(client, max_output_tokens=400) as talk:
        ask(talk, "Tell me a very long story about a dog.")
        hear_until(talk, "response.output_audio.delta")
        talk._connection.socket.close()
    assert_nothing_is_held(voice_server, 15.0)
