"""Pictures and videos in: the bytes of a file become RGB pixels.

In: a whole file, and how much may come out of it. Out: uint8 arrays, or a RequestError.
Does not know: HTTP, models. All of it is synchronous CPU work: call it off the event loop.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import av
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from antiphon.errors import InvalidRequestError, RequestTooLargeError
from antiphon.messages.tasks import Video
from antiphon.server.audio_decode import decode_audio
from antiphon.server.demux import readable_packets

_DEMUXERS: Final = "mov,mp4,matroska,webm,avi,mpegts,ogg,flv,asf"
"""The only containers that are opened: FFmpeg's playlist formats would read other files and URLs for the client."""
_MAX_DECODED: Final = 256
"""Pixels that may be decoded on the way, over those that may come out: a minute of 1080p at 60 frames a second."""
_PADDING: Final = 64 * 65_536  # pixels: FFmpeg's own limit counts rows that are padded to 64

Pixels = npt.NDArray[np.uint8]


def decode_picture(data: bytes, *, max_pixels: int) -> Pixels:
    """A png, jpeg or webp file as uint8 RGB [height, width, 3], turned as its orientation mark says, on white.

    Raises InvalidRequestError (code "invalid_image") if it is none, or RequestTooLargeError if it has more than
    `max_pixels`; a size far over that takes no memory.
    """
    decoder = av.CodecContext.create(_codec_of(data), "r")
    assert isinstance(decoder, VideoCodecContext)
    decoder.thread_count = 1
    decoder.options = _ffmpeg_limit(max_pixels)
    try:
        frames = [*decoder.decode(av.Packet(data)), *decoder.decode(None)]
    except av.ArgumentError as error:  # what these decoders answer to a size over the limit, and to nothing else
        raise _too_many_pixels(max_pixels) from error
    except (av.FFmpegError, ValueError) as error:
        raise _invalid_picture("the file is damaged or cut short") from error
    if not frames:
        raise _invalid_picture("the file is damaged or cut short")
    frame = frames[0]
    if frame.width * frame.height > max_pixels:
        raise _too_many_pixels(max_pixels)
    return _turned(frame, _on_white(frame))


@dataclass(frozen=True)
class VideoLimits:
    """frames_per_s are taken, at most max_frames and max_pixels in all; larger frames are made max_frame_pixels."""

    frames_per_s: float
    max_frames: int
    max_pixels: int
    max_frame_pixels: int


def decode_video(data: bytes, limits: VideoLimits, *, max_sound_s: float | None) -> Video:
    """What the first video stream of a file shows at 0 s, 1 / frames_per_s, and so on.

    Its sound too, if max_sound_s is given and it has any. Raises InvalidRequestError (code "invalid_video") if nothing
    can be decoded, and RequestTooLargeError as soon as a limit is passed, without decoding the rest.
    """
    options = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "none"}
    try:
        with av.open(
            io.BytesIO(data),
            "r",
            options=_ffmpeg_limit(limits.max_pixels),
            container_options=options,
            metadata_errors="replace",
        ) as container:
            if not container.streams.video:
                raise _invalid_video("the file has no video stream")
            frames = _frames(container, container.streams.video[0], limits)
            has_sound = bool(container.streams.audio)
    except (av.FFmpegError, ValueError) as error:
        raise _invalid_video("the file is not a video in a known format") from error
    if not frames:
        raise _invalid_video("no frame can be decoded (the file may be cut short or damaged)")
    sound = None if max_sound_s is None or not has_sound else decode_audio(data, max_duration_s=max_sound_s)
    return Video(np.stack(frames), limits.frames_per_s, sound)


def _frames(container: InputContainer, stream: VideoStream, limits: VideoLimits) -> list[Pixels]:
    if stream.codec_context is None:
        raise _invalid_video("the codec of the video is not known")
    if stream.width * stream.height > limits.max_pixels:
        raise _too_many_pixels(limits.max_pixels)
    stream.codec_context.options = _ffmpeg_limit(limits.max_pixels)
    stream.codec_context.thread_count = 1
    sampler = _Sampler(limits)
    num_left = _MAX_DECODED * limits.max_pixels
    for frame in _decodable_frames(container, stream):
        num_left -= frame.width * frame.height
        if num_left < 0 or frame.width * frame.height > limits.max_pixels:
            raise _too_many_pixels(limits.max_pixels)
        sampler.push(frame)
    return sampler.finish()


