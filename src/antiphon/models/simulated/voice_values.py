"""What sim-voice makes of a text, in closed form: a lost, doubled or swapped row changes the answer.

In: a text's bytes and the number of the first. Out: codes, frames, samples. Stages compute with these functions, and
who asks checks with them. Does not know: stages, requests.
"""

import numpy as np

from antiphon.models.simulated.voice_pipeline import CODE_WIDTH, COMMANDS, FRAME_WIDTH

SAMPLES_PER_ROW = 64
FAULT_ROW = 5
FAULT_COLUMN = 2


def fault_of(command: str) -> int:
    """0 for none, else the command's number in COMMANDS from 1 on."""
    return COMMANDS.index(command) + 1 if command else 0


def codes(text: np.ndarray, first_row: int, fault: int = 0) -> np.ndarray:
    """[num_bytes] uint8 -> [num_bytes, CODE_WIDTH] int32: byte, position, fault, then a mixture of the first two."""
    positions = np.arange(first_row, first_row + len(text), dtype=np.int32)
    rows = np.empty((len(text), CODE_WIDTH), np.int32)
    rows[:] = (31 * positions + 7 * text.astype(np.int32))[:, None]
    rows[:, 0], rows[:, 1], rows[:, FAULT_COLUMN] = text, positions, _faults(positions, fault)
    return rows


def frames(codes: np.ndarray) -> np.ndarray:
    """[num_rows, CODE_WIDTH] int32 -> [num_rows, FRAME_WIDTH] float32; every value is a whole number."""
    rows = np.empty((len(codes), FRAME_WIDTH), np.float32)
    rows[:] = codes[:, 3:4] + np.arange(FRAME_WIDTH)
    rows[:, :3] = codes[:, :3]
    return rows


def samples(text: np.ndarray, first_row: int = 0) -> np.ndarray:
    """[num_bytes] uint8 -> [num_bytes * SAMPLES_PER_ROW] int16."""
    positions = np.arange(first_row, first_row + len(text), dtype=np.int64)
    starts = 127 * text.astype(np.int64) + 31 * positions
    return ((starts[:, None] + np.arange(SAMPLES_PER_ROW)) % 2**15).astype(np.int16).ravel()


def spoken(text: str) -> bytes:
    """The whole PCM of a text, s16le."""
    return samples(np.frombuffer(text.encode(), np.uint8)).astype("<i2").tobytes()


def _faults(positions: np.ndarray, fault: int) -> np.ndarray:
    """The fault's number where it shall happen: at the first row for an exit, at FAULT_ROW for an exception."""
    is_exit = fault > 0 and COMMANDS[fault - 1].startswith("exit")
    return np.where(positions == (0 if is_exit else FAULT_ROW), fault, 0)
