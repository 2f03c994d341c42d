"""POST /v1/audio/transcriptions against a scripted runtime."""

import asyncio

import numpy as np
import pytest

from antiphon.client.output_stream import StageMessage
from antiphon.errors import InvalidRequestError
from antiphon.messages.client import OutputEnd, Segment, SegmentScores, Usage, Word
from antiphon.server.audio_encode import AudioFormat, encode_whole
from tests.unit.server.conftest import RawExchange, end, events, tone

pytestmark = pytest.mark.anyio
PATH = "/v1/audio/transcriptions"
WAV = encode_whole(tone(24_000), AudioFormat.WAV, 24_000)
SEGMENTS = [
    StageMessage("listener", Segment(" Hello there.", 0.0, 1.5, "en")),
    StageMessage("listener", Segment(" Bye.", 1.5, 3723.25, "en")),
    end("listener", usage=Usage(num_samples=16_000)),
]


def form(**fields: str) -> dict:
    return {"data": {"model": "whisper-1", **fields}, "files": {"file": ("a.wav", WAV)}}


MULTIPART = [(b"content-type", b"multipart/form-data; boundary=x")]


def multipart(**fields: str) -> bytes:
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in {"model": "whisper-1", **fields}.items()
    ]
    file = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + WAV + b"\r\n--x--\r\n"
    return b"".join([*parts, file])


async def test_json_is_the_default(http, client):
    client.script = SEGMENTS
    answer = await http.post(PATH, **form())
    assert answer.status_code == 200
    assert answer.json() == {"text": "Hello there. Bye.", "usage": {"type": "duration", "seconds": 1.0}}


async def test_the_runtime_gets_16_khz_samples_and_all_fields(http, client):
    client.script = SEGMENTS
    await http.post(PATH, **form(language="en", prompt="Names: Bo", temperature="0.5"))
    (speech,) = client.inputs
    assert (speech.language, speech.prompt, speech.temperature) == ("en", "Names: Bo", 0.5)
    assert speech.audio.dtype == np.float32
    assert abs(speech.audio.size - 16_000) <= 1


async def test_text_is_the_bare_words(http, client):
    client.script = SEGMENTS
    answer = await http.post(PATH, **form(response_format="text"))
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text == "Hello there. Bye.\n"


async def test_verbose_json_has_language_duration_and_segments(http, client):
    client.script = SEGMENTS
    answer = (await http.post(PATH, **form(response_format="verbose_json"))).json()
    assert (answer["language"], answer["duration"], answer["text"]) == ("en", 1.0, "Hello there. Bye.")
    assert answer["segments"] == [
        {"id": 0, "start": 0.0, "end": 1.5, "text": "Hello there."},
        {"id": 1, "start": 1.5, "end": 3723.25, "text": "Bye."},
    ]


async def test_srt(http, client):
    client.script = SEGMENTS
    answer = await http.post(PATH, **form(response_format="srt"))
    assert answer.text == ("1\n00:00:00,000 --> 00:00:01,500\nHello there.\n\n2\n00:00:01,500 --> 01:02:03,250\nBye.\n")


async def test_vtt(http, client):
    client.script = SEGMENTS
    answer = await http.post(PATH, **form(response_format="vtt"))
    assert answer.text == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello there.\n\n00:00:01.500 --> 01:02:03.250\nBye.\n"
    )


WORDS = (Word(" Hello", 0.0, 0.6), Word(" there.", 0.6, 1.5))
SCORES = SegmentScores(3, (7, 8), 0.0, -0.25, 1.5, 0.1)
SCORED = [StageMessage("listener", Segment(" Hello there.", 0.0, 1.5, "en", WORDS, SCORES)), end("listener")]


