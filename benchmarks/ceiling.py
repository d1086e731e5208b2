"""Upper bound on a workload's speed: the GPU's measured bandwidth and arithmetic over the least work it takes.

    python benchmarks/ceiling.py --out results/ceiling.json     # from the workloads and the rows of results/gpu.jsonl

The bound counts the work of training layer by layer, with every element-wise operation fused into a neighbour:

- arithmetic: forward pass, gradient of the weights, gradient of the inputs (but not of the images);
- memory: weights are read forward and backward, and their gradient is written and read; the parameters (float32), the
  velocity and the low-precision copy are updated; the input of every layer with weights is written and read forward and
  read backward, and its gradient is written once and read twice. `fused` is the bound where the kernel of the weights'
  gradient updates them, so that no gradient is in memory;
- order: the kernels of a step that wait for one another, one a layer with weights forward and backward (of an LSTM one
  a word), and the update. At the bound a step leaves each of them so many microseconds: where that is about the time
  that a kernel takes to start, a run alone cannot reach the bound, and runs in lockstep, whose steps are wider, can.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.workloads import WORKLOADS, Workload, network

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Needs:
    """The least work of training one client-sample."""

    operations: float
    bytes: float
    gradient_bytes: float
    """Those of `bytes` that are for the weights' gradients."""
    kernels: int
    """Of a step, those that wait for one another."""


def has_momentum(workload: Workload) -> bool:
    """True if its rows train with momentum: FedACS's do."""
    return workload.name == "W2"


def needs(workload: Workload, precision: str, momentum: bool) -> Needs:
    """Count the least work of training one client-sample."""
    module = network(workload)
    operations, places, waiting = [], [], []

    def count(layer: nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        if isinstance(layer, nn.LSTM):
            # Every step multiplies by all weights; every layer has an input and four gates per step.
            weights = sum(value.numel() for value in layer.parameters() if value.dim() == 2)
            steps, gates = given[0].shape[1], 4 * layer.num_layers * layer.hidden_size
            operations.append(2.0 * weights * steps)
            waiting.append(steps * layer.num_layers)
            places.append(given[0][0].numel() + gates * steps)
            return
        assert isinstance(layer, (nn.Conv2d, nn.Linear))
        operations.append(2.0 * layer.weight.numel() * (out[0, 0].numel() if out.dim() == 4 else 1))
        # A shortcut runs beside the layers that it passes by.
        waiting.append(0 if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) else 1)
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
    parameters, gradients = (moved * each / workload.batch for each in (per_parameter, 2 * low))
    # Images need no gradient; the embedding needs that of embedded words.
    first = 6 * places[0] if workload.is_text else 2 * places[0]
    spared = 0.0 if workload.is_text else operations[0]
    activations = low * (first + 6 * sum(places[1:]))
    return Needs(3 * sum(operations) - spared, parameters + activations, gradients, 2 * sum(waiting) + 1)


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


def limits(workload: Workload, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a workload's needs and bounds in bf16, beside the rows that were measured: alone, and the fastest."""
    momentum = has_momentum(workload)
    wanted, (best, limit) = needs(workload, "bf16", momentum), bound(workload, "bf16", momentum, rows["ceiling"])
    step = workload.cohort * workload.batch / best
    by_arithmetic = rows["ceiling"]["bf16"] / wanted.operations
    named = f"covey-{workload.name}-bf16-"
    measured = {
        name.removeprefix(named): row["samples_per_second"]
        for name, row in rows.items()
        if name.startswith(named) and name.removeprefix(named).isdigit()
    }
    return {
        **asdict(wanted),
        "by_memory": rows["ceiling"]["bytes"] / wanted.bytes,
        "by_arithmetic": by_arithmetic,
        "bound": best,
        "limit": limit,
        "fused": min(by_arithmetic, rows["ceiling"]["bytes"] / (wanted.bytes - wanted.gradient_bytes)),
        "step_microseconds": 1e6 * step,
        "microseconds_per_kernel": 1e6 * step / wanted.kernels,
        "alone": measured.get("1"),
        "fastest": max(measured.values(), default=None),
    }


def table_of(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the GPU's measured limits, and those of every workload but the toy."""
    gpu = {name: rows["ceiling"][name] for name in ("bytes", "bf16", "device", "commit")}
    workloads = {name: limits(workload, rows) for name, workload in WORKLOADS.items() if name != "W0"}
    return {"gpu": gpu, "workloads": workloads}


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Read measured rows by name."""
    return {row["row"]: row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=ROOT / "results" / "gpu.jsonl")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "ceiling.json")
    given = parser.parse_args()
    given.out.write_text(json.dumps(table_of(read_rows(given.rows)), indent=1) + "\n", encoding="utf-8")


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


if __name__ == "__main__":
    main()
