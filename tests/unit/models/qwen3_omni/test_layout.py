"""Which thinker positions the talker's prompt is made of."""

from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.errors import InvalidRequestError
from antiphon.models.qwen3_omni.checkpoint import Checkpoint
from antiphon.models.qwen3_omni.layout import Media, TalkerLayout
from tests.conformance.tiny_qwen3_omni import (
    ASSISTANT,
    IM_END,
    IM_START,
    IMAGE,
    NEWLINE,
    SYSTEM,
    USER,
    VISION_END,
    VISION_START,
)

HEAD = [IM_START, ASSISTANT, NEWLINE]


@pytest.fixture(scope="module")
def layout(checkpoint_path: Path) -> TalkerLayout:
    return TalkerLayout(Checkpoint(str(checkpoint_path)).config)


def turn(role: int, *ids: int) -> list[int]:
    return [IM_START, role, NEWLINE, *ids, IM_END, NEWLINE]


def test_user_turns_are_heard_and_other_turns_are_not(layout: TalkerLayout) -> None:
    ids = [*turn(SYSTEM, 1), *turn(USER, 2), *turn(ASSISTANT, 3), *turn(USER, 4, 5), *HEAD]
    rows = layout.of_prompt(np.array(ids), Media())
    user = [*range(6, 12), *range(18, 25)]
    assert rows[:-9, 0].tolist() == user
    assert not rows[:, 1].any()
    assert all((rows[:, axis] == np.arange(len(user) + 9)).all() for axis in (2, 3, 4))


def test_the_head_takes_the_last_assistant_header_and_the_first_word_behind_it(layout: TalkerLayout) -> None:
    ids = [*turn(ASSISTANT, 3), *turn(USER, 2), *HEAD]
    assert layout.of_prompt(np.array(ids), Media())[-9:, 0].tolist() == [12, 13, 14, -1, -1, -1, -1, -1, 15]


def test_a_picture_stands_in_a_grid_and_gives_its_hidden_states(layout: TalkerLayout) -> None:
    picture = [VISION_START, *[IMAGE] * 6, VISION_END]
    ids = [*turn(SYSTEM, 1), *turn(USER, *picture, 4), *HEAD]
    rows = layout.of_prompt(np.array(ids), Media(image_grid_thw=torch.tensor([[1, 4, 6]])))
    assert rows[:-9, 1].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert rows[4:10, 2:].tolist() == [[4, 4 + h, 4 + w] for h in (0, 1) for w in (0, 1, 2)]
    assert rows[10:, 2].tolist() == list(range(7, 7 + len(rows) - 10))


def test_a_prompt_that_opens_no_answer_is_refused(layout: TalkerLayout) -> None:
    with pytest.raises(InvalidRequestError, match="assistant"):
        layout.of_prompt(np.array(turn(USER, 2)), Media())
