"""Every kind of bad request: what is sent, and what the client is told. One table.

In: nothing. Out: BAD_REQUESTS. Does not know: servers.
"""

import base64
import gzip
import io
import json
import wave
from dataclasses import dataclass

SPEECH = {"model": "voice", "input": "Hello.", "voice": "alloy"}
CHAT = {"model": "voice", "messages": [{"role": "user", "content": "Hi."}]}
SPEECH_PATH, CHAT_PATH, FORM_PATH = "/v1/audio/speech", "/v1/chat/completions", "/v1/audio/transcriptions"
NOISE = bytes(range(256)) * 40
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
JSON, MULTIPART = "application/json", "multipart/form-data; boundary=x"
LONG_TEXT = "word " * 20_000


@dataclass(frozen=True)
class Bad:
    """One request, as httpx takes it, and the error that it gets."""

    name: str
    request: dict
    status: int
    param: str | None
    code: str
    method: str = "POST"


def silence(seconds: float) -> bytes:
    """A WAV file."""
    with io.BytesIO() as file:
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(16_000)
            writer.writeframes(bytes(2 * int(16_000 * seconds)))
        return file.getvalue()


def speech(name: str, param: str, code: str = "invalid_value", status: int = 400, **change: object) -> Bad:
    return Bad(f"speech: {name}", {"url": SPEECH_PATH, "json": {**SPEECH, **change}}, status, param, code)


TOOL = {"type": "function", "function": {"name": "f"}}


def chat(name: str, param: str, code: str = "invalid_value", status: int = 400, **change: object) -> Bad:
    return Bad(f"chat: {name}", {"url": CHAT_PATH, "json": {**CHAT, **change}}, status, param, code)


def part(name: str, param: str, content: object, code: str = "invalid_value") -> Bad:
    """A chat whose only message has this content."""
    return chat(name, f"messages[0].content{param}", code, messages=[{"role": "user", "content": content}])


def sound(name: str, data: str, code: str) -> Bad:
    content = [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]
    return part(name, "[0].input_audio.data", content, code)


def spoken(name: str, param: str, audio: dict) -> Bad:
    return chat(name, param, modalities=["text", "audio"], audio=audio)


def form(
    name: str, param: str, code: str = "invalid_value", status: int = 400, data: bytes = NOISE, **fields: str
) -> Bad:
    request = {"url": FORM_PATH, "data": {"model": "whisper-1", **fields}, "files": {"file": ("a.wav", data)}}
    return Bad(f"transcription: {name}", request, status, param, code)


def raw(name: str, url: str, content: bytes, content_type: str, code: str, param: str | None = None) -> Bad:
    headers = {"content-type": content_type} if content_type else {}
    return Bad(name, {"url": url, "content": content, "headers": headers}, 400, param, code)


def without(body: dict, field: str) -> dict:
    return {name: value for name, value in body.items() if name != field}


def missing(url: str, body: dict, field: str) -> Bad:
    return Bad(f"{url} without {field}", {"url": url, "json": without(body, field)}, 400, field, "missing_field")


