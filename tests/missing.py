"""What a test needs and this machine does not have."""

import os
from typing import NoReturn

import pytest

SKIP_NOTHING = "ANTIPHON_TESTS_SKIP_NOTHING"
"""CI sets it."""


def missing(what: str) -> NoReturn:
    """Skip the test and say why; in CI, which installs everything, fail it."""
    if os.environ.get(SKIP_NOTHING):
        pytest.fail(what)
    pytest.skip(what)
