"""The few things that differ between cpu, cuda, npu and xpu.

In: a device name from the deploy file. Out: placement, recorded work, copies to the host. Does not know: models.
Only cpu has been run; the others use torch's public accelerator API alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from antiphon.errors import ConfigError

KINDS = ("cpu", "cuda", "npu", "xpu")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NUM_WARM_UPS = 2  # libraries set themselves up in the first calls, which a recording must not hold

T = TypeVar("T")
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class HostCopy:
    """Tensors on their way to the host, and the event after which they are there (None: they are)."""

    host: Tensors
    done: torch.Event | None = None

    def wait(self) -> dict[str, np.ndarray]:
        """Every tensor as a numpy array of its own memory; bfloat16 as uint16."""
        if self.done is not None:
            self.done.synchronize()
        return {name: _as_numpy(tensor) for name, tensor in self.host.items()}


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
        num_devices = 1 if kind == "cpu" else _num_devices(self.torch_device)
        if (self.torch_device.index or 0) >= num_devices:
            raise ConfigError([f"device {name!r} is not here: torch {torch.__version__} finds {num_devices} of {kind}"])
        if self.torch_device.index is not None and kind != "cpu":
            torch.accelerator.set_device_index(self.torch_device.index)  # streams and events are the current device's
        self.dtype = _DTYPES[dtype] if dtype else torch.float32 if kind == "cpu" else torch.bfloat16
        self._graph_pool: Any = None

    def place(self, network: torch.nn.Module) -> None:
        """Move a network here, for inference.

        On a cpu the float32 weights of its linear layers are laid out by columns, in place: products with few rows, as
        in a decode, are then faster (MKL; docs/performance.md). Weights that an embedding shares stay as they are.
        """
        network.eval().to(self.torch_device)
        if self.torch_device.type != "cpu":
            return
        shared = {id(module.weight) for module in network.modules() if isinstance(module, torch.nn.Embedding)}
        for module in network.modules():
            if isinstance(module, torch.nn.Linear) and id(module.weight) not in shared:
                weight = module.weight.data
                if weight.dtype is torch.float32:
                    module.weight.data = weight.t().contiguous().t()

    @property
    def has_graphs(self) -> bool:
        """True if `record` makes repeated work cheaper."""
        return self.torch_device.type == "cuda"

    def record(self, run: Callable[[], T]) -> Callable[[], T]:
        """A function that does the device work of `run` again, on the same tensors, and gives the same result objects.

        On cuda the work is recorded as a CUDA graph: `run` may not read a value from the device. Recordings share
        memory for what they need meanwhile, so they must not run at once. Elsewhere: `run`.
        """
        if not self.has_graphs:
            return run
        side = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.torch_device))
        with torch.cuda.stream(side):
            for _ in range(_NUM_WARM_UPS):
                run()
        torch.cuda.current_stream(self.torch_device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self._graph_pool = self._graph_pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._graph_pool):
            result = run()

        def replay() -> T:
            graph.replay()
            return result

        return replay

    def to_host(self, tensors: Tensors) -> HostCopy:
        """Start to copy every tensor: one copy for all, from this point of the device's work, without waiting."""
        if self.torch_device.type == "cpu" or not tensors:
            return HostCopy({name: tensor.clone() for name, tensor in tensors.items()})
        packed = pack(tensors)
        pinned = torch.empty(packed.shape, dtype=torch.uint8, pin_memory=True)
        pinned.copy_(packed, non_blocking=True)
        done = torch.Event(self.torch_device)
        done.record()
        return HostCopy(unpack(pinned, tensors), done)


def _num_devices(device: torch.device) -> int:
    module = torch.get_device_module(device)
    return int(module.device_count()) if module.is_available() else 0


def pack(tensors: Tensors) -> torch.Tensor:
    """[num_bytes] uint8: all tensors, those of wide elements first, so that every one is aligned."""
    return torch.cat([tensor.flatten().view(torch.uint8) for tensor in _widest_first(tensors).values()])


def unpack(packed: torch.Tensor, like: Tensors) -> Tensors:
    """Views of what `pack` made, with the names, dtypes and shapes of `like`."""
    ordered = _widest_first(like)
    pieces = torch.split(packed, [tensor.numel() * tensor.element_size() for tensor in ordered.values()])
    return {
        name: piece.view(tensor.dtype).view(tensor.shape)
        for (name, tensor), piece in zip(ordered.items(), pieces, strict=True)
    }


def _widest_first(tensors: Tensors) -> Tensors:
    return dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))


def _as_numpy(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array
