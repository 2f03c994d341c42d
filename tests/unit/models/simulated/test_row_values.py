"""Rows in closed form: every way in which a row can be wrong is found, at the row where it is."""

from collections.abc import Callable

import numpy as np
import pytest

from antiphon.models.simulated.row_values import (
    LAST,
    WORDS,
    Check,
    RowCodec,
    WrongRowError,
    request_number,
    text_of,
)

NUMBER = request_number("req-1")
SHAPES = (
    ("hidden", "bfloat16", (2048,)),
    ("codes", "int16", (16,)),
    ("audio", "int16", (37,)),
    ("one", "int64", (1,)),
    ("latent", "float32", (1280,)),
    ("semantic", "float32", (1, 500, 1024)),
    ("pixels", "uint8", (7, 3)),
)


@pytest.fixture(scope="module")
def codec() -> RowCodec:
    return RowCodec("hidden", "bfloat16", (2048,))


@pytest.mark.parametrize(("key", "dtype", "shape"), SHAPES)
@pytest.mark.parametrize("how", Check)
def test_rows_of_any_shape_pass_their_own_check_however_they_are_cut(
    key: str, dtype: str, shape: tuple[int, ...], how: Check
) -> None:
    codec = RowCodec(key, dtype, shape)
    rows = codec.rows_of(NUMBER, 0, 6, ends=True)
    assert rows.shape == (6, *shape) and rows.dtype == ("uint16" if dtype == "bfloat16" else dtype)
    rows.flags.writeable = False
    flags = [codec.check(NUMBER, start, rows[start:stop], how).tolist() for start, stop in ((0, 1), (1, 5), (5, 6))]
    assert flags == [[0], [0, 0, 0, 0], [LAST]]


@pytest.mark.parametrize("how", Check)
@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda rows: np.delete(rows, 2, axis=0), "row 13 of hidden came where row 12 was expected"),
        (lambda rows: np.insert(rows, 2, rows[1], axis=0), "row 11 of hidden came where row 12 was expected"),
        (lambda rows: rows[[0, 2, 1, 3]], "row 12 of hidden came where row 11 was expected"),
        (lambda rows: rows[1:], "row 11 of hidden came where row 10 was expected"),
        (lambda rows: rows[:, ::-1].copy(), "row 10 of hidden was expected is no row of this request"),
        (lambda rows: np.zeros_like(rows), "row 10 of hidden was expected is no row of this request"),
    ],
    ids=["lost", "doubled", "swapped", "first lost", "reversed", "never written"],
)
def test_every_check_finds_rows_that_are_not_where_they_should_be(
    codec: RowCodec, how: Check, harm: Callable[[np.ndarray], np.ndarray], problem: str
) -> None:
    with pytest.raises(WrongRowError, match=problem):
        codec.check(NUMBER, 10, harm(codec.rows_of(NUMBER, 10, 4)), how)


@pytest.mark.parametrize("how", Check)
@pytest.mark.parametrize(("key", "dtype", "shape"), SHAPES)
def test_a_single_row_is_judged_as_one_of_many(how: Check, key: str, dtype: str, shape: tuple[int, ...]) -> None:
    codec = RowCodec(key, dtype, shape)
    row = codec.rows_of(NUMBER, 7, 1, ends=True)
    assert codec.check_one(NUMBER, 7, row, how) == LAST
    for number, index in ((NUMBER, 8), (NUMBER, 6), (request_number("req-2"), 7)):
        with pytest.raises(WrongRowError, match=f"row {index} (of {key} )?was expected"):
            codec.check_one(number, index, row, how)
    damaged = row.copy()
    damaged.view(np.uint8).reshape(-1)[-1] ^= 128
    if how is Check.HEADER and codec.row_bytes > 8:
        assert codec.check_one(NUMBER, 7, damaged, how) == LAST
    else:
        with pytest.raises(WrongRowError, match=f"row 7 of {key}"):
            codec.check_one(NUMBER, 7, damaged, how)


@pytest.mark.parametrize("how", Check)
def test_every_check_finds_rows_of_another_request_or_key(codec: RowCodec, how: Check) -> None:
    others = codec.rows_of(request_number("req-2"), 10, 4)
    of_other_key = RowCodec("embed", "bfloat16", (2048,)).rows_of(NUMBER, 10, 4)
    for rows in (others, of_other_key):
        mixed = codec.rows_of(NUMBER, 10, 4)
        mixed[2] = rows[2]
        with pytest.raises(WrongRowError, match="row 12 of hidden was expected is no row of this request"):
            codec.check(NUMBER, 10, mixed, how)


@pytest.mark.parametrize("column", [0, 3, 4, 1000, 2047])
@pytest.mark.parametrize("how", [Check.SUM, Check.FULL])
def test_one_damaged_bit_anywhere_is_found(codec: RowCodec, column: int, how: Check) -> None:
    rows = codec.rows_of(NUMBER, 0, 4)
    rows[3, column] ^= 4
    with pytest.raises(WrongRowError, match="row 3 of hidden"):
        codec.check(NUMBER, 0, rows, how)


def test_a_damage_that_keeps_the_sum_is_found_by_the_full_check_alone(codec: RowCodec) -> None:
    rows = codec.rows_of(NUMBER, 0, 1)
    rows[0, 8:12], rows[0, 12:16] = rows[0, 12:16].copy(), rows[0, 8:12].copy()
    codec.check(NUMBER, 0, rows, Check.SUM)
    with pytest.raises(WrongRowError, match="row 0 of hidden is damaged"):
        codec.check(NUMBER, 0, rows, Check.FULL)


def test_rows_of_another_dtype_or_shape_are_refused(codec: RowCodec) -> None:
    for rows in (np.zeros((1, 2048), np.int16), np.zeros((1, 2047), np.uint16)):
        with pytest.raises(WrongRowError, match="expected uint16 rows"):
            codec.check(NUMBER, 0, rows, Check.HEADER)


def test_a_row_that_cannot_hold_its_own_number_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of code has 2 bytes; it needs 8"):
        RowCodec("code", "int16", (1,))


def test_a_batch_of_many_requests_is_made_as_each_alone(codec: RowCodec) -> None:
    numbers = [request_number(f"req-{index}") for index in range(5)]
    positions = np.array([7, 0, 3, 3, 900], np.uint64)
    made = codec.make(np.array(numbers, np.uint64), positions, np.zeros(5, np.uint64))
    for number, row, array in zip(numbers, positions.tolist(), made, strict=True):
        assert np.array_equal(array, codec.rows_of(number, row, 1)[0])


def test_the_words_differ_and_those_of_a_request_are_its_own() -> None:
    assert len(set(WORDS)) == len(WORDS) == 4096
    assert text_of("req-1", 12) == "".join(f"{word} " for word in text_of("req-1", 40).split()[:12])
    assert len(set(text_of("req-1", 900).split())) > 700, "a text of few words would hide what is lost"
    assert text_of("req-1", 900) != text_of("req-2", 900)
