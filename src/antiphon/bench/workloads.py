"""What the voice benchmark says and asks.

In: nothing. Out: texts with their first clause, longer texts, prompts that never repeat.
Does not know: how they are used.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Spoken:
    """A text and the clause of it that the talker speaks first."""

    text: str
    first_clause: str


SPOKEN = (
    Spoken("Good morning.", "Good morning."),
    Spoken(
        "The train to the coast leaves in ten minutes. Platform four.", "The train to the coast leaves in ten minutes."
    ),
    Spoken(
        "If you walk along the river, you will find the old mill. It is open on Sundays.",
        "If you walk along the river,",
    ),
    Spoken(
        "She packed two apples and a small loaf of bread for the long way home. Nobody was hungry.",
        "She packed two apples and a small loaf of bread for the long way home.",
    ),
)

_OPENINGS = ("The baker", "A tall sailor", "My neighbour", "The young doctor")
_DEEDS = (
    "opened the window and listened to the rain",
    "counted the coins on the wooden table",
    "wrote a short letter to a friend in the city",
    "carried three heavy boxes up the stairs",
)
_ENDINGS = (
    "Later that day the wind turned, and the boats came back to the harbour. Everybody was glad to see them.",
    "In the evening there was warm soup with fresh bread. Nobody spoke about the weather any more.",
    "The next morning was bright and cold. A thin layer of ice covered the pond behind the house.",
    "After dinner they sat by the fire and told old stories. The dog slept until midnight.",
)


def long_texts(count: int) -> tuple[str, ...]:
    """`count` different texts of four sentences, about 15 s of speech each."""
    texts = []
    for index in range(count):
        opening, deed = _OPENINGS[index % 4], _DEEDS[index // 4 % 4]
        ending, other = _ENDINGS[index % 4], _DEEDS[(index // 4 + 1) % 4]
        texts.append(f"{opening} {deed}. Then number {index + 1} {other}. {ending}")
    return tuple(texts)


class Prompts:
    """Owns a counter, so that no two prompts share more than the chat template's beginning."""

    def __init__(self) -> None:
        self._num_given = 0

    def take(self, count: int) -> tuple[str, ...]:
        """`count` prompts of about 40 tokens that nobody has seen."""
        first = self._num_given + 1
        self._num_given += count
        return tuple(
            f"{number} travellers ask: what should we see in a small town by the sea on a rainy day, "
            f"when we have {number % 7 + 2} hours and like history, food and quiet places?"
            for number in range(first, first + count)
        )
