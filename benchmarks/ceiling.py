"""What the chip could do at best: its measured bandwidth and arithmetic against what a workload needs at least.

The bound counts no more than any implementation must do, with every element-wise operation fused into a neighbour:

- arithmetic: forward, gradient of the weights, gradient of the inputs (not of the images themselves);
- memory: weights are read forward and backward, their gradient is written and read, the parameters (float32), the
  velocity and the low-precision copy are updated; of the input of every layer with weights, the values are
  written and read forward, read backward, and their gradient is written once and read twice.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.workloads import Workload, network


@dataclass(frozen=True)
class Needs:
    """Of one client-sample."""

    operations: float
    bytes: float


def needs(workload: Workload, precision: str, momentum: bool) -> Needs:
    module = network(workload)
    operations, places = [], []

    def count(layer: nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        if isinstance(layer, nn.LSTM):
            # Every step multiplies with all weights; of every layer and step there is an input, and four gates.
            weights = sum(value.numel() for value in layer.parameters() if value.dim() == 2)
            steps, gates = given[0].shape[1], 4 * layer.num_layers * layer.hidden_size
            operations.append(2.0 * weights * steps)
            places.append(given[0][0].numel() + gates * steps)
            return
        assert isinstance(layer, (nn.Conv2d, nn.Linear))
        operations.append(2.0 * layer.weight.numel() * (out[0, 0].numel() if out.dim() == 4 else 1))
        places.append(given[0][0].numel())

    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear, nn.LSTM)):
            layer.register_forward_hook(count)
    module(torch.zeros(1, *workload.shape, dtype=torch.int64 if workload.is_text else torch.float32))
    low = 2 if precision == "bf16" else 4
    # Two reads, gradient written and read, parameters read and written, and (bf16) the copy written.
    per_parameter = 4 * low + 8 + (2 if precision == "bf16" else 0) + (8 if momentum else 0)
    moved = sum(parameter.numel() for parameter in module.parameters())
    for layer in module.modules():
        if isinstance(layer, nn.Embedding):
            # Only rows of words that occur must be read and changed.
            moved += layer.embedding_dim * min(0, workload.shape[0] * workload.batch - layer.num_embeddings)
    parameters = moved * per_parameter / workload.batch
    # Of images nobody needs the gradient; of embedded words, their embedding does.
    first = 6 * places[0] if workload.is_text else 2 * places[0]
    spared = 0.0 if workload.is_text else operations[0]
    activations = low * (first + 6 * sum(places[1:]))
    return Needs(3 * sum(operations) - spared, parameters + activations)


def measured_ceiling() -> dict[str, float]:
    """Bytes a second of a copy, and operations a second of large matrix products."""
    one = torch.empty(1 << 30, dtype=torch.float32, device="cuda")
    other = torch.empty_like(one)
    found = {"bytes": 2 * one.numel() * 4 / _seconds(lambda: other.copy_(one))}
    size = 8192
    for precision, dtype in (("bf16", torch.bfloat16), ("tf32", torch.float32)):
        torch.backends.cuda.matmul.allow_tf32 = True
        a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
        found[precision] = 2 * size**3 / _seconds(lambda a=a, b=b: a @ b)
    return found


def bound(workload: Workload, precision: str, momentum: bool, ceiling: dict[str, float]) -> tuple[float, str]:
    """Client-samples a second at best, and what binds."""
    wanted = needs(workload, precision, momentum)
    by_memory = ceiling["bytes"] / wanted.bytes
    by_arithmetic = ceiling[precision] / wanted.operations
    return min((by_memory, "memory"), (by_arithmetic, "arithmetic"))


def _seconds(call: Any) -> float:
    """The best of some calls."""
    taken = []
    for _ in range(8):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return min(taken)
