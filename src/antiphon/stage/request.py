"""A request as one stage sees it: its parameters, its input rows, and what it may still produce.

In: chunks that the Inbox has ordered. Out: rows for the model; StageOutput from it.
Does not know: sockets, peers' addresses, other stages' state.
"""

from collections import deque
from dataclasses import dataclass, field

import msgspec
import numpy as np

from antiphon.connector.base import Chunk
from antiphon.messages.client import ClientData, Usage
from antiphon.messages.params import RequestParams
from antiphon.stage.timeline import Timeline

Arrays = dict[str, np.ndarray]
_MAX_JOINED_BYTES = 64 * 1024


class StageOutput(msgspec.Struct, frozen=True):
    """What a model made for one request in one step; each lane is declared where the output is made.

    handoff: consumer stage -> key -> array (PER_ROW keys of one consumer have equal length along axis 0). The arrays
    are the runtime's from here on: they are copied when they leave, so never write into one again.
    client: what the client gets now, if this stage is final for the request. finished: nothing more will come;
    then finish_reason and usage say how it ended.
    first_rows: consumer -> the number of its first row here, where an engine makes rows again (a preempted request);
    rows that were handed off before are dropped. Left out, rows follow the last ones.
    """

    handoff: dict[str, Arrays] = {}
    client: tuple[ClientData, ...] = ()
    finished: bool = False
    finish_reason: str = "stop"
    usage: Usage = Usage()
    first_rows: dict[str, int] = {}


NOTHING = StageOutput()


class EdgeInput:
    """Owns the rows of one in-edge that have arrived and are not consumed yet: `num_rows` of them.

    Arrays that `take` gives are read-only views, valid until the end of the step; copy what must live longer.
    Chunks whose rows are all consumed go to `spent`: when the step is over, their memory may go back.
    """

    def __init__(self, spent: list[Chunk] | None = None) -> None:
        self.ended = False
        self.whole: Arrays = {}
        self.num_rows = 0
        self.num_rows_taken = 0
        self._chunks: deque[Chunk] = deque()
        self._rows_left_in_first = 0
        self._spent: list[Chunk] = [] if spent is None else spent

    def add(self, chunk: Chunk) -> None:
        """Append the chunk that follows the last one."""
        num_rows = chunk.header.rows
        for key in chunk.header.form.whole_keys:
            self.whole[key] = chunk.arrays[key].copy()
        if num_rows:
            if not self._chunks:
                self._rows_left_in_first = num_rows
            self._chunks.append(chunk)
            self.num_rows += num_rows
        else:
            self._spent.append(chunk)

    @property
    def exhausted(self) -> bool:
        """The producer has finished and every row has been taken."""
        return self.ended and not self._chunks

    def take(self, max_rows: int | None = None) -> Arrays:
        """Up to `max_rows` rows (all if None) of every PER_ROW key, as key -> [rows, ...]; {} if there are none.

        Rows of several chunks are copied into one array. With `max_rows` that is no more than 64 KiB: it gives fewer
        rows rather than copy large ones.
        """
        pieces: list[Arrays] = []
        wanted = self.num_rows if max_rows is None else min(max_rows, self.num_rows)
        num_bytes = 0
        while wanted:
            chunk = self._chunks[0]
            start = chunk.header.rows - self._rows_left_in_first
            count = min(wanted, self._rows_left_in_first)
            piece = _rows_of(chunk, start, count)
            if pieces and max_rows is not None:
                num_bytes = (num_bytes or _num_bytes(pieces[0])) + _num_bytes(piece)
                if num_bytes > _MAX_JOINED_BYTES:
                    break
            pieces.append(piece)
            wanted -= count
            self._consume(chunk, count)
        if not pieces:
            return {}
        if len(pieces) == 1:
            return pieces[0]
        return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}

    def own_unread(self) -> list[Chunk]:
        """If nothing has been taken yet, copy what lies here; gives the chunks whose memory may go back."""
        if self.num_rows_taken:
            return []
        leased = [chunk for chunk in self._chunks if chunk.lease]
        self._chunks = deque(chunk.owned() if chunk.lease else chunk for chunk in self._chunks)
        return leased

    def drop(self) -> list[Chunk]:
        """Every chunk that is not consumed: the request is over."""
        held = list(self._chunks)
        self._chunks, self.num_rows = deque(), 0
        return held

    def _consume(self, chunk: Chunk, count: int) -> None:
        self.num_rows -= count
        self.num_rows_taken += count
        self._rows_left_in_first -= count
        if self._rows_left_in_first == 0:
            self._spent.append(self._chunks.popleft())
            self._rows_left_in_first = self._chunks[0].header.rows if self._chunks else 0


def _num_bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())


def _rows_of(chunk: Chunk, start: int, count: int) -> Arrays:
    """Rows [start, start + count) of a chunk's PER_ROW arrays."""
    whole_keys = chunk.header.form.whole_keys
    if count == chunk.header.rows and not whole_keys:
        return chunk.arrays
    return {key: array[start : start + count] for key, array in chunk.arrays.items() if key not in whole_keys}


@dataclass
class StageRequest:
    """One request in one stage. Owned by the stage's loop; the engine keeps it while the request runs.

    `inputs`: producer stage -> EdgeInput ("client" is the entry edge). `consumers`: bound stages that
    handed-off rows go to. `is_final`: the client lane is bound, so client outputs are wanted.
    `is_blocked`: an edge has no credit; do not schedule until it has. `timeline`: when it passed through.
    """

    request_id: str
    epoch: int
    task: str
    params: RequestParams
    inputs: dict[str, EdgeInput]
    consumers: frozenset[str]
    is_final: bool
    is_blocked: bool = False
    timeline: Timeline = field(default_factory=Timeline)

    @property
    def input(self) -> EdgeInput:
        """The only in-edge; for stages that have one."""
        (only,) = self.inputs.values()
        return only
