"""Convolution, pool and ReLU as one operator on a GPU: right, how fast, and what a step of W2 gains by it.

    python benchmarks/fused.py --out OUT                 # all parts, about two minutes
    python benchmarks/fused.py --out OUT --parts steps,profile --lanes 100

Parts, each printed as soon as it is measured, and written to OUT/fused.json:

- `check`: kernels against PyTorch in float64, in float32, tf32 and bf16, on W2's layers and on odd ones; and twice the
  same bits.
- `compile`: nothing but the kernels that `tiles` times, which compiles them itself otherwise.
- `tiles`: microseconds of each kernel on W2's layers, in bf16, by how its work is cut up; the fastest first.
- `steps`: microseconds of a whole step of W2 in bf16, as the stacked runtime records it, with and without; and by how
  much the parameters of lanes differ after it.
- `profile`: where the device's time goes in a step, by kernel, with and without.

`--device cpu --toy` runs all of it in miniature, without Triton.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from benchmarks.name_list import names_of
from benchmarks.timed_steps import MadeUpStep, microseconds, replayed, spent_in
from covey.runtime.stacked.convolution import ConvAlgorithm
from covey.runtime.stacked.lane_step import COMPUTE_DTYPES, StepTerms
from covey.runtime.stacked.pooled_check import TOLERANCES, worst_error
from covey.runtime.stacked.pooled_convolution_tiles import TUNED, Tuning

PARTS = ("check", "compile", "steps", "profile", "tiles")
HELPERS = 8
"""Processes that compile."""

WAYS: dict[str, dict[str, ConvAlgorithm]] = {
    "kernel, slices": {"conv1": "kernel", "conv2": "slices"},
    "kernel, kernel": {"conv1": "kernel", "conv2": "kernel"},
    "fused, fused": {"conv1": "fused", "conv2": "fused"},
    "fused, kernel": {"conv1": "fused", "conv2": "kernel"},
}
"""Algorithms of W2's two convolutions; `fused` computes the pool and the ReLU too."""

CHECKED = [
    # layer, image
    (nn.Conv2d(3, 6, 5), (3, 32, 32)),
    (nn.Conv2d(6, 16, 5), (6, 14, 14)),
    (nn.Conv2d(1, 32, 5, padding=2), (1, 28, 28)),
    (nn.Conv2d(3, 5, (3, 4), padding=(1, 2), bias=False), (3, 13, 10)),
    (nn.Conv2d(2, 70, 2, padding=1), (2, 9, 9)),
]

TILES = {
    "forward": [(128, 32768, 4, 12), (128, 32768, 4, 6), (128, 32768, 4, 24), (128, 65536, 8, 8), (64, 16384, 4, 16)],
    "filters": [(128, 32768, 4, 12), (128, 32768, 4, 6), (128, 32768, 4, 3), (128, 65536, 8, 4), (64, 16384, 4, 8)],
    "images": [(64, 16384, 4, 2), (64, 16384, 4, 4), (64, 16384, 4, 8), (64, 16384, 8, 2), (128, 32768, 8, 1)],
}
"""Most runs, most bytes, warps, programs for each multiprocessor."""

SPANS = [(2, 256, 4), (2, 128, 3)]
"""Others for the gradient of images: columns and most elements of a block, programs for each multiprocessor."""


Call = tuple[str, Callable[[], Any], int]
"""A layer, a call of a kernel for it, and bytes."""


