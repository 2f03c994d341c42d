"""Rows that a stage hands off step by step are all of one form."""

import numpy as np
import pytest

from antiphon.connector.layout import Arrays
from antiphon.stage.declared import RowForm, has_form, in_words

FORM: RowForm = {"hidden": (np.dtype("float32"), (4,)), "token": (np.dtype("int64"), ())}


def arrays_of(**changed: object) -> Arrays:
    rows = {"hidden": np.zeros((2, 4), np.float32), "token": np.zeros(2, np.int64)}
    return {**rows, **changed}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        (arrays_of(), True),
        (arrays_of(hidden=np.zeros((2, 4), np.float16)), False),
        (arrays_of(hidden=np.zeros((2, 5), np.float32)), False),
        (arrays_of(hidden=np.zeros((3, 4), np.float32)), False),
        (arrays_of(token=np.int64(1)), False),
        (arrays_of(token=np.array(1)), False),
        (arrays_of(token=[1, 2]), False),
        (arrays_of(more=np.zeros(2)), False),
        ({"token": np.zeros(2, np.int64)}, False),
    ],
)
def test_only_arrays_of_the_same_keys_dtypes_and_row_shapes_with_equally_many_rows_have_a_form(
    arrays: Arrays, expected: bool
) -> None:
    assert has_form(arrays, FORM) is expected


def test_a_form_is_said_key_by_key() -> None:
    assert in_words(FORM) == "hidden float32 [4], token int64 []"