async def test_verbose_json_has_the_scores_of_its_segments_and_the_words_if_they_are_asked_for(http, client):
    client.script = SCORED
    answer = (await http.post(PATH, **form(response_format="verbose_json"))).json()
    assert answer["segments"] == [
        {
            "id": 0,
            "start": 0.0,
            "end": 1.5,
            "text": "Hello there.",
            "seek": 3,
            "tokens": [7, 8],
            "temperature": 0.0,
            "avg_logprob": -0.25,
            "compression_ratio": 1.5,
            "no_speech_prob": 0.1,
        }
    ]
    assert "words" not in answer and not client.inputs[0].times_words
    asked = form(response_format="verbose_json", **{"timestamp_granularities[]": "word"})
    answer = (await http.post(PATH, **asked)).json()
    assert answer["words"] == [
        {"word": "Hello", "start": 0.0, "end": 0.6},
        {"word": "there.", "start": 0.6, "end": 1.5},
    ]
    assert "segments" not in answer and client.inputs[1].times_words
    asked = form(response_format="verbose_json", **{"timestamp_granularities[]": ["word", "segment"]})
    assert (await http.post(PATH, **asked)).json().keys() >= {"words", "segments"}


async def test_a_streamed_transcript_comes_segment_by_segment(app, client):
    exchange = RawExchange(app, PATH, multipart(stream="true"), headers=MULTIPART)
    running = asyncio.create_task(exchange.run())
    await client.submitted.wait()
    (stream,) = client.streams
    stream.accept(("listener",))
    stream.push("listener", Segment(" Hello there.", 0.0, 1.5, "en"))
    while b"Hello there." not in exchange.body_sent:
        await asyncio.sleep(0)
    assert exchange.status == 200
    stream.push("listener", Segment(" Bye.", 1.5, 2.0, "en"))
    stream.push("listener", OutputEnd())
    await running
    assert events(exchange.body_sent.decode()) == [
        {"type": "transcript.text.delta", "delta": "Hello there."},
        {"type": "transcript.text.delta", "delta": " Bye."},
        {
            "type": "transcript.text.done",
            "text": "Hello there. Bye.",
            "usage": {"type": "duration", "seconds": 1.0},
        },
    ]


async def test_a_stream_that_fails_before_its_first_word_is_an_http_error(http, client):
    client.failure = InvalidRequestError("no such language", param="language")
    answer = await http.post(PATH, **form(stream="true", language="yue"))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "language")


async def test_a_language_that_is_not_understood_is_refused_before_any_stage_works_and_regions_do_not_matter(
    http, client
):
    client.script = SEGMENTS
    answer = await http.post(PATH, **form(language="xx"))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "language")
    assert "en, de, yue" in answer.json()["error"]["message"]
    assert client.inputs == []
    assert (await http.post(PATH, **form(language="de_AT"))).status_code == 200


async def test_a_translation_is_asked_of_the_listener(http, client):
    client.script = SEGMENTS
    answer = await http.post("/v1/audio/translations", **form(response_format="verbose_json", prompt="Names: Bo"))
    assert (answer.json()["task"], answer.json()["text"]) == ("translate", "Hello there. Bye.")
    (speech,) = client.inputs
    assert (speech.translates, speech.prompt, speech.language) == (True, "Names: Bo", "")


async def test_silence_is_an_empty_text(http, client):
    client.script = [end("listener")]
    assert (await http.post(PATH, **form())).json()["text"] == ""


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "xml"}, "response_format"),
        ({"temperature": "7"}, "temperature"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities[]"),
        (
            {"timestamp_granularities[]": "letter", "response_format": "verbose_json"},
            "timestamp_granularities[]",
        ),
        ({"stream": "true", "response_format": "srt"}, "stream"),
        ({"include[]": "logprobs"}, "include[]"),
    ],
)
async def test_a_wrong_field_is_a_400_that_names_it(http, client, fields, param):
    answer = await http.post(PATH, **form(**fields))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert client.inputs == []


async def test_a_missing_file_is_a_400(http, client):
    answer = await http.post(PATH, data={"model": "whisper-1"}, files={"other": b"x"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")


@pytest.mark.parametrize("data", [b"not audio at all" * 100, b"", WAV[:20]])
async def test_bytes_that_are_not_audio_are_a_400(http, client, data):
    answer = await http.post(PATH, data={"model": "whisper-1"}, files={"file": ("a.wav", data)})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
    assert client.inputs == []


async def test_an_unknown_model_is_a_404(http):
    assert (await http.post(PATH, **form(model="whisper-9"))).status_code == 404


async def test_hanging_up_aborts_the_request(app, client):
    exchange = RawExchange(app, PATH, multipart(), headers=MULTIPART)
    running = asyncio.create_task(exchange.run())
    await client.submitted.wait()
    exchange.hung_up.set()
    await running
    assert client.aborted == client.request_ids
