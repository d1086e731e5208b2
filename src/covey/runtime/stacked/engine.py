"""The engine behind the stacked runtime: what clients of many orders train, cut into launches that fit the device."""

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from covey import randomness
from covey.client.learner import Learner, Precision
from covey.data.dataset import Dataset
from covey.model.layout import Layout
from covey.runtime.stacked.convolution import has_many_channels, nearest, read_cache, with_kernels, write_cache
from covey.runtime.stacked.device_data import Gallery
from covey.runtime.stacked.kernels import available
from covey.runtime.stacked.lane_schedule import Segment, pack, segment, suitable_lanes, without_giants
from covey.runtime.stacked.launcher import COMPUTE, Job, Launcher, Trained
from covey.runtime.stacked.sgd_step import Terms

MOST_LANES = 512
"""More lanes than this make no step faster, and every one of them takes memory."""

FEW_LANES = 64
"""A stack of no more lanes than this is not split; of a larger one it is measured whether parts are faster."""


class Engine:
    """One model and one data set on one device; trains the clients of many orders at once."""

    def __init__(
        self, module: nn.Module, dataset: Dataset, precision: Precision, device: torch.device, memory: int = 0
    ) -> None:
        self.device = device
        self.precision = precision
        self.gallery = Gallery(dataset, device)
        scored = copy.deepcopy(module).to(device)
        self.has_kernels = available(torch.empty(0, dtype=COMPUTE[precision], device=device))
        self.learner = Learner(with_kernels(scored) if self.has_kernels else scored, dataset, precision, device)
        if device.type == "cuda" and not memory:
            self.learner.chunk = 10_000
        self.layout = Layout.of(module)
        self.dtype = self.learner.dtype
        self.memory = memory
        self.stacks_scores = device.type == "cuda"
        self.most_lanes = self._first_guess()
        self.module = module
        self._launchers: dict[tuple[object, int], Launcher] = {}
        self._lost: dict[tuple[object, Terms], float] = {}

    @property
    def for_speed(self) -> bool:
        """Whether measuring pays: on a GPU, unless in double precision, which is for checking and not for speed."""
        return self.device.type == "cuda" and self.precision != "fp64"

    def _first_guess(self) -> int:
        """Lanes that may fit: parameters, gradients, momentum, received models and copies in half the memory."""
        if self.device.type != "cuda":
            return MOST_LANES
        total = torch.cuda.get_device_properties(self.device).total_memory
        if self.memory:
            torch.cuda.set_per_process_memory_fraction(min(1.0, self.memory / total))
        return max(1, min(MOST_LANES, (self.memory or total) // (12 * self.layout.size * self.dtype.itemsize)))

    def execute(self, jobs: Sequence[Job]) -> list[Trained]:
        """Train every client of every job."""
        self._set_arithmetic()
        results = [
            Trained(
                torch.empty(len(job.order.clients), self.layout.size, dtype=self.dtype, device=self._home(jobs)),
                np.zeros(len(job.order.clients)),
            )
            for job in jobs
        ]
        groups: dict[tuple[object, ...], list[Segment]] = {}
        for number, job in enumerate(jobs):
            order = job.order
            places = randomness.keys(job.seed, order.round, order.clients).tolist()
            sizes = job.holdings.sizes[order.clients].tolist()
            for position, client in enumerate(order.clients.tolist()):
                place, held = places[position], order.holdout
                one = segment(number, position, client, sizes[position], order.work, order.round, place, held)
                groups.setdefault(_shape(one), []).append(one)
        for shape, segments in groups.items():
            for part in without_giants(segments):
                self._launch(shape, part, jobs, results)
        return results

    def _home(self, jobs: Sequence[Job]) -> torch.device:
        """Where trained models are kept: on the device, unless they would take a quarter of its memory."""
        if self.device.type != "cuda":
            return self.device
        wanted = sum(len(job.order.clients) for job in jobs) * self.layout.size * self.dtype.itemsize
        limit = self.memory or torch.cuda.get_device_properties(self.device).total_memory
        return self.device if wanted < limit / 4 else torch.device("cpu")

    def _set_arithmetic(self) -> None:
        """float32 products in full, unless tf32 was asked for; bf16 leaves what is float32 to tf32."""
        if self.device.type == "cuda":
            # Every number of lanes and set of terms is compiled once; the default gives up after eight.
            torch._dynamo.config.recompile_limit = 256
            fast = self.precision in ("tf32", "bf16")
            torch.backends.cuda.matmul.allow_tf32 = fast
            torch.backends.cudnn.allow_tf32 = fast
            # The same seed gives the same run: no algorithm that adds in whatever order threads come.
            torch.backends.cudnn.deterministic = True

    def _launch(
        self, shape: tuple[object, ...], segments: list[Segment], jobs: Sequence[Job], results: list[Trained]
    ) -> None:
        """Train clients that share a shape, in as many lanes as the memory holds."""
        alone = not self._launchers
        while True:
            lanes = self.most_lanes
            try:
                lanes = self._lanes_for(shape, segments, jobs)
                visits = pack(segments, lanes)
                losses = self._launcher(shape, segments, lanes).run(visits, jobs, results)
                break
            except torch.OutOfMemoryError:
                if alone and lanes == 1:
                    raise
            # What launches of other shapes hold goes first; only then are there fewer lanes.
            self.most_lanes = lanes // 2 if alone else self.most_lanes
            alone = True
            self._launchers.clear()
            torch.cuda.empty_cache()
        for visit, total in zip(visits, losses.tolist(), strict=True):
            one = visit.segment
            results[one.job].losses[one.position] = total / (one.samples * one.work.epochs)

    def _lanes_for(self, shape: tuple[object, ...], segments: list[Segment], jobs: Sequence[Job]) -> int:
        """The number of lanes for a launch; on a GPU, where each is compiled, one that exists if it will do."""
        terms = self._terms(segments)
        compiled = self.device.type == "cuda"
        made = [launcher.count for key, launcher in self._launchers.items() if compiled and key[0] == (shape, terms)]
        lanes, self._lost[shape, terms] = suitable_lanes(
            segments, self.most_lanes, made, self._lost.get((shape, terms), 0.0)
        )
        # Products of matrices are as fast in any number.
        splits = self.for_speed and lanes not in made and lanes > FEW_LANES and not has_many_channels(self.module)
        return self._fastest_lanes(shape, segments, jobs, lanes) if splits else lanes

    def _fastest_lanes(self, shape: tuple[object, ...], segments: list[Segment], jobs: Sequence[Job], most: int) -> int:
        """All at once, or half of them at a time, or a quarter: halved as long as the whole takes less time."""
        place = self.signatures(int(str(shape[0])))
        known = nearest(read_cache("lanes"), place, most)
        if known is not None:
            number, kept = known
            parts = max(1, round(number / int(kept)))
            return -(-most // parts)
        before = set(self._launchers)
        lanes, best = most, self._launcher(shape, segments, most).trial(pack(segments, most), jobs)
        while lanes > FEW_LANES:
            fewer = -(-lanes // 2)
            seconds = self._launcher(shape, segments, fewer).trial(pack(segments, fewer), jobs)
            if seconds > 0.97 * best:
                break
            lanes, best = fewer, seconds
        write_cache("lanes", {**read_cache("lanes"), place(most): lanes})
        # Those that were tried only to be timed give their memory back.
        for key in self._launchers.keys() - before:
            if self._launchers[key].count != lanes:
                del self._launchers[key]
        return lanes

    def signatures(self, batch: int) -> Callable[[int], str]:
        """What the fastest way to compute so many lanes depends on, as a function of their number."""
        shapes = [slot.shape for slot in self.layout.parameters]
        sample = tuple(self.gallery.x.shape[1:])
        machine = f"{torch.cuda.get_device_name(self.device)} torch {torch.__version__}"
        about = type(self.module).__name__, shapes, sample
        return lambda lanes: f"{machine} {(*about, lanes, batch, self.precision)}"

    def _terms(self, segments: list[Segment]) -> Terms:
        works = [one.work for one in segments]
        return Terms(
            momentum=any(work.momentum for work in works),
            weight_decay=any(work.weight_decay for work in works),
            proximal=any(work.proximal for work in works),
            crop=works[0].crop,
            flip=works[0].flip,
        )

    def _launcher(self, shape: tuple[object, ...], segments: list[Segment], lanes: int) -> Launcher:
        terms = self._terms(segments)
        key = ((shape, terms), lanes)
        if key not in self._launchers:
            if self.device.type != "cuda":
                # What is not compiled is soon made again, and need not be kept in every size.
                self._launchers.clear()
            self._launchers[key] = Launcher(self, terms, lanes, batch=int(str(shape[0])))
        return self._launchers[key]


def _shape(one: Segment) -> tuple[object, ...]:
    """What must agree for clients to share a launch: the batch and the augmentation."""
    return one.work.batch or one.samples, one.work.crop, one.work.flip
