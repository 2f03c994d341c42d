"""Pictures and videos as clients send them: the right pixels, or a refusal that says why."""

import resource

import numpy as np
import pytest

from antiphon.errors import InvalidRequestError, RequestTooLargeError
from antiphon.messages.tasks import Video
from antiphon.server.media_decode import VideoLimits, decode_picture, decode_video
from tests.unit.server.media_files import picture, png_header, turned, video

NOISE = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
RAMP = np.repeat(np.tile(np.linspace(0, 255, 64).astype(np.uint8)[None, :, None], (32, 1, 3)), 1, axis=0)
MANY = 10_000
FRAMES = np.stack([np.full((16, 24, 3), 10 * number, np.uint8) for number in range(20)])


def test_a_png_gives_its_own_pixels() -> None:
    np.testing.assert_array_equal(decode_picture(picture(NOISE), max_pixels=600), NOISE)


@pytest.mark.parametrize(("codec", "pixel_format"), [("mjpeg", "yuvj420p"), ("libwebp", "yuv420p")])
def test_a_lossy_picture_keeps_black_and_white(codec: str, pixel_format: str) -> None:
    pixels = decode_picture(picture(RAMP, codec, pixel_format), max_pixels=MANY)
    assert pixels.shape == RAMP.shape and pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - RAMP).max() < 10


def test_what_is_transparent_is_white() -> None:
    alpha = np.zeros((2, 2, 4), np.uint8)
    alpha[0, 0] = (200, 100, 50, 255)
    alpha[0, 1] = (0, 0, 0, 128)
    pixels = decode_picture(picture(alpha, "png", "rgba"), max_pixels=MANY)
    assert pixels.tolist() == [[[200, 100, 50], [127, 127, 127]], [[255] * 3, [255] * 3]]


@pytest.mark.parametrize(("orientation", "num_turns"), [(1, 0), (3, 2), (6, -1), (8, 1)])
def test_a_photo_is_turned_as_its_mark_says(orientation: int, num_turns: int) -> None:
    jpeg = picture(RAMP, "mjpeg", "yuvj444p")
    want = np.rot90(decode_picture(jpeg, max_pixels=MANY), num_turns)
    np.testing.assert_array_equal(decode_picture(turned(jpeg, orientation), max_pixels=MANY), want)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no picture of a known format"),
        (b"GIF89a", "no picture of a known format"),
        (b"<svg/>", "no picture of a known format"),
        (picture(NOISE)[:40], "damaged or cut short"),
        (b"\xff\xd8\xff\xe0nothing", "damaged or cut short"),
        (b"RIFF\x10\0\0\0WEBPVP8 none", "damaged or cut short"),
    ],
)
def test_what_is_no_picture_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        decode_picture(data, max_pixels=MANY)
    assert caught.value.code == "invalid_image"


@pytest.mark.parametrize("codec", [("png", "rgb24"), ("mjpeg", "yuvj420p"), ("libwebp", "yuv420p")])
def test_a_picture_one_pixel_over_the_limit_is_too_large(codec: tuple[str, str]) -> None:
    with pytest.raises(RequestTooLargeError, match="2047 pixels"):
        decode_picture(picture(RAMP, *codec), max_pixels=2047)


@pytest.mark.parametrize("side", [12_000, 60_000])
def test_a_small_file_that_claims_to_be_huge_costs_no_memory(side: int) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((RequestTooLargeError, InvalidRequestError)):
        decode_picture(png_header(side, side), max_pixels=MANY)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100_000  # side 12,000 takes 432 MB


def limits(
    frames_per_s: float = 2.0, max_frames: int = 100, max_pixels: int = 100_000, frame: int = 400
) -> VideoLimits:
    return VideoLimits(frames_per_s, max_frames, max_pixels, frame)


def brightness(got: Video) -> list[int]:
    return [int(frame.flat[0]) for frame in got.frames]