ROUTES = (
    Bad("unknown route", {"url": "/v1/nothing"}, 404, None, "not_found", "GET"),
    Bad("unknown route with a body", {"url": "/v1/responses", "json": {}}, 404, None, "not_found"),
    Bad("route of another API", {"url": "/v1/completions", "json": {"prompt": "Hi."}}, 404, None, "not_found"),
    Bad("GET where POST is meant", {"url": SPEECH_PATH}, 405, None, "method_not_allowed", "GET"),
    Bad("DELETE", {"url": CHAT_PATH}, 405, None, "method_not_allowed", "DELETE"),
    Bad("POST where GET is meant", {"url": "/v1/models", "json": {}}, 405, None, "method_not_allowed"),
    Bad("a model that is not there", {"url": "/v1/models/gpt-9"}, 404, "model", "model_not_found", "GET"),
)
BODIES = (
    *(
        raw(f"{url}: {name}", url, content, JSON, "invalid_json")
        for url in (SPEECH_PATH, CHAT_PATH)
        for name, content in {
            "an empty body": b"",
            "half an object": b"{",
            "a list": b"[]",
            "a number": b"1",
            "null": b"null",
            "Python's quotes": b"{'model': 'voice'}",
            "bytes that are no text": b"\xff\xfe",
        }.items()
    ),
    raw(
        "JSON sent as a form",
        SPEECH_PATH,
        json.dumps(SPEECH).encode(),
        "application/x-www-form-urlencoded",
        "invalid_json",
    ),
    raw("JSON sent as text", SPEECH_PATH, json.dumps(SPEECH).encode(), "text/plain", "invalid_json"),
    raw("JSON of no type", CHAT_PATH, json.dumps(CHAT).encode(), "", "invalid_json"),
    raw("JSON nested without end", CHAT_PATH, b'{"messages":' + b"[" * 100_000, JSON, "invalid_json"),
    raw("a number of 5,000 digits", SPEECH_PATH, b'{"seed":' + b"9" * 5_000 + b"}", JSON, "invalid_json"),
    raw("JSON that is packed", SPEECH_PATH, gzip.compress(json.dumps(SPEECH).encode()), JSON, "invalid_json"),
    raw("JSON of another encoding", SPEECH_PATH, '{"model": "é"}'.encode("latin-1"), JSON, "invalid_json"),
    raw("JSON where a form is meant", FORM_PATH, b'{"model":"whisper-1"}', JSON, "missing_field", "file"),
    raw("a form that is none", FORM_PATH, b"nothing", MULTIPART, "invalid_request"),
    raw("a form without its boundary", FORM_PATH, b"--x--\r\n", "multipart/form-data", "invalid_request"),
    raw(
        "a form that breaks off",
        FORM_PATH,
        b'--x\r\nContent-Disposition: form-data; name="file',
        MULTIPART,
        "missing_field",
        "file",
    ),
)
SPEECHES = (
    *(missing(SPEECH_PATH, SPEECH, field) for field in ("model", "input")),
    speech("empty input", "input", input=""),
    speech("blank input", "input", input=" \n\t "),
    speech("input with nothing to speak", "input", input="..."),
    speech("input that is a list", "input", input=["a"]),
    speech("input that is a number", "input", input=5),
    speech("input that is null", "input", "missing_field", input=None),
    speech("half a surrogate pair", "input", input="a \ud800 b"),
    speech("input that is too long", "input", "string_above_max_length", input=LONG_TEXT),
    speech("unknown model", "model", "model_not_found", 404, model="tts-9"),
    speech("model that is a number", "model", model=1),
    speech("unknown voice", "voice", voice="nobody"),
    speech("unknown voice by id", "voice", voice={"id": "nobody"}),
    speech("voice that is a list", "voice", voice=["alloy"]),
    speech("voice that is an object without id", "voice", voice={"name": "alloy"}),
    speech("unknown format", "response_format", response_format="mp4"),
    speech("format that is a number", "response_format", response_format=3),
    speech("unknown stream format", "stream_format", stream_format="tape"),
    speech("stream that is a word", "stream", stream="perhaps"),
    speech("too slow", "speed", speed=0.24),
    speech("too fast", "speed", speed=4.01),
    speech("speed that is a word", "speed", speed="quick"),
    raw(
        "speech: speed that is no number",
        SPEECH_PATH,
        json.dumps({**SPEECH, "speed": float("nan")}).encode(),
        JSON,
        "invalid_value",
        "speed",
    ),
    raw(
        "speech: speed without end",
        SPEECH_PATH,
        json.dumps({**SPEECH, "speed": float("inf")}).encode(),
        JSON,
        "invalid_value",
        "speed",
    ),
    speech("sample rate below all", "sample_rate", sample_rate=7_999),
    speech("sample rate above all", "sample_rate", sample_rate=48_001),
    speech("sample rate that is a fraction", "sample_rate", sample_rate=24_000.5),
    speech("seed of more than 64 bits", "seed", seed=2**63),
    speech("seed that is a word", "seed", seed="seven"),
    speech("language that the voice does not speak", "language", language="tlh"),
)
CHATS = (
    *(missing(CHAT_PATH, CHAT, field) for field in ("model", "messages")),
    chat("unknown model", "model", "model_not_found", 404, model="gpt-9"),
    chat("no messages", "messages", messages=[]),
    chat("too many messages", "messages", messages=[{"role": "user", "content": "Hi."}] * 2_049),
    chat("messages that are a text", "messages", messages="Hi."),
    chat("message that is a text", "messages[0]", messages=["Hi."]),
    chat("message without a role", "messages[0].role", "missing_field", messages=[{"content": "Hi."}]),
    chat("unknown role", "messages[0].role", messages=[{"role": "robot", "content": "Hi."}]),
    chat("user who says nothing", "messages[0].content", "missing_field", messages=[{"role": "user"}]),
    chat("blank message", "messages", messages=[{"role": "user", "content": " "}]),
    chat(
        "messages that are too long",
        "messages",
        "string_above_max_length",
        messages=[{"role": "user", "content": LONG_TEXT}],
    ),
    chat(
        "half a surrogate pair",
        "messages[1].content[0].text",
        messages=[*CHAT["messages"], {"role": "user", "content": "\udc00"}],
    ),
    chat(
        "audio of an earlier answer", "messages[0].audio", messages=[{"role": "assistant", "audio": {"id": "audio-1"}}]
    ),
    part("content that is a number", "", 5),
    part("part that is a text", "[0]", ["Hi."]),
    part("part without a type", "[0].type", [{"text": "Hi."}], "missing_field"),
    part("part of an unknown type", "[0].type", [{"type": "smell"}]),
    part("sound that is not there", "[0].input_audio", [{"type": "input_audio"}], "missing_field"),
    part("sound without data", "[0].input_audio.data", [{"type": "input_audio", "input_audio": {}}], "missing_field"),
    part("picture where none is seen", "[0]", [PICTURE], "unsupported_modality"),
    part(
        "video where none is seen",
        "[0]",
        [{"type": "video_url", "video_url": {"url": "data:,"}}],
        "unsupported_modality",
    ),
    sound("sound that is no base64", "!!!", "invalid_base64"),
    sound("sound that is empty", "", "invalid_audio"),
    sound("sound that is noise", base64.b64encode(NOISE).decode(), "invalid_audio"),
    sound("sound behind a web address", "https://example.com/a.wav", "invalid_base64"),
    chat("too hot", "temperature", temperature=3),
    chat("temperature below zero", "temperature", temperature=-0.1),
    chat("temperature that is a word", "temperature", temperature="warm"),
    chat("top_p above one", "top_p", top_p=1.5),
    chat("top_k below zero", "top_k", top_k=-1),
    chat("min_p above one", "min_p", min_p=2),
    chat("no repetition penalty", "repetition_penalty", repetition_penalty=0),
    chat("no tokens", "max_tokens", max_tokens=0),
    chat("tokens below zero", "max_completion_tokens", max_completion_tokens=-5),
    chat("tokens that are a fraction", "max_tokens", max_tokens=1.5),
    chat("five stops", "stop", stop=list("abcde")),
    chat("an empty stop", "stop[0]", stop=""),
    chat("a stop of 100,000 characters, which no control message has room for", "stop", stop="x" * 100_000),
    chat("no answers", "n", n=0),
    chat("answers that are a word", "n", n="two"),
    chat("a hundred answers", "n", n=100),
    chat("likeliest tokens without log probabilities", "top_logprobs", top_logprobs=2),
    chat("a bias without bounds", "logit_bias.5", logit_bias={"5": 1000}),
    chat("tools that it does not know", "tools", "unsupported_parameter", tools=[TOOL]),
    chat("a forced call", "tool_choice", tool_choice="required"),
    chat("the old name of tools", "functions", functions=[{"name": "f"}]),
    chat("an answer in XML", "response_format.type", response_format={"type": "xml"}),
    chat(
        "a schema of which a part would be dropped",
        "response_format.json_schema.schema.not",
        response_format={"type": "json_schema", "json_schema": {"schema": {"not": {"type": "string"}}}},
    ),
    chat("JSON that does not end", "ignore_eos", response_format={"type": "json_object"}, ignore_eos=True),
    chat("no modalities", "modalities", modalities=[]),
    chat("unknown modality", "modalities[0]", modalities=["smell"]),
    chat("stream that is a number", "stream", stream=7),
    chat("stream options that are a list", "stream_options", stream_options=[1]),
    spoken("unknown voice", "audio.voice", {"voice": "nobody", "format": "wav"}),
    spoken("unknown format", "audio.format", {"voice": "alloy", "format": "mp9"}),
    spoken("too fast", "audio.speed", {"voice": "alloy", "format": "wav", "speed": 9}),
    chat(
        "unknown voice, streamed", "audio.voice", modalities=["text", "audio"], audio={"voice": "nobody"}, stream=True
    ),
    chat("too hot, streamed", "temperature", temperature=3, stream=True),
)
FORMS = (
    form("noise", "file", "invalid_audio"),
    form("an empty file", "file", "invalid_audio", data=b""),
    form("half a WAV head", "file", "invalid_audio", data=b"RIFF\xff\xff\xff\xffWAVEfmt "),
    form("a sound of no length", "file", "invalid_audio", data=silence(0.001)),
    form("unknown format", "response_format", response_format="xml"),
    form("unknown model", "model", "model_not_found", 404, model="whisper-9"),
    form("too hot", "temperature", temperature="2"),
    form("temperature that is a word", "temperature", temperature="warm"),
    form("language that is a book", "language", data=silence(0.1), language="a language of no country"),
    form("prompt that is a book", "prompt", data=silence(0.1), prompt="word " * 1_000),
    form(
        "words' times where there is no place for them",
        "timestamp_granularities[]",
        **{"timestamp_granularities[]": "word"},
    ),
    form("unknown granularity", "timestamp_granularities[]", **{"timestamp_granularities[]": "syllable"}),
    form("subtitles that are streamed", "stream", response_format="srt", stream="true"),
    Bad(
        "translation: no file",
        {"url": "/v1/audio/translations", "data": {"model": "whisper-1"}},
        400,
        "file",
        "missing_field",
    ),
    Bad(
        "transcription: thousands of fields",
        {"url": FORM_PATH, "data": {f"field{n}": "x" for n in range(3_000)}, "files": {"file": b"x"}},
        *(400, None, "invalid_request"),
    ),
    Bad("transcription: no file", {"url": FORM_PATH, "data": {"model": "whisper-1"}}, 400, "file", "missing_field"),
    Bad(
        "transcription: the file has another name",
        {"url": FORM_PATH, "data": {"model": "whisper-1"}, "files": {"other": b"x"}},
        *(400, "file", "missing_field"),
    ),
    Bad(
        "transcription: a text where the file is meant",
        {"url": FORM_PATH, "data": {"model": "whisper-1", "file": "a.wav"}, "files": {"other": b"x"}},
        *(400, "file", "invalid_value"),
    ),
    Bad("transcription: no model", {"url": FORM_PATH, "files": {"file": b"x"}}, 400, "model", "missing_field"),
)
BAD_REQUESTS = (*ROUTES, *BODIES, *SPEECHES, *CHATS, *FORMS)
