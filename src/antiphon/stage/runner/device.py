"""The few things that differ between cpu, cuda, npu and xpu.

In: a device name from the deploy file. Out: placement, host copies, memory. Does not know: models.
Only cpu has been run; the others use torch's public accelerator API alone.
"""

import numpy as np
import torch

from antiphon.errors import ConfigError

KINDS = ("cpu", "cuda", "npu", "xpu")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Device:
    """One torch device, with the dtype that models on it are loaded in."""

    def __init__(self, name: str, dtype: str = "") -> None:
        kind = name.partition(":")[0]
        if kind not in KINDS:
            raise ConfigError([f"device {name!r} is none of {', '.join(KINDS)} (with an index: cuda:1)"])
        if dtype and dtype not in _DTYPES:
            raise ConfigError([f"dtype {dtype!r} is none of {', '.join(_DTYPES)}"])
        if kind == "npu":
            import torch_npu  # noqa: F401  registers the device with torch
        self.torch_device = torch.device(name)
        self.dtype = _DTYPES[dtype] if dtype else torch.float32 if kind == "cpu" else torch.bfloat16

    def to_host(self, tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
        """Every tensor as a numpy array of its own memory; bfloat16 as uint16. One wait for all copies."""
        if self.torch_device.type == "cpu":
            return {name: _as_numpy(tensor.clone()) for name, tensor in tensors.items()}
        pinned = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
            for name, tensor in tensors.items()
        }
        torch.accelerator.synchronize(self.torch_device)
        return {name: _as_numpy(tensor) for name, tensor in pinned.items()}


def _as_numpy(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array
