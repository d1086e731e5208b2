"""Upper bound on a workload's speed: the GPU's measured bandwidth and arithmetic over the least work it takes.

The bound counts only work that no implementation can avoid, with every element-wise operation fused into a neighbour:

- arithmetic: forward pass, gradient of the weights, gradient of the inputs (but not of the images);
- memory: weights are read forward and backward, and their gradient is written and read; the parameters (float32), the
  velocity and the low-precision copy are updated; the input of every layer with weights is written and read forward and
  read backward, and its gradient is written once and read twice.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.workloads import Workload, network


@dataclass(frozen=True)
class Needs:
    """The least work of training one client-sample."""

    operations: float
    bytes: float


def needs(workload: Workload, precision: str, momentum: bool) -> Needs:
    """Count the least work of training one client-sample."""
    module = network(workload)
    operations, places = [], []

    def count(layer: nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        if isinstance(layer, nn.LSTM):
            # Every step multiplies by all weights; every layer has an input and four gates per step.
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
    # Weights read twice, gradient written and read, parameters read and written, with bf16 the copy written.
    per_parameter = 4 * low + 8 + (2 if precision == "bf16" else 0) + (8 if momentum else 0)
    moved = sum(parameter.numel() for parameter in module.parameters())
    for layer in module.modules():
        if isinstance(layer, nn.Embedding):
            # Only rows of words that occur are read and changed.
            moved += layer.embedding_dim * min(0, workload.shape[0] * workload.batch - layer.num_embeddings)
    parameters = moved * per_parameter / workload.batch
    # Images need no gradient; the embedding needs that of embedded words.
    first = 6 * places[0] if workload.is_text else 2 * places[0]
    spared = 0.0 if workload.is_text else operations[0]
    activations = low * (first + 6 * sum(places[1:]))
    return Needs(3 * sum(operations) - spared, parameters + activations)


def measured_ceiling() -> dict[str, float]:
    """Measure bytes per second of a copy, and operations per second of large matrix products."""
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
    """Return the highest possible client-samples per second, and the resource that limits them."""
    wanted = needs(workload, precision, momentum)
    by_memory = ceiling["bytes"] / wanted.bytes
    by_arithmetic = ceiling[precision] / wanted.operations
    return min((by_memory, "memory"), (by_arithmetic, "arithmetic"))


def _seconds(call: Any) -> float:
    """Return the seconds of the fastest of eight calls."""
    taken = []
    for _ in range(8):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return min(taken)