class Bench:
    """The parts, on one device."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.device = torch.device(given.device)
        self.on_gpu = self.device.type == "cuda"
        self.batch = 4 if given.toy else 400
        self.lanes: list[int] = [2] if given.toy else [int(one) for one in given.lanes.split(",")]
        self.found: dict[str, Any] = {"torch": torch.__version__, "device": self._name()}
        self.graphs: dict[tuple[int, str], Callable[[], None]] = {}
        self.begin = time.monotonic()

    def run(self) -> bool:
        """Run the parts that are asked for; return True if every kernel was right."""
        helpers = self._helpers() if self.on_gpu and self.given.only is None else []
        for helper in helpers:
            said = helper.communicate()[0]
            if said is not None:
                self.say(said.rstrip())
                self.found["right"] = self.found.get("right", True) and helper.returncode == 0
        for part in self.given.parts:
            if part in ("check", "compile") and helpers:
                continue
            if self.given.only is None:
                self.say(f"\n{part}, after {time.monotonic() - self.begin:.0f} s")
            getattr(self, part)()
            self.write()
        return bool(self.found.get("right", True))

    def _helpers(self) -> list["subprocess.Popen[str]"]:
        """Start processes that check and compile kernels at the same time: each takes seconds to compile."""
        jobs = [["check", "--only", str(number)] for number in range(len(CHECKED)) if "check" in self.given.parts]
        jobs += [["compile", "--only", str(number)] for number in range(HELPERS) if "tiles" in self.given.parts]
        if "steps" in self.given.parts:
            # Their steps are compiled once more here, from the compiler's cache.
            steps = product(self.given.ways, map(str, self.lanes))
            jobs += [["steps", "--only", "0", "--ways", way, "--lanes", lanes] for way, lanes in steps]
        command = [sys.executable, __file__, *(["--toy"] if self.given.toy else [])]
        command += ["--device", self.given.device, "--parts"]
        return [
            subprocess.Popen(
                [*command, *job],
                stdout=subprocess.PIPE if job[0] == "check" else subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"},
            )
            for job in jobs
        ]

    def say(self, text: str) -> None:
        print(text, flush=True)

    def write(self) -> None:
        if self.given.out:
            self.given.out.mkdir(parents=True, exist_ok=True)
            (self.given.out / "fused.json").write_text(json.dumps(self.found, indent=1), encoding="utf-8")

    def check(self) -> None:
        """Compare output and gradients with float64; compute them twice."""
        rows, right = [], True
        for layer, image in CHECKED if self.given.only is None else [CHECKED[self.given.only]]:
            for precision in ("fp32", "tf32", "bf16"):
                torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
                dtype = COMPUTE_DTYPES[precision]
                samples = 2 if self.given.toy else 37
                error = worst_error(layer.to(self.device), image, dtype, self.device, samples)
                limit = 1e-5 if precision == "fp32" else TOLERANCES[dtype]
                same = self._same_bits(layer, image, dtype)
                about = f"{tuple(layer.weight.shape)} on {image}"
                rows.append({"layer": about, "precision": precision, "error": error, "limit": limit, "same bits": same})
                right = right and error <= limit and same
                verdict = "right" if error <= limit and same else "WRONG"
                self.say(f"  {about:34} {precision}: error {error:.1e} of {limit:.0e}, same bits {same}: {verdict}")
        self.found["check"] = rows
        self.found["right"] = right

    def _same_bits(self, layer: nn.Conv2d, image: tuple[int, ...], dtype: torch.dtype) -> bool:
        """True if gradients of many samples are the same to the bit twice."""
        padding = [int(pad) for pad in layer.padding]
        x = torch.randn(2, 8 if self.given.toy else 400, *image, device=self.device).to(dtype)
        weight = torch.randn(2, *layer.weight.shape, device=self.device).to(dtype)
        y, chosen = torch.ops.covey.pooled_convolution(x, weight, None, padding)
        twice = [
            torch.ops.covey.pooled_convolution_filters(y, chosen, x, weight.shape[3:], padding, True) for _ in range(2)
        ]
        return all(torch.equal(one, other) for one, other in zip(*twice, strict=True))

    def compile(self) -> None:
        """Compile a share of the kernels that `tiles` times, for Triton to find in its cache."""
        for name, calls in self._kernels(1):
            pairs = [(tuning, call) for tuning in self._tunings(name) for _, call, _ in calls]
            for tuning, call in pairs[self.given.only :: HELPERS]:
                with tuned(name, tuning), suppress(Exception):
                    call()

    def tiles(self) -> None:
        """Time each kernel alone on W2's layers, cut up in several ways."""
        torch.backends.cuda.matmul.allow_tf32 = True
        rows: list[dict[str, Any]] = []
        for lanes in self.lanes:
            for name, calls in self._kernels(lanes):
                timed = []
                for tuning in self._tunings(name):
                    with tuned(name, tuning):
                        for layer, call, _ in calls:
                            timed.append((self._microseconds(call), layer, tuning))
                for layer in sorted({layer for _, layer, _ in timed}):
                    best = sorted((one for one in timed if one[1] == layer), key=lambda one: one[0])
                    rows += [
                        {"lanes": lanes, "kernel": name, "layer": layer, "us": micro, **asdict(tuning)}
                        for micro, _, tuning in best
                    ]
                    moved = next(one[2] for one in calls if one[0] == layer) / best[0][0] / 1e6
                    fastest = "; ".join(map(described, best[:4]))
                    self.say(f"  {lanes} lanes, {layer}, {name}: {moved:.2f} TB/s; {fastest}")
        self.found["tiles"] = rows

    def _tunings(self, name: str) -> Iterator[Tuning]:
        cut = TILES[name][:1] if self.given.toy else TILES[name]
        made = [Tuning(*one) for one in cut]
        yield from made
        if name == "images":
            for span, elements, programs in SPANS:
                yield replace(made[0], span=span, elements=elements, programs=programs)

    def _kernels(self, lanes: int) -> Iterator[tuple[str, list[Call]]]:
        """Yield each kernel's name with a call for each of W2's layers, and the bytes that it must move."""
        ops, dtype = torch.ops.covey, torch.bfloat16 if self.on_gpu else torch.float32
        forward: list[Call] = []
        filters: list[Call] = []
        images: list[Call] = []
        for layer, (convolution, image) in zip(("conv1", "conv2"), CHECKED[:2], strict=True):
            x = torch.randn(lanes, self.batch, *image, device=self.device).to(dtype)
            weight = torch.randn(lanes, *convolution.weight.shape, device=self.device).to(dtype)
            bias = torch.randn(lanes, len(convolution.weight), device=self.device).to(dtype)
            y, chosen = ops.pooled_convolution(x, weight, bias, [0, 0])
            gradient = torch.randn_like(y)
            size, none = list(image[1:]), [0, 0]
            moved = x.nbytes + y.nbytes + chosen.nbytes
            of_filters = partial(ops.pooled_convolution_filters, gradient, chosen, x, [5, 5], none, True)
            of_images = partial(ops.pooled_convolution_images, gradient, chosen, weight, size, none)
            forward.append((layer, partial(ops.pooled_convolution, x, weight, bias, none), moved))
            filters.append((layer, of_filters, moved))
            images.append((layer, of_images, moved))
        yield from (("forward", forward), ("filters", filters), ("images", images[1:]))

    def _microseconds(self, call: Callable[[], Any]) -> float:
        """Return the microseconds of a call on the device; infinite if it fails."""
        try:
            return microseconds(call, self.device)
        except Exception as error:
            self.say(f"  does not run: {str(error).splitlines()[0][:120]}")
            return float("inf")

    def steps(self) -> None:
        """Time whole steps of W2, and compare the parameters after one."""
        rows = []
        for lanes in self.lanes:
            first: Tensor | None = None
            for way in self.given.ways:
                at = time.monotonic()
                try:
                    replay, after = self._step(lanes, way)
                except Exception as error:
                    self.say(f"  {lanes} lanes, {way}: fails: {str(error).splitlines()[0][:160]}")
                    continue
                ready = time.monotonic() - at
                micro = replayed(replay, self.device, 20)
                first = after if first is None else first
                apart = float((after - first).norm() / first.norm())
                rate = lanes * self.batch / micro
                rows.append({"lanes": lanes, "way": way, "us": micro, "apart": apart, "ready": ready})
                self.say(
                    f"  {lanes:4} lanes, {way}: {micro:8.0f} µs a step, {rate:6.2f} million client-samples/s; "
                    f"change of the parameters {apart:.1e} from the first; ready in {ready:.0f} s"
                )
                self.graphs[lanes, way] = replay
        self.found["steps"] = rows

    def _step(self, lanes: int, way: str) -> tuple[Callable[[], None], Tensor]:
        """Return a replay of W2's step, checked as the runtime checks it, and the change of all parameters by one."""
        terms = StepTerms(momentum=True, weight_decay=True, proximal=False, crop=4, flip=True)
        images = 64 if self.given.toy else 50_000
        given = lanes, self.batch, images, terms, WAYS[way], self.device
        step = MadeUpStep("tutorial-cnn", (3, 32, 32), *given)
        replay = step.recorded()
        return replay, step.change(replay).clone()

    def profile(self) -> None:
        """Print where the device's time goes in a step."""
        rows = []
        lanes = self.lanes[-1]
        for way in (self.given.ways[0], "fused, fused"):
            replay = self.graphs.get((lanes, way))
            if replay is None:
                continue
            spent = spent_in(replay, self.device)
            self.say(f"  {lanes} lanes, {way}: {sum(one[0] for one in spent):.0f} µs a step, of which")
            for micro, count, name in spent[:22]:
                rows.append({"way": way, "kernel": name, "us": micro, "calls": count})
                self.say(f"    {micro:8.1f} µs in {count:4.1f} calls: {name[:90]}")
        self.found["profile"] = rows

    def _name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.on_gpu else "CPU"


@contextmanager
def tuned(name: str, tuning: Tuning) -> Iterator[None]:
    """Have a kernel's work cut up in another way."""
    before = TUNED[name]
    TUNED[name] = tuning
    try:
        yield
    finally:
        TUNED[name] = before


def described(one: tuple[float, str, Tuning]) -> str:
    micro, _, tuning = one
    cut = f"{tuning.runs}/{tuning.bytes // 1024}k/w{tuning.warps}/p{tuning.programs}/s{tuning.span}/e{tuning.elements}"
    return f"{micro:.0f} µs ({cut})"


def main() -> int:
    """Run the benchmark; the status is 1 if a kernel was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=names_of(PARTS, "part"), default=[part for part in PARTS if part != "compile"])
    parser.add_argument("--ways", type=lambda text: text.split(";"), default=list(WAYS)[:3], help="separated by ;")
    parser.add_argument("--lanes", default="10,100")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--only", type=int, help="number of a layer to check, or of a share to compile")
    return 0 if Bench(parser.parse_args()).run() else 1


if __name__ == "__main__":
    sys.exit(main())
