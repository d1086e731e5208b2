"""Large linear layers moved by one operator on a GPU: how fast, and what steps of W1 and W3 gain by it.

    python benchmarks/linear_update.py --out OUT                  # both parts, about a minute
    python benchmarks/linear_update.py --out OUT --parts kernels

Parts, each line printed and written to OUT/linear_update.json as soon as it is measured:

- `steps`: microseconds of a whole step in bf16, as the stacked runtime records it, with the first linear layer moved by
  the operator and without; and by how much the parameters of two lanes differ after it. Every step is compiled in a
  process of its own, all at the same time, and timed when all are ready, one after another. For the most lanes, also
  the kernels that take longest.
- `kernels`: microseconds of the operator alone on the first linear layers of W1 and W3, in bf16, by how its work is cut
  up, beside the gradient as a matrix product with the update after it. TB/s count what must be moved.

`--device cpu --toy` runs all of it in miniature, without Triton.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from benchmarks.fused import Bench as FusedBench
from benchmarks.name_list import names_of
from benchmarks.timed_steps import MadeUpStep, replayed, spent_in
from benchmarks.workloads import WORKLOADS
from covey.runtime.stacked.convolution import ConvAlgorithm
from covey.runtime.stacked.lane_step import StepTerms
from covey.runtime.stacked.linear_update import update_weights
from covey.runtime.stacked.linear_update_kernels import TUNED, UpdateTuning

PARTS = ("steps", "kernels")
HELPERS = 4
"""Processes that compile kernels."""

STEPS = {"W1": [50, 500], "W3": [10, 100]}
"""Workload → numbers of lanes."""

FIRST: dict[str, ConvAlgorithm] = {"W1": "kernel", "W3": "fused"}
"""Workload → algorithm of its first convolution; that of the second is an option."""

LAYERS = {"W1": (12544, 128), "W3": (3136, 512)}
"""Workload → inputs and outputs of its first linear layer."""

LANES = [50, 100, 500]

TILES = [
    UpdateTuning(*one)
    for one in (
        (32, 128, 4),
        (32, 64, 4),
        (32, 64, 2),
        (64, 64, 4),
        (64, 64, 8),
        (64, 128, 8),
        (128, 64, 8),
        (16, 256, 4),
        (16, 128, 4),
        (32, 128, 4, False),
        (16, 128, 4, False),
    )
]


class Bench(FusedBench):
    """The parts, on one device."""

    def __init__(self, given: argparse.Namespace) -> None:
        given.lanes = "2"
        super().__init__(given)
        self.batch = 3 if given.toy else 10
        self.found |= {"steps": [], "kernels": []}
        torch.backends.cuda.matmul.allow_tf32 = True

    def write(self) -> None:
        if self.given.out:
            self.given.out.mkdir(parents=True, exist_ok=True)
            (self.given.out / "linear_update.json").write_text(json.dumps(self.found, indent=1), encoding="utf-8")

    def measure(self) -> None:
        """Measure the parts that are asked for."""
        with tempfile.TemporaryDirectory() as folder:
            compilers = self._compilers() if self.on_gpu and "kernels" in self.given.parts else []
            if "steps" in self.given.parts:
                self._time_steps(Path(folder))
            for compiler in compilers:
                compiler.wait()
        if "kernels" in self.given.parts:
            self._time_kernels()

    def _compilers(self) -> list["subprocess.Popen[str]"]:
        """Start processes that compile the kernels, for Triton to find in its cache."""
        command = [sys.executable, __file__, "--device", self.given.device, "--only"]
        none = subprocess.DEVNULL
        return [
            subprocess.Popen([*command, str(number)], text=True, stdout=none, stderr=none) for number in range(HELPERS)
        ]

    def compile(self) -> None:
        """Compile a share of the kernels."""
        pairs = list(product(LAYERS, (False, True), TILES))
        for workload, momentum, tuning in pairs[self.given.only :: HELPERS]:
            TUNED["update"] = tuning
            with suppress(Exception):
                self._operator(workload, 1, momentum)()

    def _time_steps(self, folder: Path) -> None:
        """Have a process for every step compile it, and time one after another once all are ready."""
        counts = {"W1": [2]} if self.given.toy else STEPS
        steps = [(name, lanes, way) for name in counts for lanes in counts[name] for way in ("ordinary", "update")]
        command = [sys.executable, __file__, "--device", self.given.device, *(["--toy"] if self.given.toy else [])]
        helpers = [
            subprocess.Popen(
                [*command, "--step", name, str(lanes), way, "--out", str(folder), "--conv2", self.given.conv2],
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"},
            )
            for name, lanes, way in steps
        ]
        ready = [json.loads(_line_of(helper) or "{}") for helper in helpers]
        self.say(f"steps compiled after {time.monotonic() - self.begin:.0f} s")
        first: Tensor | None = None
        for (name, lanes, way), helper, begun in zip(steps, helpers, ready, strict=True):
            told, _ = helper.communicate("go\n")
            if helper.returncode or not told:
                self.say(f"  {name}, {lanes} lanes, {way}: fails")
                continue
            change = torch.load(folder / f"{name}-{lanes}-{way}.pt")
            first = change if way == "ordinary" else first
            apart = None if first is None else float((change - first).norm() / first.norm())
            row = {"workload": name, "lanes": lanes, "way": way, "apart": apart, **begun, **json.loads(told)}
            self.found["steps"].append(row)
            rate = lanes * self.batch / row["us"]
            differs = "unknown" if apart is None else f"{apart:.1e}"
            self.say(
                f"  {name}, {lanes:3} lanes, {way:8}: {row['us']:8.0f} µs a step, {rate:6.3f} million samples/s; "
                f"change of parameters {differs} from the ordinary one; ready in {row['ready']:.0f} s"
            )
            for micro, count, kernel in row["spent"][:8]:
                self.say(f"    {micro:8.1f} µs in {count:4.1f} calls: {kernel[:90]}")
            self.write()

    def step(self) -> None:
        """Compile a step, say so, wait for leave, and time it."""
        name, lanes, way = self.given.step[0], int(self.given.step[1]), self.given.step[2]
        workload = WORKLOADS[name]
        shape, images = ((3, 12, 12), 64) if self.given.toy else (workload.shape, 10_000)
        terms = StepTerms(momentum=False, weight_decay=False, proximal=False, crop=0, flip=False)
        updated = ["fc1"] if way == "update" else []
        algorithms: dict[str, ConvAlgorithm] = {"conv1": FIRST[name], "conv2": self.given.conv2}
        given = lanes, self.batch, images, terms, algorithms, self.device, updated
        step = MadeUpStep(workload.model, shape, *given, busy=True)
        replay = step.recorded()
        torch.save(step.change(replay)[:2].cpu(), self.given.out / f"{name}-{lanes}-{way}.pt")
        print(json.dumps({"ready": time.monotonic() - self.begin}), flush=True)
        sys.stdin.readline()
        micro = replayed(replay, self.device, 20)
        largest = self.on_gpu and lanes == max(STEPS[name])
        print(json.dumps({"us": micro, "spent": spent_in(replay, self.device)[:22] if largest else []}), flush=True)

    def _time_kernels(self) -> None:
        """Time the operator, cut up in several ways, and what it replaces."""
        for workload, lanes in product(LAYERS, [2] if self.given.toy else LANES):
            for momentum in (False, True) if lanes < 500 else (False,):
                self._time_layer(workload, lanes, momentum)
                self.write()

    def _time_layer(self, workload: str, lanes: int, momentum: bool) -> None:
        inputs, outputs = self._sizes(workload)
        about = {"workload": workload, "lanes": lanes, "momentum": momentum}
        # Weights are read and written, and so are velocities; the working copies are written.
        moved = lanes * inputs * outputs * (18 if momentum else 10)
        rows: list[dict[str, Any]] = [{**about, "way": "ordinary", "us": self._ordinary(workload, lanes, momentum)}]
        operator, usual = self._operator(workload, lanes, momentum), TUNED["update"]
        for tuning in TILES[:1] if self.given.toy else TILES:
            TUNED["update"] = tuning
            rows.append({**about, "way": "update", "us": self._microseconds(operator), **asdict(tuning)})
        TUNED["update"] = usual
        rows.sort(key=lambda row: float(row["us"]))
        for row in rows:
            row["tb_per_s"] = moved / row["us"] / 1e6
        self.found["kernels"] += rows
        best = "; ".join(map(_described, rows[:5]))
        ordinary = next(row for row in rows if row["way"] == "ordinary")
        terms = "with momentum" if momentum else "plain"
        self.say(f"  {workload}, {lanes} lanes, {terms}: ordinary {ordinary['us']:.0f} µs; {best}")

    def _sizes(self, workload: str) -> tuple[int, int]:
        return (48, 16) if self.given.toy else LAYERS[workload]

    def _tensors(self, workload: str, lanes: int, momentum: bool) -> dict[str, Any]:
        """Return what the operator takes, on random numbers."""
        inputs, outputs = self._sizes(workload)
        compute = torch.bfloat16 if self.on_gpu else torch.float32

        def drawn(*shape: int) -> Tensor:
            return torch.randn(lanes, *shape, device=self.device)

        weight = drawn(outputs, inputs)
        return {
            "gradient": drawn(self.batch, outputs).to(compute),
            "x": drawn(self.batch, inputs).to(compute),
            # So small that weights stay what they are, over thousands of calls.
            "rate": torch.full((lanes,), 1e-6, device=self.device),
            "settings": torch.tensor([[0.9, 0.0, 0.0, 0.0]], device=self.device).repeat(lanes, 1),
            "received": None,
            "weight": weight,
            "working": weight.to(compute) if self.on_gpu else None,
            "velocity": drawn(outputs, inputs) if momentum else None,
        }

    def _operator(self, workload: str, lanes: int, momentum: bool) -> Callable[[], None]:
        given = self._tensors(workload, lanes, momentum)
        return lambda: update_weights(**given, decays=False)

    def _ordinary(self, workload: str, lanes: int, momentum: bool) -> float:
        """Return the microseconds of a matrix product and an update, as they are compiled in an ordinary step."""
        given = self._tensors(workload, lanes, momentum)

        def step(
            gradient: Tensor, x: Tensor, rate: Tensor, weight: Tensor, working: Tensor | None, velocity: Tensor | None
        ) -> None:
            by_weight = torch.bmm(gradient.mT, x).to(weight.dtype)
            if velocity is not None:
                by_weight = 0.9 * velocity + by_weight
                velocity.copy_(by_weight)
            weight.sub_(rate[:, None, None] * by_weight)
            if working is not None:
                working.copy_(weight)

        compiled: Callable[..., None] = torch.compile(step, dynamic=True) if self.on_gpu else step
        names = ("gradient", "x", "rate", "weight", "working", "velocity")
        return self._microseconds(lambda: compiled(*(given[name] for name in names)))


def _line_of(helper: "subprocess.Popen[str]") -> str:
    assert helper.stdout is not None
    return helper.stdout.readline()


def _described(row: dict[str, Any]) -> str:
    if row["way"] == "ordinary":
        return f"{row['us']:.0f} µs (ordinary)"
    kind = "products" if row["products"] else "sums"
    cut = f"{row['outputs']}x{row['inputs']}/w{row['warps']}/{kind}"
    return f"{row['us']:.0f} µs ({cut}, {row['tb_per_s']:.2f} TB/s)"


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=names_of(PARTS, "part"), default=list(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--conv2", choices=("slices", "tiles", "kernel"), default="slices", help="algorithm of conv2")
    parser.add_argument("--only", type=int, help="number of a share of the kernels to compile")
    parser.add_argument("--step", nargs=3, metavar=("WORKLOAD", "LANES", "WAY"), help="a step to compile and time")
    given = parser.parse_args()
    bench = Bench(given)
    if given.step:
        bench.step()
    elif given.only is not None:
        bench.compile()
    else:
        bench.measure()
    return 0


if __name__ == "__main__":
    sys.exit(main())
