"""What a benchmark and its load generator tell each other, one line of JSON each.

In: a Plan. Out: Progress, then a Result. Does not know: servers, sockets, what the figures are good for.
"""

from enum import StrEnum

import msgspec


class Task(StrEnum):
    """What is asked of the server; answers are streamed."""

    CHAT = "chat"
    CHAT_AUDIO = "chat-audio"
    SPEECH = "speech"

    @property
    def path(self) -> str:
        """Where such requests go."""
        return "/v1/audio/speech" if self is Task.SPEECH else "/v1/chat/completions"


class Ask(msgspec.Struct, frozen=True):
    """One request: its JSON body, and when it is due (seconds after the start).

    leaves_after_s: the client hangs up so long after it has connected, unless the answer is over; 0: it stays.
    bytes_per_s: it reads no faster, through a small buffer; 0: as fast as it comes.
    """

    number: int
    body: str
    due_s: float = 0.0
    leaves_after_s: float = 0.0
    bytes_per_s: float = 0.0


class Plan(msgspec.Struct, frozen=True):
    """Everything that a load generator needs. max_concurrency 0: no limit. deadline_s: for one whole answer.

    sums_audio: samples are decoded and taken into a checksum, for those who know the right one.
    """

    host: str
    port: int
    task: Task
    sample_rate: int
    warmups: tuple[Ask, ...]
    asks: tuple[Ask, ...]
    max_concurrency: int
    deadline_s: float
    sums_audio: bool = False


class Record(msgspec.Struct, frozen=True):
    """One request as its client saw it; every time in seconds after the start of the run.

    ready_s: when it could have been sent (it was due, and a place was free). text_s: when each text delta came.
    audio_s, audio_durations_s: when each piece of audio came, and how long it sounds. answer_id: the server's
    name of the request. text_crc32, pcm_crc32: CRC-32 of the text, and of the s16le samples if they are summed.
    num_bytes: of the answer, head and all. error: "" if all went well. has_left: the client hung up, as it was told.
    """

    number: int
    due_s: float
    ready_s: float
    sent_s: float
    end_s: float = 0.0
    text_s: list[float] = []
    audio_s: list[float] = []
    audio_durations_s: list[float] = []
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    answer_id: str = ""
    text_crc32: int = 0
    pcm_crc32: int = 0
    num_bytes: int = 0
    error: str = ""
    has_left: bool = False
    is_wrong: bool = False


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The warm-up is over; the run begins at the next line on stdin. errors: of the warm-up."""

    errors: tuple[str, ...] = ()


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How far a run is."""

    num_sent: int
    num_ended: int
    num_failed: int


class Result(msgspec.Struct, frozen=True, tag=True):
    """A run is over. loop_lags_s: how much too late a timer fired, every LAG_PERIOD_S. cpu_s: of the generator."""

    records: list[Record]
    loop_lags_s: list[float]
    wall_s: float
    cpu_s: float


Report = Ready | Progress | Result
ENCODE = msgspec.json.Encoder().encode
DECODE_PLAN: msgspec.json.Decoder[Plan] = msgspec.json.Decoder(Plan)
DECODE_REPORT: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)
