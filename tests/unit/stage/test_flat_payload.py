"""A flat payload is split by the declaration alone: no key is lost, and no name means anything."""

import numpy as np
import pytest

from antiphon.config.pipeline import ClientKind, EdgeSpec, EngineKind, Lane, OutputSpec, StageSpec
from antiphon.errors import UndeclaredOutputError
from antiphon.messages.client import AudioChunk, ImageOutput, RawRows, TextDelta, TokenDelta
from antiphon.stage.flat_payload import partition_flat_payload

SPEC = StageSpec(
    name="thinker",
    engine=EngineKind.GENERATION,
    model="nowhere:Nothing",
    outputs=(
        OutputSpec("audio", Lane.HANDOFF, "float32", (2,)),
        OutputSpec("token", Lane.BOTH, "int64", client=ClientKind.TOKENS),
        OutputSpec("text", Lane.CLIENT, "uint8", client=ClientKind.TEXT),
        OutputSpec("wave", Lane.CLIENT, "int16", client=ClientKind.AUDIO),
        OutputSpec("picture", Lane.CLIENT, "uint8", (None, None), client=ClientKind.IMAGE),
        OutputSpec("hidden", Lane.BOTH, "bfloat16", (2,), client=ClientKind.RAW),
        OutputSpec("orphan", Lane.HANDOFF, "float32"),
    ),
)
EDGES = (EdgeSpec("thinker", "talker", ("audio", "token")), EdgeSpec("thinker", "drawer", ("audio",)))
AUDIO, TOKEN = np.ones((3, 2), np.float32), np.array([7, 8, 9])


def test_a_key_goes_to_every_edge_that_names_it_and_a_key_of_both_lanes_to_both() -> None:
    output = partition_flat_payload({"audio": AUDIO, "token": TOKEN}, SPEC, EDGES)
    assert {consumer: set(arrays) for consumer, arrays in output.handoff.items()} == {
        "talker": {"audio", "token"},
        "drawer": {"audio"},
    }
    assert output.handoff["talker"]["audio"] is AUDIO and output.handoff["drawer"]["audio"] is AUDIO
    assert output.client == (TokenDelta([7, 8, 9]),)


def test_a_key_called_audio_that_is_declared_for_the_hand_off_never_reaches_the_client() -> None:
    output = partition_flat_payload({"audio": AUDIO}, SPEC, EDGES, sample_rate=24_000)
    assert output.client == ()
    assert set(output.handoff) == {"talker", "drawer"}


def test_client_keys_become_the_kinds_they_are_declared_as() -> None:
    picture = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    payload = {
        "text": np.frombuffer("naïve".encode(), np.uint8),
        "wave": np.array([1, -2], np.int16),
        "picture": picture,
    }
    output = partition_flat_payload(payload, SPEC, EDGES, sample_rate=24_000)
    assert output.handoff == {}
    assert output.client == (
        TextDelta("naïve"),
        AudioChunk(b"\x01\x00\xfe\xff", 24_000),
        ImageOutput(picture.tobytes(), 2, 4, 3),
    )


def test_rows_that_no_api_has_a_place_for_go_to_the_client_as_they_are() -> None:
    bits = np.array([[1, 2], [3, 4]], np.uint16)
    output = partition_flat_payload({"hidden": bits}, SPEC, EDGES)
    assert output.client == (RawRows("hidden", "uint16", (2, 2), bits.tobytes()),)


@pytest.mark.parametrize("key", ["mood", "orphan"])
def test_a_key_that_no_lane_takes_is_an_error_and_not_a_loss(key: str) -> None:
    with pytest.raises(UndeclaredOutputError, match=f"stage thinker: no lane takes the key '{key}'"):
        partition_flat_payload({"audio": AUDIO, key: np.zeros(3, np.float32)}, SPEC, EDGES)
