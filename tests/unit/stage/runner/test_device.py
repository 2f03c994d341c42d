"""Device: names, dtypes, and what reaches the host."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from antiphon.errors import ConfigError  # noqa: E402
from antiphon.stage.runner.device import Device  # noqa: E402


def test_an_unknown_device_or_dtype_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"'gpu' is none of cpu, cuda, npu, xpu"):
        Device("gpu")
    with pytest.raises(ConfigError, match=r"'int4' is none of float32, bfloat16, float16"):
        Device("cpu", "int4")


def test_a_device_that_this_machine_does_not_have_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match=r"device 'cuda:99' is not here: torch \S+ finds \d+ of cuda"):
        Device("cuda:99")


def test_a_cpu_computes_in_float32_unless_told_otherwise() -> None:
    assert Device("cpu").dtype is torch.float32
    assert Device("cpu", "bfloat16").dtype is torch.bfloat16


def test_arrays_on_the_host_share_no_memory_with_the_tensors() -> None:
    tensor = torch.arange(6, dtype=torch.float32).view(3, 2)
    host = Device("cpu").to_host({"rows": tensor}).wait()["rows"]
    tensor.zero_()
    assert host.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_bfloat16_travels_as_the_upper_half_of_float32() -> None:
    values = torch.tensor([1.0, -2.5, 3.140625], dtype=torch.bfloat16)
    host = Device("cpu").to_host({"rows": values}).wait()["rows"]
    assert host.dtype == np.uint16
    assert (host.astype(np.uint32) << 16).view(np.float32).tolist() == [1.0, -2.5, 3.140625]


def test_a_cpu_lays_out_linear_weights_by_columns_and_leaves_shared_ones() -> None:
    embedding, head, inner = torch.nn.Embedding(7, 5), torch.nn.Linear(5, 7, bias=False), torch.nn.Linear(5, 3)
    head.weight = embedding.weight
    network, rows = torch.nn.ModuleList([embedding, head, inner]), torch.randn(4, 5)
    before = inner(rows).detach()
    Device("cpu").place(network)
    assert not network.training
    assert inner.weight.shape == (3, 5) and inner.weight.stride() == (1, 3)
    torch.testing.assert_close(inner(rows).detach(), before)
    assert head.weight is embedding.weight and head.weight.is_contiguous()
