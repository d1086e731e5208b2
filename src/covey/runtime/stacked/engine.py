"""The engine of the stacked runtime: cuts the clients of many requests into launches that fit the device."""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from covey import randomness
from covey.client.batches import steps_of
from covey.client.holdout import trained_on
from covey.client.learner import Learner, Precision
from covey.core.trainer import Packing
from covey.data.dataset import Dataset
from covey.model.attention import in_plain_attention
from covey.model.frozen import cast_constants, start_training
from covey.model.layout import Layout
from covey.runtime.stacked.autotune import FEW_LANES, Signature, fastest_lanes
from covey.runtime.stacked.convolution import ConvAlgorithm, has_many_channels, with_kernels
from covey.runtime.stacked.device_data import DeviceDataset
from covey.runtime.stacked.kept_step import KeptStep, can_be_kept
from covey.runtime.stacked.lane_schedule import LaunchShape, Segment, pack, suitable_lanes, without_giants
from covey.runtime.stacked.lane_step import COMPUTE_DTYPES, Step, StepTerms, make_step
from covey.runtime.stacked.launcher import Launcher, TrainRequest, TrainResult
from covey.runtime.stacked.stack_module import stack_module
from covey.runtime.stacked.step_key import step_key
from covey.runtime.stacked.triton_support import available

MOST_LANES = 512
"""More lanes than this make no step faster, and each takes memory."""

COPIES = 6
"""Copies of the model in a lane: parameters, gradients, momentum, the received model, and those of the step."""


class LaunchKind(NamedTuple):
    """Launches of one kind differ only in their clients and their number of lanes."""

    shape: LaunchShape
    terms: StepTerms


