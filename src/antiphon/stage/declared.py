"""A declared output as the router checks it on every step: what can be worked out once is.

In: an OutputSpec, arrays. Out: UndeclaredOutputError for what is not as declared. Does not know: lanes, requests.
"""

import numpy as np

from antiphon.config.pipeline import FLOATING, Layout, OutputSpec
from antiphon.connector.layout import Arrays
from antiphon.errors import UndeclaredOutputError

_HELD_AS = {"bfloat16": ("uint16",), FLOATING: ("float32", "float16", "uint16")}
"""bfloat16 is held as uint16."""


RowForm = dict[str, tuple[np.dtype, tuple[int, ...]]]
"""PER_ROW key -> dtype and row shape."""


def has_form(arrays: Arrays, form: RowForm) -> bool:
    """True if these are arrays of that form and nothing else, with as many rows of every key."""
    if not isinstance(arrays, dict) or len(arrays) != len(form):
        return False
    num_rows: int | None = None
    for key, (dtype, row_shape) in form.items():
        array = arrays.get(key)
        if not isinstance(array, np.ndarray) or array.dtype != dtype:
            return False
        shape = array.shape
        if not shape or shape[1:] != row_shape:
            return False
        if num_rows is None:
            num_rows = shape[0]
        elif num_rows != shape[0]:
            return False
    return True


def in_words(form: RowForm) -> str:
    """For an error's text."""
    return ", ".join(f"{key} {dtype.name} {list(shape)}" for key, (dtype, shape) in form.items())


class DeclaredOutput:
    """Owns one OutputSpec and what it means in numpy's terms."""

    def __init__(self, spec: OutputSpec) -> None:
        self.is_whole = spec.layout is Layout.WHOLE
        self._spec = spec
        self._dtypes = tuple(np.dtype(name) for name in _HELD_AS.get(spec.dtype, (spec.dtype,)))

    def check(self, request_id: str, stage: str, array: np.ndarray) -> None:
        """UndeclaredOutputError if `array` has not the declared dtype or row shape."""
        row_shape, shape = self._spec.row_shape, array.shape[1:]
        fits = shape == row_shape or (
            len(shape) == len(row_shape)
            and all(want in (None, have) for want, have in zip(row_shape, shape, strict=True))
        )
        if array.dtype not in self._dtypes or array.ndim == 0 or not fits:
            dtypes = " or ".join(dtype.name for dtype in self._dtypes)
            raise UndeclaredOutputError(
                f"stage {stage}: {request_id}: output {self._spec.key!r} is {array.dtype.name} {list(array.shape)}, "
                f"expected {dtypes} [n, {', '.join(str(size or 'any') for size in row_shape)}]"
            )
