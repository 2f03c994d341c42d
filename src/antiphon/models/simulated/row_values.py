"""What simulated stages hand off and say, in closed form: every row tells whose it is, and which one.

In: a request's id and row numbers. Out: rows of any dtype and shape, and a check of rows that have arrived.
Does not know: stages, edges, time. Stages make rows with this module; their consumers, and clients, check with it.

A row is 8 bytes that are a function of request, key and row number, 2 bits of them flags, then bytes from a table that
those 8 choose. So a row that was lost, doubled, swapped, or came from another request or key shows in its first bytes,
and a damaged one in its sum.
"""

import hashlib
from enum import StrEnum

import numpy as np

LAST = 1
"""Flag: no row of the request follows on this edge."""
PROMPT = 2
"""Flag: the row of a position of the prompt."""
_FLAGS = 3
_HEADER_BYTES = 8
_STRIDE = 0x9E3779B97F4A7C15  # odd, so that a request's rows all differ (Weyl sequence)
_MODULUS = 2**64 - 1
_MAX_TABLE_ROWS = 32
_MAX_TABLE_BYTES = 512 * 1024
_NEAR_ROWS = 4096
_CONSONANTS, _VOWELS = "bdfgklmnprstvwyz", "aeio"
_SYLLABLES = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
WORDS = tuple(f"{first}{second} " for first in _SYLLABLES for second in _SYLLABLES)
"""The vocabulary: 4,096 words, each with the blank that follows it."""


class Check(StrEnum):
    """How much of a row is compared: its first 8 bytes, its sum as well, or every byte."""

    HEADER = "header"
    SUM = "sum"
    FULL = "full"


class WrongRowError(Exception):
    """A row is not the one that should stand there; the message says what it is."""


def request_number(request_id: str) -> int:
    """The 64-bit number that a request's values are made of."""
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest(), "little")


def word_of(request: int, index: int) -> int:
    """The index in WORDS of a request's word number `index`."""
    return ((request + (index + 1) * _STRIDE & _MODULUS) >> 40) % len(WORDS)


def text_of(request_id: str, num_words: int) -> str:
    """What a request's writer says."""
    request = request_number(request_id)
    return "".join(WORDS[word_of(request, index)] for index in range(num_words))