def _ffmpeg_limit(max_pixels: int) -> dict[str, str]:
    """So that a decoder takes no memory for much more."""
    return {"max_pixels": str(max_pixels + _PADDING)}


def _codec_of(data: bytes) -> str:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "mjpeg"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "webp"
    raise _invalid_picture("the file is no picture of a known format")


def _invalid_picture(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{problem}; send a png, jpeg or webp file", param="file", code="invalid_image")


def _invalid_video(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{problem}; send an mp4, mov, webm or mkv file", param="file", code="invalid_video")


def _too_many_pixels(max_pixels: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"this picture or video has more than the {max_pixels} pixels that are left to the request; "
        "send a smaller one or raise server.max_pixels",
        param="file",
    )


def _on_white(frame: av.VideoFrame) -> Pixels:
    """[height, width, 3]; what is transparent is white."""
    if not any(component.is_alpha for component in frame.format.components) and not frame.format.has_palette:
        return np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    rgba = np.asarray(frame.to_ndarray(format="rgba"), np.uint8)
    alpha = rgba[..., 3:].astype(np.uint16)
    blended: Pixels = ((rgba[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return blended


def _turned(frame: av.VideoFrame, pixels: Pixels) -> Pixels:
    """`pixels` as the frame's orientation mark says; marks that mirror are read as their turn."""
    return np.ascontiguousarray(np.rot90(pixels, frame.rotation // 90))


def _decodable_frames(container: InputContainer, stream: VideoStream) -> Iterator[av.VideoFrame]:
    """Yields what can be decoded: a damaged packet is skipped."""
    for packet in readable_packets(container, stream):
        try:
            frames = packet.decode()
        except av.FFmpegError:
            continue
        yield from frames


class _Sampler:
    """Owns the frames taken so far, and the last one seen: at a moment, a video shows the last frame up to it."""

    def __init__(self, limits: VideoLimits) -> None:
        self._limits = limits
        self._size: tuple[int, int] | None = None
        self._shown: av.VideoFrame | None = None
        self._first_s = 0.0
        self._taken: list[Pixels] = []

    def push(self, frame: av.VideoFrame) -> None:
        """The next frame, in the order of display."""
        time_s = 0.0 if frame.time is None else frame.time
        if self._shown is None:
            self._first_s = time_s
        else:
            self._take(until_s=time_s - self._first_s)
        self._shown = frame

    def finish(self) -> list[Pixels]:
        """All frames taken, [height, width, 3] each, the last one shown among them if a moment fell to it."""
        if self._shown is not None:
            shown_s = 0.0 if self._shown.time is None else self._shown.time - self._first_s
            self._take(until_s=shown_s + 1e-6)
        return self._taken

    def _take(self, *, until_s: float) -> None:
        """Take what is shown for every moment before `until_s`."""
        assert self._shown is not None
        pixels: Pixels | None = None
        limits = self._limits
        while len(self._taken) / limits.frames_per_s < until_s:
            if len(self._taken) == limits.max_frames:
                raise RequestTooLargeError(
                    f"the video is longer than the {limits.max_frames / limits.frames_per_s:g} s that are left to the "
                    "request; send a shorter one or raise server.max_video_frames",
                    param="file",
                )
            pixels = self._pixels(self._shown) if pixels is None else pixels
            self._taken.append(pixels)
            if sum(frame.size for frame in self._taken) > 3 * limits.max_pixels:
                raise _too_many_pixels(limits.max_pixels)

    def _pixels(self, frame: av.VideoFrame) -> Pixels:
        """[height, width, 3], of the first frame's size, made smaller if that is too large."""
        if self._size is None:
            shrink = min(1.0, (self._limits.max_frame_pixels / (frame.width * frame.height)) ** 0.5)
            self._size = max(1, int(frame.width * shrink)), max(1, int(frame.height * shrink))
        width, height = self._size
        scaled = frame.reformat(width=width, height=height, format="rgb24", interpolation="AREA")
        return _turned(frame, np.asarray(scaled.to_ndarray(), np.uint8))
