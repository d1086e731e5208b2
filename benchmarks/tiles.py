"""Convolutions with many channels on a GPU: right, how fast by how their work is cut up, and what whole steps gain.

    python benchmarks/tiles.py --out OUT                 # all parts, about a minute and a half
    python benchmarks/tiles.py --out OUT --parts layers --cases W1

Parts, each printed as soon as it is measured, and written to OUT/tiles.json:

- `check`: the operator against PyTorch in float64, in float32, tf32 and bf16, on odd layers; and twice the same bits.
- `layers`: microseconds of output, gradient of images and gradient of filters in bf16, by the kernels, cut up in
  several ways, the fastest first; and by im2col, without a compiler.
- `steps`: microseconds of a whole compiled step of W1 and W3, with im2col, with the kernels as they are, and as the
  fastest of `layers` are cut up; by how much the change of the parameters differs; where the device's time goes.

Steps are compiled in processes of their own at the same time as all kernels, and timed one after another.
`--device cpu --toy` runs all of it in miniature, without Triton.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from benchmarks.name_list import names_of
from benchmarks.timed_steps import MadeUpStep, microseconds, replayed, spent_in
from covey.runtime.stacked import tiled_convolution_kernels as kernels
from covey.runtime.stacked.convolution import ConvAlgorithm, patches_convolution
from covey.runtime.stacked.lane_step import COMPUTE_DTYPES, StepTerms
from covey.runtime.stacked.pooled_check import TOLERANCES
from covey.runtime.stacked.tiled_check import worst_error
from covey.runtime.stacked.tiled_convolution_plan import Tiling, tuned
from covey.runtime.stacked.triton_support import available

PARTS = ("check", "layers", "steps")
HELPERS = 8
"""Processes that compile kernels."""


@dataclass(frozen=True)
class Case:
    """A layer of a workload, the images that it gets, and the numbers of lanes it is timed for."""

    layer: nn.Conv2d
    image: tuple[int, int, int]
    lanes: tuple[int, ...]


CASES = {
    "W1": Case(nn.Conv2d(32, 64, 3), (32, 30, 30), (50, 100, 500)),
    "W3": Case(nn.Conv2d(32, 64, 5, padding=2), (32, 14, 14), (50, 100, 500)),
    "VGG 2": Case(nn.Conv2d(64, 128, 3, padding=1), (64, 16, 16), (10, 100)),
    "VGG 6": Case(nn.Conv2d(512, 512, 3, padding=1), (512, 4, 4), (10, 100)),
}
"""The wide convolution of `pfl-cnn` and of `mcmahan-cnn`, and the second and the sixth of VGG-11."""

BATCH = 10

STEPS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, dict[str, ConvAlgorithm]]]] = {
    "W1": (
        "pfl-cnn",
        (3, 32, 32),
        (50, 500),
        {"slices": {"conv1": "kernel", "conv2": "slices"}, "tiles": {"conv1": "kernel", "conv2": "tiles"}},
    ),
    "W3": (
        "mcmahan-cnn",
        (1, 28, 28),
        (10, 100),
        {"slices": {"conv1": "fused", "conv2": "slices"}, "tiles": {"conv1": "fused", "conv2": "tiles"}},
    ),
}
"""Model, image, lanes, and algorithms."""

CHECKED = [
    # layer, image
    (nn.Conv2d(8, 32, 3, padding=1), (8, 9, 11)),
    (nn.Conv2d(33, 70, 5, padding=2), (33, 7, 8)),
    (nn.Conv2d(32, 64, 3), (32, 30, 30)),
    (nn.Conv2d(64, 40, (2, 3), stride=(2, 1), padding=(1, 0), bias=False), (64, 9, 8)),
    (nn.Conv2d(512, 512, 3, padding=1), (512, 2, 2)),
]

_OUTPUT: list[tuple[int, ...]] = [
    # pixels, filters, elements, warps, stages
    (128, 128, 64, 8, 3),
    (128, 128, 64, 8, 1),
    (128, 128, 64, 8, 4),
    (256, 128, 64, 8, 3),
    (256, 128, 64, 8, 1),
    (64, 128, 64, 8, 3),
    (128, 128, 32, 8, 4),
    (128, 128, 128, 8, 2),
]
TILINGS: dict[str, list[tuple[int, ...]]] = {
    "forward": _OUTPUT,
    "images": _OUTPUT,
    "filters": [
        # and programs for each multiprocessor
        (64, 128, 128, 8, 3, 4),
        (64, 128, 128, 8, 1, 4),
        (64, 128, 128, 8, 3, 8),
        (128, 128, 128, 8, 2, 4),
        (64, 128, 256, 8, 3, 4),
        (32, 128, 128, 8, 4, 4),
        (64, 64, 64, 4, 3, 8),
    ],
}
"""How the work of each kernel is cut up."""


class Bench:
    """The parts, on one device."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.device = torch.device(given.device)
        self.on_gpu = self.device.type == "cuda"
        self.batch = 2 if given.toy else BATCH
        self.found: dict[str, Any] = {"torch": torch.__version__, "device": self._name(), "right": True}
        self.best: dict[str, dict[str, list[int]]] = {}
        """The fastest tilings of a case at the most lanes, by kernel."""
        self.begin = time.monotonic()

    def run(self) -> bool:
        """Run the parts that are asked for; return True if every kernel was right."""
        steps = list(self._step_helpers()) if "steps" in self.given.parts else []
        checks = [self._helper("check", number) for number in range(len(CHECKED)) if "check" in self.given.parts]
        if self.on_gpu and "layers" in self.given.parts:
            for helper in [self._helper("compile", number) for number in range(HELPERS)]:
                helper.communicate()
        self.found["check"] = []
        for helper in checks:
            said = helper.communicate()[0].splitlines()
            rows = json.loads(said[-1]) if helper.returncode == 0 else [{"right": False, "said": said[-3:]}]
            self.found["check"] += rows
            self.found["right"] = self.found["right"] and all(row["right"] for row in rows)
            for row in rows:
                self.say(f"  {'right' if row['right'] else 'WRONG'}: {row}")
        for _, helper in steps:
            assert helper.stdout is not None
            while (line := helper.stdout.readline()) and line != "ready\n":
                pass
        self.say(f"compiled after {time.monotonic() - self.begin:.0f} s")
        self.write()
        if "layers" in self.given.parts:
            self.layers()
        if steps:
            self.steps(steps)
        return bool(self.found["right"])

    def _helper(self, job: str, number: int, *more: str) -> "subprocess.Popen[str]":
        """Start this program as a process that does one job."""
        command = [sys.executable, __file__, "--device", self.given.device, *(["--toy"] if self.given.toy else [])]
        return subprocess.Popen(
            [*command, "--cases", ",".join(self.given.cases), "--job", job, "--number", str(number), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if job == "compile" else None,
            text=True,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"},
        )

    def _step_helpers(self) -> Iterator[tuple[dict[str, Any], "subprocess.Popen[str]"]]:
        for name in [one for one in STEPS if one in self.given.cases]:
            for lanes in (2,) if self.given.toy else STEPS[name][2]:
                for way in STEPS[name][3]:
                    row = {"workload": name, "lanes": lanes, "way": way}
                    yield row, self._helper("step", lanes, "--workload", name, "--way", way)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def write(self) -> None:
        if self.given.out:
            self.given.out.mkdir(parents=True, exist_ok=True)
            (self.given.out / "tiles.json").write_text(json.dumps(self.found, indent=1), encoding="utf-8")

    def layers(self) -> None:
        """Time every case: by the kernels, cut up in several ways, and by im2col."""
        torch.backends.cuda.matmul.allow_tf32 = True
        rows: list[dict[str, Any]] = []
        self.found["layers"], self.found["best"] = rows, self.best
        for name in self.given.cases:
            for lanes in (2,) if self.given.toy else CASES[name].lanes:
                calls, operations, moved = self._calls(CASES[name], lanes)
                others = self._by_patches(CASES[name], lanes)
                for kernel, call in calls.items():
                    about = {"case": name, "lanes": lanes, "kernel": kernel}
                    timed = []
                    for given in self._tilings(kernel):
                        with tuned(**{kernel: Tiling(*given)}):
                            timed.append((self._microseconds(call), given))
                    timed.sort()
                    rows += [{**about, "us": micro, **asdict(Tiling(*given))} for micro, given in timed]
                    rows.append({**about, "us": others[kernel], "way": "slices"})
                    # The last number of lanes is the largest.
                    self.best.setdefault(name, {})[kernel] = list(timed[0][1])
                    fastest = timed[0][0]
                    self.say(
                        f"  {name}, {lanes} lanes, {kernel}: {operations / fastest / 1e6:.0f} TFLOP/s, "
                        f"{moved / fastest / 1e6:.2f} TB/s, im2col {others[kernel]:.0f} µs; "
                        + "; ".join(f"{micro:.0f} µs {given}" for micro, given in timed[:4])
                    )
                self.write()

    def _tilings(self, kernel: str) -> list[tuple[int, ...]]:
        return TILINGS[kernel][:1] if self.given.toy else TILINGS[kernel]

    def _made(self, case: Case, lanes: int) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        """Return images `[lanes, b, h, w, i]`, filters, gradients of the output, and the padding."""
        dtype = torch.bfloat16 if self.on_gpu else torch.float32
        layer, (channels, *size) = case.layer, case.image
        padding = [int(pad) for pad in layer.padding]
        out = [size[axis] + 2 * padding[axis] - layer.kernel_size[axis] + 1 for axis in (0, 1)]
        x = torch.randn(lanes, self.batch, *size, channels, device=self.device).to(dtype)
        weight = torch.randn(lanes, layer.out_channels, *layer.kernel_size, channels, device=self.device).to(dtype)
        return (
            x,
            weight,
            torch.randn(lanes, self.batch, *out, layer.out_channels, device=self.device).to(dtype),
            padding,
        )

    def _calls(self, case: Case, lanes: int) -> tuple[dict[str, Callable[[], Any]], float, float]:
        """Return a call of each kernel, the operations of each, and the bytes that it must move at least."""
        x, weight, gradient, padding = self._made(case, lanes)
        stride, kernel = [1, 1], weight.shape[2:4]
        operations = 2.0 * gradient.numel() * weight[0, 0].numel()
        moved = float(x.nbytes + weight.nbytes + gradient.nbytes)
        if available(x):
            calls: dict[str, Callable[[], Any]] = {
                "forward": partial(kernels.output_by_triton, x, weight, None, stride, padding),
                "images": partial(kernels.images_by_triton, gradient, weight, x.shape[2:4], stride, padding),
                "filters": partial(kernels.filters_by_triton, gradient, x, kernel, stride, padding),
            }
            return calls, operations, moved
        both = partial(torch.ops.covey.tiled_convolution_gradients, gradient, x, weight, stride, padding)
        forward = partial(torch.ops.covey.tiled_convolution, x, weight, None, stride, padding)
        return {"forward": forward, "images": partial(both, True), "filters": partial(both, False)}, operations, moved

    def _by_patches(self, case: Case, lanes: int) -> dict[str, float]:
        """Return microseconds of im2col; those of gradients are with the forward pass, less that."""
        x, weight, gradient, padding = self._made(case, lanes)
        x, weight, gradient = (one.movedim(-1, -3).contiguous() for one in (x, weight, gradient))

        def convolve(x: Tensor, weight: Tensor) -> Tensor:
            return patches_convolution(x, weight, None, (1, 1), tuple(padding), windows=False)

        stacked = vmap(convolve)
        forward = self._microseconds(lambda: stacked(x, weight))
        images = self._microseconds(lambda: vjp(lambda one: stacked(one, weight), x)[1](gradient))
        filters = self._microseconds(lambda: vjp(lambda one: stacked(x, one), weight)[1](gradient))
        return {"forward": forward, "images": images - forward, "filters": filters - forward}

    def _microseconds(self, call: Callable[[], Any]) -> float:
        """Return the microseconds of a call on the device; infinite if it fails."""
        try:
            return microseconds(call, self.device)
        except Exception as error:
            self.say(f"  does not run: {str(error).splitlines()[0][:120]}")
            return float("inf")

    def steps(self, helpers: list[tuple[dict[str, Any], "subprocess.Popen[str]"]]) -> None:
        """Have whole steps timed, one process after another."""
        rows: list[dict[str, Any]] = []
        self.found["steps"] = rows
        for row, helper in helpers:
            said = helper.communicate(json.dumps(self.best.get(row["workload"], {})) + "\n")[0].splitlines()
            if helper.returncode:
                self.say(f"  {row}: fails")
                self.found["right"] = False
                continue
            rows.append({**row, **json.loads(said[-1])})
            self.say(
                f"  {row['workload']}, {row['lanes']} lanes, {row['way']}: {rows[-1]['us']:.0f} µs a step, "
                f"{rows[-1]['us of best']:.0f} by the best; change of the parameters {rows[-1]['norm']:.6f}"
            )
            for micro, count, name in rows[-1]["spent"][:12]:
                self.say(f"    {micro:8.1f} µs in {count:4.1f} calls: {name[:90]}")
            self.write()

    def do(self, job: str) -> None:
        """Do a helper's job."""
        getattr(self, f"_{job}")(self.given.number)

    def _check(self, number: int) -> None:
        """Compare output and gradients with float64; compute them twice."""
        rows, (layer, image) = [], CHECKED[number]
        for precision in ("fp32", "tf32", "bf16"):
            torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
            dtype = COMPUTE_DTYPES[precision]
            error = worst_error(layer.to(self.device), image, dtype, self.device, 2 if self.given.toy else 7)
            limit = 1e-5 if precision == "fp32" else TOLERANCES[dtype]
            about = f"{tuple(layer.weight.shape)} on {image}, {precision}"
            same = self._same_bits(layer, image, dtype)
            rows.append({"layer": about, "error": error, "right": error <= limit and same, "same bits": same})
        print(json.dumps(rows))

    def _same_bits(self, layer: nn.Conv2d, image: tuple[int, ...], dtype: torch.dtype) -> bool:
        """True if gradients are the same to the bit twice."""
        x = torch.randn(2, 2 if self.given.toy else 50, *image[1:], image[0], device=self.device).to(dtype)
        weight = torch.randn(2, *layer.weight.movedim(1, -1).shape, device=self.device).to(dtype)
        given = list(layer.stride), [int(pad) for pad in layer.padding]
        y = torch.ops.covey.tiled_convolution(x, weight, None, *given)
        twice = [torch.ops.covey.tiled_convolution_gradients(y, x, weight, *given, True) for _ in range(2)]
        return all(torch.equal(one, other) for one, other in zip(*twice, strict=True))

    def _compile(self, number: int) -> None:
        """Compile a share of the kernels that `layers` times, for Triton to find in its cache."""
        jobs = [(name, kernel, given) for name in self.given.cases for kernel in TILINGS for given in TILINGS[kernel]]
        for name, kernel, given in jobs[number::HELPERS]:
            call = self._calls(CASES[name], 1)[0][kernel]
            # With few lanes pixels are summed in parts, which is another kernel.
            for tiling in {Tiling(*given), replace(Tiling(*given), programs=0)}:
                with tuned(**{kernel: tiling}), suppress(Exception):
                    call()

    def _step(self, lanes: int) -> None:
        """Compile a step, wait for the fastest tilings, and time it with the kernels as they are and with those."""
        model, shape, _, ways = STEPS[self.given.workload]
        terms = StepTerms(momentum=False, weight_decay=False, proximal=False, crop=0, flip=False)
        images = 64 if self.given.toy else 10_000
        step = MadeUpStep(model, shape, lanes, self.batch, images, terms, ways[self.given.way], self.device)
        replay = step.recorded()
        norm = float(step.change(replay).norm())
        print("ready", flush=True)
        best = {kernel: Tiling(*given) for kernel, given in json.loads(sys.stdin.readline() or "{}").items()}
        before = replayed(replay, self.device, 20)
        with tuned(**best):
            replay = step.recorded()
            after = replayed(replay, self.device, 20)
        print(
            json.dumps({"us": before, "us of best": after, "norm": norm, "spent": spent_in(replay, self.device)[:22]})
        )

    def _name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.on_gpu else "CPU"


def main() -> int:
    """Run the benchmark; the status is 1 if a kernel was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=names_of(PARTS, "part"), default=list(PARTS))
    parser.add_argument("--cases", type=names_of(CASES, "case"), default=list(CASES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--toy", action="store_true")
    for name in ("--job", "--workload", "--way"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        Bench(given).do(given.job)
        return 0
    return 0 if Bench(given).run() else 1


if __name__ == "__main__":
    sys.exit(main())
