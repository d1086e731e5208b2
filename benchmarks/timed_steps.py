"""Operators and whole steps of a stack, made up and timed: what the benchmarks of kernels share."""

import time
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor

from covey.client.learner import Precision
from covey.data.dataset import Dataset
from covey.model import build_model
from covey.model.cuda_graph import record_graph, warm_up
from covey.runtime.stacked.convolution import ConvAlgorithm
from covey.runtime.stacked.engine import Engine
from covey.runtime.stacked.graph_capture import GraphSteps
from covey.runtime.stacked.lane_step import COMPUTE_DTYPES, Lanes, StepTerms


def microseconds(call: Callable[[], Any], device: torch.device) -> float:
    """Return the microseconds of a call on the device."""
    if device.type != "cuda":
        return timed_on_host(call)
    warm_up(call, device, times=2)

    def often() -> None:
        for _ in range(5):
            call()

    return replayed(record_graph(often).replay, device) / 5


def replayed(replay: Callable[[], None], device: torch.device, times: int = 12) -> float:
    """Return the median microseconds of a replay."""
    if device.type != "cuda":
        return timed_on_host(replay)
    for _ in range(2):
        replay()
    events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]  # type: ignore[no-untyped-call]
    events[0].record()
    for event in events[1:]:
        replay()
        event.record()
    torch.cuda.synchronize()
    return 1000 * float(median(one.elapsed_time(other) for one, other in pairwise(events)))


def timed_on_host(call: Callable[[], Any]) -> float:
    """Return the microseconds of one call."""
    begin = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - begin)


def spent_in(replay: Callable[[], None], device: torch.device) -> list[tuple[float, float, str]]:
    """Return where the device's time goes in a replay: microseconds, calls, kernel; the longest first."""
    on_gpu = device.type == "cuda"
    times = 5 if on_gpu else 1
    kinds = [torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as profiler:
        for _ in range(times):
            replay()
        if on_gpu:
            torch.cuda.synchronize()
    spent = [
        (one.self_device_time_total if on_gpu else one.self_cpu_time_total, one.count, one.key)
        for one in profiler.key_averages()
    ]
    return [(micro / times, count / times, name) for micro, count, name in sorted(spent, reverse=True)]


class MadeUpStep:
    """A step of a model on made-up images, as the stacked runtime compiles, records and checks it."""

    def __init__(
        self,
        model: str,
        shape: tuple[int, ...],
        lanes: int,
        batch: int,
        images: int,
        terms: StepTerms,
        algorithms: Mapping[str, ConvAlgorithm],
        device: torch.device,
        updated: Collection[str] = (),
        *,
        busy: bool = False,
    ) -> None:
        """`updated` are linear layers moved by an operator of their own; `busy` leaves no lane idle."""
        generator = torch.Generator().manual_seed(0)
        module = build_model(model, {}, shape, 10, 0)
        x = torch.randint(0, 256, (images, *shape), dtype=torch.uint8, generator=generator)
        y = torch.arange(images) % 10
        classes, mean, deviation = tuple("0123456789"), (128.0,) * shape[0], (48.0,) * shape[0]
        dataset = Dataset("synthetic", x, y, x[:10], y[:10], classes, mean, deviation)
        precision: Precision = "bf16" if device.type == "cuda" else "fp32"
        self._engine = Engine(module, dataset, precision, device)
        self._engine._set_arithmetic()
        given = terms, self._engine.dtype, COMPUTE_DTYPES[precision], device, len(classes)
        self._lanes = Lanes.of(self._engine.layout, lanes, *given)
        self._batch, self._terms, self._algorithms, self._updated = batch, terms, dict(algorithms), updated
        row = schedule_of(lanes, batch, images, y)
        if busy:
            row["rate"].fill_(0.05)
        unused = [] if terms.crop else ["crops", "flips"]
        self._buffers = {name: value.to(device) for name, value in row.items() if name not in unused}
        self._begin = {name: value.detach().to(device) for name, value in module.named_parameters()}
        for name, value in self._begin.items():
            self._lanes.parameters[name].copy_(value.expand_as(self._lanes.parameters[name]))
            self._lanes.working[name].copy_(self._lanes.parameters[name])
        self._lanes.settings[:, 0], self._lanes.settings[:, 1] = 0.9, 1e-4
        self._kept = [value.clone() for value in self._lanes.tensors()]
        self._graphs: GraphSteps | None = None
        self._recorded: Any = None

    def recorded(self) -> Callable[[], None]:
        """Return a replay of the step; called again, it records the step anew, with kernels cut up as they are now."""
        engine = self._engine
        if engine.device.type != "cuda":
            step = engine.make_step(self._terms, self._algorithms, self._updated)
            return lambda: step(self._lanes, engine.data.x, **{name: one[0] for name, one in self._buffers.items()})
        if self._graphs is None:
            self._graphs = GraphSteps(engine, self._lanes, self._terms, self._batch)
            self._graphs.buffers = self._buffers
            self._recorded = self._graphs._record_with(self._algorithms, self._updated)
        else:
            self._recorded = self._graphs._record(self._recorded.step)
        graphs, recorded = self._graphs, self._recorded

        def replay() -> None:
            graphs.counter.zero_()
            recorded.replay()

        return replay

    def change(self, replay: Callable[[], None]) -> Tensor:
        """Return the change of all parameters by one step, `[lanes, parameters]`."""
        for place, value in zip(self._lanes.tensors(), self._kept, strict=True):
            place.copy_(value)
        replay()
        after = self._lanes.parameters
        return torch.cat(
            [(after[name] - one).reshape(len(after[name]), -1) for name, one in self._begin.items()], dim=1
        )


def schedule_of(lanes: int, batch: int, images: int, labels: Tensor) -> dict[str, Tensor]:
    """Return a schedule's first row, `[1, lanes, ...]`; the first lane's last batch is not full, the last lane idle."""
    generator = torch.Generator().manual_seed(1)
    sample = torch.randint(0, images, (1, lanes, batch), generator=generator)
    weight = torch.full((1, lanes, batch), 1 / batch)
    weight[0, 0] = 0.0
    weight[0, 0, : batch // 2] = 2 / batch
    rate = torch.full((1, lanes), 0.05)
    rate[0, -1] = 0.0
    return {
        "sample": sample.int(),
        "label": labels[sample],
        "weight": weight,
        "count": torch.full((1, lanes), float(batch)),
        "rate": rate,
        "key": torch.zeros(1, lanes, dtype=torch.int64),
        "crops": torch.randint(0, 9, (1, lanes, batch, 2), generator=generator).int(),
        "flips": torch.rand(1, lanes, batch, generator=generator) < 0.5,
    }
