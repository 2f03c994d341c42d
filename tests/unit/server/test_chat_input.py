"""The media of a chat request: decoded in their order, or refused with the place of the part that is wrong."""

import base64
from typing import Any

import numpy as np
import pytest

from antiphon.config.deploy import ServerDeploy
from antiphon.config.pipeline import Modality
from antiphon.errors import RequestError
from antiphon.messages.tasks import ChatInput, Picture, Sound, Video
from antiphon.server.chat_input import chat_input
from antiphon.server.chat_schema import ChatRequest
from tests.unit.server.media_files import picture, png_header, video, wav

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
FRAMES = np.random.default_rng(1).integers(0, 256, (10, 16, 24, 3), np.uint8)
TONE = (8_000 * np.sin(np.arange(16_000) / 9)).astype(np.int16)
SETTINGS = ServerDeploy(max_audio_s=2.0, max_pixels=4_000, max_video_frames=8)
EVERYTHING = frozenset(Modality)
Part = dict[str, Any]


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def seen(data: bytes) -> Part:
    return {"type": "image_url", "image_url": {"url": url(data), "detail": "high"}}


def watched(data: bytes) -> Part:
    return {"type": "video_url", "video_url": {"url": url(data, "video/quicktime")}}


def heard(data: str) -> Part:
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def read(*parts: Part, taken: frozenset[Modality] = EVERYTHING, **fields: Any) -> ChatInput:
    messages = [{"role": "user", "content": "hi"}, {"role": "user", "content": list(parts)}]
    return chat_input(ChatRequest.model_validate({"model": "m", "messages": messages} | fields), SETTINGS, taken)


def test_the_parts_of_a_message_keep_their_order() -> None:
    sound = base64.b64encode(wav(1_600)).decode()
    chat = read({"type": "text", "text": "look:"}, seen(picture(PIXELS)), heard(sound), watched(video(FRAMES, 10)))
    text, image, spoken, clip = chat.messages[1].parts
    assert text == "look:" and not chat.use_audio_in_video
    assert isinstance(image, Picture) and image.pixels.tolist() == PIXELS.tolist()
    assert isinstance(spoken, Sound) and spoken.samples.shape == (1_600,)
    assert isinstance(clip, Video) and (clip.frames_per_s, clip.sound) == (2.0, None)
    assert clip.frames.tolist() == FRAMES[[0, 5]].tolist()


def test_a_sound_may_be_a_data_url() -> None:
    (spoken,) = read(heard(url(wav(1_600), "audio/wav"))).messages[1].parts
    assert isinstance(spoken, Sound) and spoken.samples.shape == (1_600,)


def test_a_videos_sound_is_read_if_it_shall_be_heard() -> None:
    part = watched(video(FRAMES, 10, sound=TONE))
    chat = read(part, mm_processor_kwargs={"use_audio_in_video": True, "fps": 1})
    (clip,) = chat.messages[1].parts
    assert chat.use_audio_in_video and isinstance(clip, Video) and clip.sound is not None
    assert clip.sound.shape == (16_000,)


PLACE = "messages[1].content[1]"


@pytest.mark.parametrize(
    ("part", "status", "code", "param", "message"),
    [
        ({"type": "image_url"}, 400, "missing_field", "image_url", "required"),
        ({"type": "video_url"}, 400, "missing_field", "video_url", "required"),
        ({"type": "input_audio"}, 400, "missing_field", "input_audio", "required"),
        (
            {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
            400,
            "unsupported_url",
            "image_url.url",
            "fetches nothing; send the file itself",
        ),
        (
            {"type": "video_url", "video_url": {"url": "HTTP://127.0.0.1/a.mp4"}},
            400,
            "unsupported_url",
            "video_url.url",
            "fetches nothing",
        ),
        (
            {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
            400,
            "unsupported_url",
            "image_url.url",
            "fetches nothing",
        ),
        ({"type": "image_url", "image_url": {"url": "cat.png"}}, 400, "unsupported_url", "image_url.url", "data: URL"),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png,%89PNG"}},
            400,
            "unsupported_url",
            "image_url.url",
            "in base64",
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,*"}},
            400,
            "invalid_base64",
            "image_url.url",
            "not base64",
        ),
        (heard("*"), 400, "invalid_base64", "input_audio.data", "not base64"),
        (heard("data:audio/wav;base64,aGVsbG8="), 400, "invalid_audio", "input_audio.data", "not audio"),
        (heard(url(wav(40_000))), 413, "request_too_large", "input_audio.data", "limit of 2 s"),
        (seen(b""), 400, "invalid_image", "image_url.url", "no picture of a known format"),
        (seen(b"hello"), 400, "invalid_image", "image_url.url", "send a png, jpeg or webp file"),
        (seen(video(FRAMES, 10)), 400, "invalid_image", "image_url.url", "no picture"),
        (seen(picture(PIXELS)[:99]), 400, "invalid_image", "image_url.url", "cut short"),
        (seen(png_header(12_000, 12_000)), 413, "request_too_large", "image_url.url", "server.max_pixels"),
        (
            seen(picture(np.zeros((60, 60, 3), np.uint8))),
            413,
            "request_too_large",
            "image_url.url",
            "3400 pixels that are left",  # the picture before it has 600 of the 4,000
        ),
        (watched(b"hello"), 400, "invalid_video", "video_url.url", "send an mp4"),
        (watched(wav(1_600)), 400, "invalid_video", "video_url.url", "not a video"),
        (watched(video(FRAMES, 1)), 413, "request_too_large", "video_url.url", "longer than the 4 s"),
    ],
)
def test_a_bad_part_is_refused_by_its_place(part: Part, status: int, code: str, param: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(seen(picture(PIXELS)), part)
    error = caught.value
    assert (error.http_status, error.code, error.param) == (status, code, f"{PLACE}.{param}")
    assert message in error.message and f"`{PLACE}.{param}`" in error.message


def test_the_frames_of_all_videos_count() -> None:
    first = watched(video(FRAMES, 4))  # 2.25 s: five frames
    with pytest.raises(RequestError, match=r"longer than the 1\.5 s that are left") as caught:
        read(first, first)
    assert caught.value.http_status == 413


@pytest.mark.parametrize(
    ("part", "taken"),
    [
        ({"type": "image_url"}, EVERYTHING - {Modality.IMAGE}),
        ({"type": "video_url"}, EVERYTHING - {Modality.VIDEO}),
        ({"type": "input_audio"}, EVERYTHING - {Modality.AUDIO}),
    ],
)
def test_what_the_pipeline_does_not_take_is_refused_before_anything_is_decoded(
    part: Part, taken: frozenset[Modality]
) -> None:
    with pytest.raises(RequestError) as caught:
        read(heard("not base64 either"), part, taken=taken)
    assert (caught.value.http_status, caught.value.code) == (400, "unsupported_modality")