@pytest.mark.parametrize(
    ("source_fps", "taken_fps", "want"),
    [
        (10, 2.0, [0, 50, 100, 150]),
        (10, 10.0, [10 * number for number in range(20)]),
        (8, 3.0, [0, 20, 50, 80, 100, 130, 160, 180]),
        (1, 2.0, [10 * (number // 2) for number in range(39)]),
    ],
)
def test_a_video_is_what_it_shows_at_even_moments(source_fps: int, taken_fps: float, want: list[int]) -> None:
    got = decode_video(video(FRAMES, source_fps), limits(taken_fps), max_sound_s=None)
    assert got.frames_per_s == taken_fps and got.frames.shape[1:] == (16, 24, 3) and got.frames.dtype == np.uint8
    assert brightness(got) == want


@pytest.mark.parametrize(("codec", "container"), [("mpeg4", "mp4"), ("libvpx-vp9", "webm"), ("ffv1", "matroska")])
def test_usual_formats_are_read(codec: str, container: str) -> None:
    got = decode_video(video(FRAMES, 10, codec=codec, container=container), limits(), max_sound_s=None)
    assert np.abs(np.array(brightness(got)) - [0, 50, 100, 150]).max() < 12


def test_large_frames_are_made_smaller_in_shape() -> None:
    got = decode_video(video(FRAMES, 10), limits(frame=96), max_sound_s=None)
    assert got.frames.shape == (4, 8, 12, 3) and brightness(got) == [0, 50, 100, 150]


def test_the_sound_of_a_video_is_decoded_only_if_asked_for_and_there() -> None:
    tone = (8_000 * np.sin(np.arange(16_000) / 9)).astype(np.int16)
    with_sound = video(FRAMES, 10, sound=tone)
    assert decode_video(with_sound, limits(), max_sound_s=None).sound is None
    sound = decode_video(with_sound, limits(), max_sound_s=5.0).sound
    assert sound is not None
    np.testing.assert_allclose(sound, tone / 32_768, atol=1e-4)
    assert decode_video(video(FRAMES, 10), limits(), max_sound_s=5.0).sound is None


@pytest.mark.parametrize(
    ("source_fps", "given", "message"),
    [
        (10, limits(max_frames=3), "longer than the 1.5 s"),
        (0.01, limits(), "longer than the 50 s"),  # a few frames with long pauses between
        (10, limits(max_pixels=383), "383 pixels"),
        (10, limits(max_pixels=1_000), "1000 pixels"),
        (240, limits(max_pixels=384, frames_per_s=1.0, max_frames=1), None),
    ],
)
def test_a_video_over_a_limit_is_too_large(source_fps: float, given: VideoLimits, message: str | None) -> None:
    data = video(FRAMES, source_fps)
    if message is None:
        assert len(decode_video(data, given, max_sound_s=None).frames) == 1
        return
    with pytest.raises(RequestTooLargeError, match=message):
        decode_video(data, given, max_sound_s=None)


def test_a_video_of_thousands_of_frames_a_second_is_too_large() -> None:
    still = np.zeros((300, 16, 24, 3), np.uint8)
    with pytest.raises(RequestTooLargeError, match="384 pixels"):
        decode_video(video(still, 1000), limits(max_pixels=384), max_sound_s=None)


def test_what_is_no_video_is_refused() -> None:
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n"
    for data in (b"", b"nothing", playlist, video(FRAMES, 10)[:60]):
        with pytest.raises(InvalidRequestError, match="send an mp4") as caught:
            decode_video(data, limits(), max_sound_s=None)
        assert caught.value.code == "invalid_video"


def test_a_codec_that_is_not_known_is_no_video() -> None:
    data = video(FRAMES, 10, codec="mpeg4", container="avi").replace(b"FMP4", b"none")
    with pytest.raises(InvalidRequestError, match="codec of the video is not known"):
        decode_video(data, limits(), max_sound_s=None)