class RowCodec:
    """Makes and checks the rows of one key; owns the table that they are filled from.

    dtype: a numpy dtype name, bfloat16 is held as uint16. A row has at least 8 bytes.
    """

    def __init__(self, key: str, dtype: str, row_shape: tuple[int, ...]) -> None:
        self.key = key
        self.dtype = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        self.row_shape = row_shape
        self.row_bytes = int(np.prod(row_shape, dtype=np.int64)) * self.dtype.itemsize
        if self.row_bytes < _HEADER_BYTES:
            raise ValueError(f"a row of {key} has {self.row_bytes} bytes; it needs {_HEADER_BYTES}")
        digest = hashlib.blake2b(f"{key} {self.row_bytes}".encode(), digest_size=8).digest()
        self._salt = int.from_bytes(digest, "little")
        num_rows = _MAX_TABLE_ROWS
        while num_rows > 1 and num_rows * self.row_bytes > _MAX_TABLE_BYTES:
            num_rows //= 2
        random = np.random.default_rng(self._salt)
        self._table = random.integers(0, 256, (num_rows, self.row_bytes), np.uint8)
        self._element = next(size for size in (8, 4, 2, 1) if self.row_bytes % size == 0)
        self._sums = self._sums_of(self._table)
        self._sums_as_ints: list[int] = self._sums.tolist()

    def make(self, requests: np.ndarray, rows: np.ndarray, flags: np.ndarray) -> np.ndarray:
        """requests, rows, flags: uint64 [n]. Gives [n, *row_shape], in memory of its own."""
        words = self._words(requests, rows) | flags
        made = self._table[self._index(words)]
        made[:, :_HEADER_BYTES] = words.view(np.uint8).reshape(-1, _HEADER_BYTES)
        shaped: np.ndarray = made.view(self.dtype).reshape(-1, *self.row_shape)
        return shaped

    def rows_of(self, request: int, first_row: int, count: int, *, ends: bool = False) -> np.ndarray:
        """`count` rows of one request, without a prompt's; `ends`: the last one is flagged LAST."""
        flags = np.zeros(count, np.uint64)
        if ends and count:
            flags[-1] = LAST
        rows = np.arange(first_row, first_row + count, dtype=np.uint64)
        return self.make(np.full(count, request, np.uint64), rows, flags)

    def check(self, request: int, first_row: int, array: np.ndarray, how: Check) -> np.ndarray:
        """array: [n, *row_shape]. Gives the rows' flags, uint64 [n]. WrongRowError if one is not what it should be."""
        if array.dtype != self.dtype or array.shape[1:] != self.row_shape:
            raise WrongRowError(
                f"{self.key} is {array.dtype.name} {list(array.shape)}, expected {self.dtype.name} rows"
            )
        raw = array.reshape(len(array), -1).view(np.uint8)
        found = np.ascontiguousarray(raw[:, :_HEADER_BYTES]).view(np.uint64)[:, 0]
        rows = np.arange(first_row, first_row + len(array), dtype=np.uint64)
        expected = self._words(np.uint64(request), rows)
        wrong = (found ^ expected) > _FLAGS
        if wrong.any():
            index = int(wrong.argmax())
            raise WrongRowError(self._describe(request, first_row + index, int(found[index])))
        self._check_body(raw, expected, first_row, how)
        return found & np.uint64(_FLAGS)

    def check_one(self, request: int, row: int, array: np.ndarray, how: Check) -> int:
        """As `check`, for a single row [1, *row_shape], in a fraction of the time."""
        is_known = self._element == 8 and array.nbytes == self.row_bytes and array.dtype == self.dtype
        if is_known and how is not Check.FULL:
            elements = array.reshape(-1).view(np.uint64)
            found = int(elements[0])
            word = (request ^ self._salt) + (row + 1) * _STRIDE & _MODULUS
            if (found ^ word) & ~_FLAGS == 0 and (how is Check.HEADER or self._has_sum(elements, found, word)):
                return found & _FLAGS
        return int(self.check(request, row, array, how)[0])  # says what is wrong

    def _has_sum(self, elements: np.ndarray, found: int, word: int) -> bool:
        body = int(np.add.reduce(elements)) - found & _MODULUS
        return body == self._sums_as_ints[word >> 40 & len(self._sums_as_ints) - 1]

    def _check_body(self, raw: np.ndarray, words: np.ndarray, first_row: int, how: Check) -> None:
        if how is Check.HEADER:
            return
        index = self._index(words)
        if how is Check.SUM:
            wrong = self._sums_of(raw) != self._sums[index]
        else:
            wrong = (raw[:, _HEADER_BYTES:] != self._table[index, _HEADER_BYTES:]).any(axis=1)
        if wrong.any():
            raise WrongRowError(f"row {first_row + int(wrong.argmax())} of {self.key} is damaged")

    def _words(self, requests: "np.ndarray | np.uint64", rows: np.ndarray) -> np.ndarray:
        words = (requests ^ np.uint64(self._salt)) + (rows + np.uint64(1)) * np.uint64(_STRIDE)
        return np.asarray(words & np.uint64(~_FLAGS & _MODULUS))

    def _index(self, words: np.ndarray) -> np.ndarray:
        return (words >> np.uint64(40)) & np.uint64(len(self._table) - 1)

    def _sums_of(self, raw: np.ndarray) -> np.ndarray:
        """[n]: the sum of a row's elements behind its first 8 bytes, modulo 2**64."""
        elements = raw.view(f"u{self._element}")[:, _HEADER_BYTES // self._element :]
        return np.asarray(elements.sum(axis=1, dtype=np.uint64))

    def _describe(self, request: int, row: int, found: int) -> str:
        near = np.arange(max(0, row - _NEAR_ROWS), row + _NEAR_ROWS, dtype=np.uint64)
        same = (self._words(np.uint64(request), near) ^ np.uint64(found)) <= _FLAGS
        if same.any():
            return f"row {int(near[same.argmax()])} of {self.key} came where row {row} was expected"
        return f"what came where row {row} of {self.key} was expected is no row of this request"
