"""What has come from the stage before: every row is checked, in order, from the first to the last.

In: rows as they arrive. Out: how many there are, of the prompt and of the answer; StageError for the first wrong one.
Does not know: what the rows are for.
"""

from dataclasses import dataclass

import numpy as np

from antiphon.errors import StageError
from antiphon.models.simulated.profile import HandOff, array_of
from antiphon.models.simulated.row_values import LAST, PROMPT, Check, RowCodec, WrongRowError
from antiphon.stage.request import Arrays, StageRequest

_Flags = tuple[int, int, bool]


@dataclass
class Arrived:
    """Rows of one request so far. has_last: the row that its producer has flagged as the last one is among them."""

    num_rows: int = 0
    num_prompt: int = 0
    has_last: bool = False


def codecs_of(arrays: dict[str, str]) -> dict[str, RowCodec]:
    """The codecs of a hand-off's rows, by key."""
    return {key: RowCodec(key, *array_of(text)) for key, text in arrays.items()}


class Inspector:
    """Checks the input of one stage, all of which comes from `producer`; owns the codecs."""

    def __init__(self, stage: str, producer: str, hand_off: HandOff, how: Check) -> None:
        self._stage = stage
        self._producer = producer
        self._may_be_empty = hand_off.may_be_empty
        self._how = how
        self._rows = codecs_of(hand_off.per_row)
        self._once = codecs_of(hand_off.once)

    def take(self, request: StageRequest, number: int, arrived: Arrived, rows: Arrays, *, ended: bool) -> int:
        """Check new rows (key -> [n, ...], {} if none came) and count them. Gives n."""
        count = len(next(iter(rows.values()))) if rows else 0
        try:
            if count:
                self._check_rows(request, number, arrived, rows, count)
            if ended and not arrived.has_last and (arrived.num_rows or not self._may_be_empty):
                raise WrongRowError(f"the input ended after row {arrived.num_rows - 1}, which is not the last one")
        except WrongRowError as error:
            raise StageError(
                f"{self._producer}->{self._stage}: {request.request_id}: {error}; "
                "the runtime has lost, doubled, mixed up or damaged rows"
            ) from error
        return count

    def _check_rows(self, request: StageRequest, number: int, arrived: Arrived, rows: Arrays, count: int) -> None:
        if arrived.has_last:
            raise WrongRowError(f"row {arrived.num_rows} came after the last one")
        if rows.keys() != self._rows.keys():
            raise WrongRowError(f"rows of {sorted(rows)} came, expected {sorted(self._rows)}")
        flags = [self._flags(codec, number, arrived.num_rows, rows[key], count) for key, codec in self._rows.items()]
        if any(of_key != flags[0] for of_key in flags):
            raise WrongRowError(f"the keys' rows from {arrived.num_rows} on are flagged differently")
        if not arrived.num_rows:
            self._check_once(request, number)
        num_prompt, num_last, is_last = flags[0]
        if num_last > is_last:
            raise WrongRowError(f"among the {count} rows from {arrived.num_rows} on, some follow the last one")
        arrived.has_last = is_last
        arrived.num_prompt += num_prompt
        arrived.num_rows += count

    def _flags(self, codec: RowCodec, number: int, first_row: int, rows: np.ndarray, count: int) -> _Flags:
        """Check the rows of one key. Gives how many are of the prompt, and flagged as last, and if the last one is."""
        if count == 1:
            flag = codec.check_one(number, first_row, rows, self._how)
            return flag >> 1, flag & LAST, bool(flag & LAST)
        flags = codec.check(number, first_row, rows, self._how)
        if not flags.any():
            return 0, 0, False
        is_last = (flags & np.uint64(LAST)) > 0
        return int(((flags & np.uint64(PROMPT)) > 0).sum()), int(is_last.sum()), bool(is_last[-1])

    def _check_once(self, request: StageRequest, number: int) -> None:
        whole = request.inputs[self._producer].whole
        if whole.keys() != self._once.keys():
            raise WrongRowError(f"beside the rows came {sorted(whole)}, expected {sorted(self._once)}")
        for key, codec in self._once.items():
            codec.check(number, 0, whole[key][None], self._how)