class Engine:
    """One model and one dataset on one device; trains the clients of many requests at once."""

    def __init__(
        self, module: nn.Module, dataset: Dataset, precision: Precision, device: torch.device, memory: int = 0
    ) -> None:
        self.device = device
        self.precision = precision
        self.data = DeviceDataset(dataset, device, memory)
        scored = copy.deepcopy(module).to(device)
        self.has_kernels = available(torch.empty(0, dtype=COMPUTE_DTYPES[precision], device=device))
        self.learner = Learner(with_kernels(scored) if self.has_kernels else scored, dataset, precision, device)
        if device.type == "cuda" and not memory:
            self.learner.chunk = 10_000
        self.layout = Layout.of(module)
        self._traceable = self.layout.head[0].name if self.layout.head else ""
        self.dtype = self.learner.dtype
        self.memory = memory
        self.stacks_scores = self.compiles = device.type == "cuda"
        self.most_lanes = self._first_guess()
        self.module = module
        self._launchers: dict[tuple[LaunchKind, int], Launcher] = {}
        """By kind and number of lanes."""
        self._lost: dict[LaunchKind, float] = {}
        """Steps lost by using lanes that were compiled already (see `suitable_lanes`)."""

    @property
    def for_speed(self) -> bool:
        """True if autotuning pays: on a GPU, but not in double precision, which serves checks."""
        return self.device.type == "cuda" and self.precision != "fp64"

    def _first_guess(self) -> int:
        """Return lanes that may fit into the memory; limit what the process takes, if there is a limit."""
        if self.device.type != "cuda":
            return MOST_LANES
        if self.memory:
            total = torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, self.memory / total))
        return self._lanes_in_memory(COPIES)

    def _lanes_in_memory(self, copies: int) -> int:
        """Return lanes of so many copies of the model each that fit into half the device's memory."""
        memory = self.memory or torch.cuda.get_device_properties(self.device).total_memory
        return max(1, min(MOST_LANES, memory // (2 * copies * self.layout.size * self.dtype.itemsize)))

    def _most_lanes(self, terms: StepTerms) -> int:
        """Return the most lanes of a launch: Adam has a moment more than SGD, and a trainer has copies of its own."""
        more = int(terms.adam)
        if terms.trainer is not None:
            part = terms.trainer.part
            fields = sum(Packing(one, self.layout).size for one in (part.sent, part.kept))
            more += 2 + -(-fields // max(1, self.layout.trainable))
        if not more or self.device.type != "cuda":
            return self.most_lanes
        return min(self.most_lanes, self._lanes_in_memory(COPIES + more))

    def execute(
        self, requests: Sequence[TrainRequest], meanwhile: Callable[[], None] | None = None
    ) -> list[TrainResult]:
        """Train every client of every request; `meanwhile` is called once the device has its first steps."""
        self._set_arithmetic()
        results = TrainResult.of([one.order for one in requests], self.layout, self.dtype, self._home(requests))
        groups: dict[LaunchShape, list[Segment]] = {}
        for number, request in enumerate(requests):
            order = request.order
            keys = randomness.keys(request.seed, order.round, order.clients).tolist()
            samples = trained_on(request.tables.sizes[order.clients], order.holdout)
            steps = order.work.epochs * steps_of(samples, order.work)
            about = zip(order.clients.tolist(), samples.tolist(), steps.tolist(), keys, strict=True)
            traced = any(probe.wants_steps() for probe in order.probes)
            trainer = None if order.trainer is None else order.trainer.ref
            segments = [
                Segment(number, position, *one, order.work, order.round, order.holdout, traced, trainer)
                for position, one in enumerate(about)
            ]
            # Clients of an order differ in shape only where a batch is all that they hold.
            for some in [segments] if order.work.batch and segments else [[one] for one in segments]:
                groups.setdefault(some[0].shape, []).extend(some)
        for shape, segments in groups.items():
            for part in without_giants(segments):
                self._launch(shape, part, requests, results, meanwhile or _nothing)
        return results

    def make_step(
        self, terms: StepTerms, algorithms: Mapping[str, ConvAlgorithm], updated: Collection[str] = ()
    ) -> Step:
        """Return the step with the given convolution algorithms, to be compiled at first use on a GPU.

        The linear layers in `updated` are moved by an operator of their own, without a gradient in memory.
        """
        module = start_training(stack_module(self.module, algorithms, updated).to(self.device, self.dtype))
        learner, compute = self.learner, COMPUTE_DTYPES[self.precision]
        cast_constants(module, compute)
        step = make_step(module, terms, learner.scale, learner.shift, self.dtype, compute, learner.task)
        if self.compiles:
            step = self._compiled(step, module, terms)
        # A model of somebody's own may call PyTorch's fused attention, for which vmap has no rule.
        return step if type(self.module).__module__.startswith("covey.") else in_plain_attention(step)

    def _compiled(self, step: Step, module: nn.Module, terms: StepTerms) -> Step:
        """Return a step that is compiled at first use, or loaded if it was kept."""
        key = step_key(module, terms, self.learner.task, self._machine, self.precision) if can_be_kept() else ""
        if not key:
            return torch.compile(step, dynamic=False)
        constants = [self.learner.scale, self.learner.shift, *module.parameters(), *module.buffers()]
        return KeptStep(step, constants, key)

    @property
    def _machine(self) -> str:
        return f"{torch.cuda.get_device_name(self.device)} torch {torch.__version__}"

    def signature(self, batch: int, terms: StepTerms) -> Signature:
        """Return the cache key of autotuning as a function of the number of lanes."""
        shapes = [slot.shape for slot in self.layout.parameters]
        # Gradients of single samples are other convolutions than gradients of batches.
        alone = ["single samples"] if terms.trainer is not None and terms.trainer.part.private else []
        machine, about = self._machine, (type(self.module).__name__, shapes, tuple(self.data.x.shape[1:]), *alone)
        return lambda lanes: f"{machine} {(*about, lanes, batch, self.precision)}"

    def _home(self, requests: Sequence[TrainRequest]) -> torch.device:
        """Return where trained models are kept: the device, or the host if they need a quarter of its memory."""
        if self.device.type != "cuda":
            return self.device
        wanted = sum(len(one.order.clients) for one in requests) * self.layout.size * self.dtype.itemsize
        limit = self.memory or torch.cuda.get_device_properties(self.device).total_memory
        return self.device if wanted < limit / 4 else torch.device("cpu")

    def _set_arithmetic(self) -> None:
        """Use full float32 products, unless tf32 was asked for; with bf16, what remains float32 uses tf32."""
        if self.device.type == "cuda":
            # Every number of lanes and set of terms is compiled once; by default Dynamo gives up after eight.
            torch._dynamo.config.recompile_limit = 256
            fast = self.precision in ("tf32", "bf16")
            torch.backends.cuda.matmul.allow_tf32 = fast
            torch.backends.cudnn.allow_tf32 = fast
            # The same seed gives the same bits: no algorithm whose sums depend on the order of threads.
            torch.backends.cudnn.deterministic = True

    def _launch(
        self,
        shape: LaunchShape,
        segments: list[Segment],
        requests: Sequence[TrainRequest],
        results: list[TrainResult],
        meanwhile: Callable[[], None],
    ) -> None:
        """Train clients that share a shape, in as many lanes as the memory holds."""
        alone = not self._launchers
        while True:
            lanes = self.most_lanes
            try:
                lanes = self._lanes_for(shape, segments, requests, meanwhile)
                visits = pack(segments, lanes)
                losses = self._launcher(shape, segments, lanes).run(visits, requests, results)
                break
            except torch.OutOfMemoryError:
                if alone and lanes == 1:
                    raise
            # The memory of other launchers is freed first; only then are there fewer lanes.
            self.most_lanes = lanes // 2 if alone else self.most_lanes
            alone = True
            self._launchers.clear()
            torch.cuda.empty_cache()
        # The steps are in the device's queue; their losses are waited for.
        meanwhile()
        for visit, total in zip(visits, losses.tolist(), strict=True):
            one = visit.segment
            results[one.request].losses[one.position] = total / (one.samples * one.work.epochs)

    def _lanes_for(
        self,
        shape: LaunchShape,
        segments: list[Segment],
        requests: Sequence[TrainRequest],
        meanwhile: Callable[[], None],
    ) -> int:
        """Return the number of lanes for a launch; on a GPU, an existing number if it is good enough."""
        kind = LaunchKind(shape, _terms(segments, self._traceable))
        compiled = self.device.type == "cuda"
        made = [lanes for made_kind, lanes in self._launchers if compiled and made_kind == kind]
        most = self._most_lanes(kind.terms)
        lanes, self._lost[kind] = suitable_lanes(segments, most, made, self._lost.get(kind, 0.0))
        if compiled and lanes not in made:
            # Compiling takes minutes, which a kill must not add to what it costs.
            meanwhile()
        # With many channels a step is matrix products, which are as fast in any number.
        splits = self.for_speed and lanes not in made and lanes > FEW_LANES and not has_many_channels(self.module)
        return self._fastest_lanes(shape, segments, requests, lanes) if splits else lanes

    def _fastest_lanes(
        self, shape: LaunchShape, segments: list[Segment], requests: Sequence[TrainRequest], most: int
    ) -> int:
        """Return `most` lanes, or fewer if the launch is faster in several turns."""
        before = set(self._launchers)
        signature = self.signature(shape.batch, _terms(segments, self._traceable))
        lanes = fastest_lanes(most, signature, partial(self._trial, shape, segments, requests))
        # Launchers made only for timing give their memory back.
        for key in self._launchers.keys() - before:
            if key[1] != lanes:
                del self._launchers[key]
        return lanes

    def _trial(
        self, shape: LaunchShape, segments: list[Segment], requests: Sequence[TrainRequest], lanes: int
    ) -> float:
        """Estimate the seconds of a launch with so many lanes."""
        return self._launcher(shape, segments, lanes).trial(pack(segments, lanes), requests)

    def _launcher(self, shape: LaunchShape, segments: list[Segment], lanes: int) -> Launcher:
        """Return the launcher for these clients, made now if there is none."""
        terms = _terms(segments, self._traceable)
        key = LaunchKind(shape, terms), lanes
        if key not in self._launchers:
            if self.device.type != "cuda":
                # Nothing is compiled on a CPU: launchers are cheap to make, and not kept in every size.
                self._launchers.clear()
            self._launchers[key] = Launcher(self, terms, lanes, shape.batch)
        return self._launchers[key]


def _nothing() -> None:
    pass


def _terms(segments: list[Segment], head: str = "") -> StepTerms:
    """Return the terms that any of these clients needs; `head` is the parameter that is traced if one is."""
    # Clients of one request have the same work.
    of_request = {one.request: one for one in segments}
    works = [one.work for one in of_request.values()]
    return StepTerms(
        momentum=any(work.momentum for work in works),
        weight_decay=any(work.weight_decay for work in works),
        proximal=any(work.proximal for work in works),
        adam=works[0].optimizer != "sgd",
        decoupled=works[0].optimizer == "adamw",
        clip=any(work.clip for work in works),
        crop=works[0].crop,
        flip=works[0].flip,
        traced=head if any(one.traced for one in of_request.values()) else "",
        trainer=segments[0].trainer,
    )
