"""Small files as clients send them: sounds, pictures and videos whose contents are known.

In: arrays. Out: the bytes of a wav, png, jpeg, webp, mov or mp4 file. Does not know: how they are read.
"""

import io
import struct
import zlib
from fractions import Fraction

import av
import numpy as np


def wav(num_samples: int, rate: int = 16_000) -> bytes:
    """A constant level of a quarter, s16 mono."""
    file = io.BytesIO()
    with av.open(file, "w", format="wav") as container:
        stream = container.add_stream("pcm_s16le", rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.full((1, num_samples), 8_192, np.int16), format="s16", layout="mono")
        frame.sample_rate = rate
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def picture(pixels: np.ndarray, codec: str = "png", pixel_format: str = "rgb24") -> bytes:
    """One picture of uint8 [height, width, 3], or 4 with alpha."""
    encoder = av.CodecContext.create(codec, "w")
    encoder.height, encoder.width = pixels.shape[:2]
    encoder.pix_fmt, encoder.time_base = pixel_format, Fraction(1)
    frame = av.VideoFrame.from_ndarray(pixels, "rgba" if pixels.shape[2] == 4 else "rgb24")
    packets = [*encoder.encode(frame.reformat(format=pixel_format)), *encoder.encode(None)]
    return b"".join(bytes(packet) for packet in packets)


def png_header(width: int, height: int) -> bytes:
    """The head of a png of that size, and as much of its data as fits into a few bytes."""
    blank = zlib.compress(bytes(1_000_000))
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", size), (b"IDAT", blank), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def turned(jpeg: bytes, orientation: int) -> bytes:
    """`jpeg` with an Exif mark that says how it is to be turned."""
    mark = b"MM\0*\0\0\0\x08" + b"\0\x01" + b"\x01\x12\0\x03\0\0\0\x01" + bytes((0, orientation, 0, 0)) + bytes(4)
    body = b"Exif\0\0" + mark
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def video(
    frames: np.ndarray,
    frames_per_s: float,
    *,
    codec: str = "png",
    container: str = "mov",
    sound: np.ndarray | None = None,
) -> bytes:
    """frames: uint8 [n, h, w, 3]; sound: int16 mono 16 kHz [samples]. With png, what is decoded is what was given."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=Fraction(frames_per_s).limit_denominator(1000))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "rgb24" if codec == "png" else "yuv420p"
        spoken = None if sound is None else out.add_stream("pcm_s16le", rate=16_000, layout="mono")
        for pixels in frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        out.mux(stream.encode(None))
        if spoken is not None and sound is not None:
            samples = av.AudioFrame.from_ndarray(sound[None], "s16", "mono")
            samples.sample_rate = 16_000
            out.mux(spoken.encode(samples))
            out.mux(spoken.encode(None))
    return file.getvalue()
