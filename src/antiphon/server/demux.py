"""The packets of one stream of an uploaded file, as far as the file can be read.

In: an opened container and a stream of it. Out: packets. Does not know: what is decoded from them, HTTP.
"""

from collections.abc import Iterator
from typing import TypeVar

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream

MediaStream = TypeVar("MediaStream", AudioStream, VideoStream)


def readable_packets(container: InputContainer, stream: MediaStream) -> "Iterator[Packet[MediaStream]]":
    """Yields nothing of a stream whose codec is not known; a damaged container ends the stream there."""
    if stream.codec_context is None:
        return
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
        except (av.FFmpegError, IndexError):  # IndexError: what PyAV makes of a stream that begins in mid-file
            return
        if packet is None:
            return
        yield packet
