"""A flat dict of outputs, as ported models return it, split by the stage's declaration alone.

In: key -> array of one request. Out: StageOutput whose lanes follow StageSpec.outputs and the edges' keys.
Does not know: any key's name.
"""

import numpy as np

from antiphon.config.pipeline import ClientKind, EdgeSpec, Lane, OutputSpec, StageSpec
from antiphon.errors import UndeclaredOutputError
from antiphon.messages.client import AudioChunk, ClientData, ImageOutput, RawRows, TextDelta, TokenDelta
from antiphon.stage.request import StageOutput


def partition_flat_payload(
    payload: dict[str, np.ndarray], spec: StageSpec, edges: tuple[EdgeSpec, ...], *, sample_rate: int = 0
) -> StageOutput:
    """Split `payload`; every key goes to each edge that names it and, if declared so, to the client as well.

    edges: those that leave the stage. sample_rate in Hz for keys that become AudioChunk (int16 [samples]).
    UndeclaredOutputError if a key is not declared, or declared for a lane that takes nothing.
    """
    client: list[ClientData] = []
    for key, array in payload.items():
        output = spec.output(key)
        taken = any(key in edge.keys for edge in edges)
        if output is None or (output.lane is Lane.HANDOFF and not taken):
            raise UndeclaredOutputError(
                f"stage {spec.name}: no lane takes the key {key!r}; declare it in StageSpec.outputs and on an edge"
            )
        if output.client is not None:
            client.append(_to_client(output, output.client, array, sample_rate))
    handoff = {edge.consumer: {key: payload[key] for key in edge.keys if key in payload} for edge in edges}
    return StageOutput(handoff={c: arrays for c, arrays in handoff.items() if arrays}, client=tuple(client))


def _to_client(output: OutputSpec, kind: ClientKind, array: np.ndarray, sample_rate: int) -> ClientData:
    match kind:
        case ClientKind.TEXT:
            return TextDelta(array.tobytes().decode("utf-8"))
        case ClientKind.TOKENS:
            return TokenDelta(array.tolist())
        case ClientKind.AUDIO:
            return AudioChunk(array.astype("<i2").tobytes(), sample_rate)
        case ClientKind.IMAGE:
            height, width, channels = array.shape
            return ImageOutput(array.astype(np.uint8).tobytes(), height, width, channels)
        case ClientKind.RAW:
            return RawRows(output.key, array.dtype.name, array.shape, array.tobytes())
