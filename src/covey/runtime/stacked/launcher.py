"""Launches: lanes filled with the models that clients received, advanced step by step, and emptied."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from covey.arrays import FloatArray
from covey.client.step_trace import StepTrace
from covey.core.messages import Order
from covey.core.own_starts import own_starts
from covey.core.trainer import Packing
from covey.model.layout import Layout
from covey.runtime.stacked.batch_schedule import Schedule, schedule
from covey.runtime.stacked.device_data import ClientTables
from covey.runtime.stacked.graph_capture import GraphSteps
from covey.runtime.stacked.lane_schedule import Segment, Visit
from covey.runtime.stacked.lane_step import COMPUTE_DTYPES, Lanes, StepTerms
from covey.runtime.stacked.trainer_lanes import TrainerLanes

if TYPE_CHECKING:
    from covey.runtime.stacked.engine import Engine

SMALL_SCHEDULE = 1 << 14
"""Samples over all epochs and clients, up to which the schedule is made on the host."""


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """One run's order of a round, with the samples of its clients and the run's seed."""

    order: Order
    tables: ClientTables
    seed: int


@dataclass(frozen=True, eq=False)
class TrainResult:
    """The models trained for one request."""

    all_states: Tensor
    """The models of all requests, one request after another, on the device or, if too large for it, on the host."""
    first: int
    """Row of `all_states` where this request's models begin."""
    losses: FloatArray
    """`[cohort]`: mean training loss."""
    traces: dict[int, StepTrace] = field(default_factory=dict)
    """Position → steps of its training, if a probe uses them."""
    reply: Tensor | None = None
    kept: Tensor | None = None
    """`[cohort, n]`: what a trainer's clients reply and keep, packed; None if nothing."""

    @property
    def states(self) -> Tensor:
        """`[cohort, d]`"""
        return self.all_states[self.first : self.first + len(self.losses)]

    @classmethod
    def of(cls, orders: Sequence[Order], layout: Layout, dtype: torch.dtype, home: torch.device) -> list["TrainResult"]:
        """Allocate the results of orders."""
        counts = [len(order.clients) for order in orders]
        states = torch.empty(sum(counts), layout.size, dtype=dtype, device=home)
        results = []
        for order, count, end in zip(orders, counts, accumulate(counts), strict=True):
            part = None if order.trainer is None else order.trainer.ref.part
            reply, kept = (
                torch.empty(count, Packing(fields, layout).size, dtype=dtype, device=home) if fields else None
                for fields in ((part.replied, part.kept) if part else ({}, {}))
            )
            results.append(cls(states, end - count, np.zeros(count), {}, reply, kept))
        return results


class EagerSteps:
    """Steps of a stack on a CPU: calls of the step, one after another."""

    def __init__(self, engine: "Engine", lanes: Lanes, terms: StepTerms) -> None:
        self.engine = engine
        self.lanes = lanes
        self.step = engine.make_step(terms, {})
        self.schedule: dict[str, Tensor] = {}
        self.trace: Tensor | None = None
        """`[steps, lanes, h]`: the traced gradient of every step, if there is one."""

    def load(self, schedule: Schedule, steps: int) -> None:
        """Take the schedule of the next `steps` steps."""
        self.schedule = schedule.tensors()
        traced = self.lanes.gradient
        self.trace = None if traced is None else traced.new_zeros(steps, *traced.shape)

    def advance(self, begin: int, end: int) -> None:
        """Take steps `begin` to `end`."""
        for at in range(begin, end):
            row = {name: value[at] for name, value in self.schedule.items()}
            self.step(self.lanes, self.engine.data.x, **row)
            if self.trace is not None and self.lanes.gradient is not None:
                self.trace[at] = self.lanes.gradient


class Launcher:
    """A fixed number of lanes with the step that moves them, for one batch size and one set of terms."""

    def __init__(self, engine: "Engine", terms: StepTerms, lanes: int, batch: int) -> None:
        self.engine = engine
        self.batch = batch
        self.count = lanes
        compute = COMPUTE_DTYPES[engine.precision]
        classes = engine.learner.classes
        self.lanes = Lanes.of(engine.layout, lanes, terms, engine.dtype, compute, engine.device, classes)
        self._terms = terms
        self._on_gpu = engine.device.type == "cuda"
        self.steps: GraphSteps | EagerSteps = (
            GraphSteps(engine, self.lanes, terms, batch) if self._on_gpu else EagerSteps(engine, self.lanes, terms)
        )

    def trial(self, visits: list[Visit], requests: Sequence[TrainRequest]) -> float:
        """Estimate the seconds that these visits take on a GPU, from a few steps; lanes are left as they were."""
        assert isinstance(self.steps, GraphSteps)
        steps = max(visit.end for visit in visits)
        self.steps.load(self._schedule(visits, requests, steps), steps)
        return self.steps.seconds_per_step() * steps

    def run(self, visits: list[Visit], requests: Sequence[TrainRequest], results: list[TrainResult]) -> Tensor:
        """Train all visits and write their models to `results`; return their summed losses `[visits]`."""
        steps = max(visit.end for visit in visits)
        engine = self.engine
        plan = self._schedule(visits, requests, steps)
        losses = torch.zeros(len(visits), dtype=torch.float64, device=engine.device)
        # Visits by their first and last step; between two of these, steps need nothing from the host.
        begins: dict[int, list[int]] = {}
        ends: dict[int, list[int]] = {}
        for number, visit in enumerate(visits):
            begins.setdefault(visit.begin, []).append(number)
            ends.setdefault(visit.end, []).append(number)
        self.steps.load(plan, steps)
        starts = SentModels.of([own_starts(one.order, engine.layout) for one in requests], engine)
        anchors = starts
        if self._terms.proximal and any(one.order.anchor is not None for one in requests):
            orders = [one.order for one in requests]
            anchors = SentModels.of([one.start if one.anchor is None else one.anchor for one in orders], engine)
        at = 0
        for stop in sorted({*begins, *ends}):
            self.steps.advance(at, stop)
            at = stop
            if stop in ends:
                self._empty(ends[stop], visits, results, losses)
            if stop in begins:
                self._fill(begins[stop], visits, starts, anchors)
                self._fill_trainer([visits[number] for number in begins[stop]], requests, starts)
        self._keep_traces(visits, plan, results)
        return losses

    def _keep_traces(self, visits: list[Visit], plan: Schedule, results: list[TrainResult]) -> None:
        """Copy the steps of traced visits to `results`, before the next launch overwrites them."""
        trace = self.steps.trace
        for lane, begin, end, one in visits:
            if trace is None or not one.traced:
                continue
            labels, weights = (values[begin:end, lane].to(trace.device) for values in (plan.label, plan.weight))
            shares = (F.one_hot(labels, self.engine.learner.classes) * weights[:, :, None]).sum(dim=1).float()
            sizes = plan.count[begin:end, lane].to(trace.device, torch.float32)
            results[one.request].traces[one.position] = StepTrace(trace[begin:end, lane].clone(), shares, sizes)

    def _schedule(self, visits: list[Visit], requests: Sequence[TrainRequest], steps: int) -> Schedule:
        """Make the schedule; a small one on the host, where it takes no kernel launches."""
        slots = sum(visit.segment.work.epochs * visit.segment.samples for visit in visits)
        device = self.engine.device if slots > SMALL_SCHEDULE else torch.device("cpu")
        tables = [one.tables for one in requests]
        plan = schedule(visits, tables, self.count, self.batch, self.engine.dtype, device, steps)
        return replace(plan, sample=self.engine.data.placed(plan.sample))

    def _fill(self, numbers: list[int], visits: list[Visit], starts: "SentModels", anchors: "SentModels") -> None:
        """Copy the models that these visits start from into their lanes, without waiting for the device."""
        stack, layout = self.lanes, self.engine.layout
        segments = [visits[number].segment for number in numbers]
        lanes = self._tensor([visits[number].lane for number in numbers])
        # When all lanes begin, they are written as a whole.
        whole = len(numbers) == self.count and _consecutive([visits[number].lane for number in numbers]) is not None
        place = slice(None) if whole else lanes
        start, anchor = (self._tensor([models.row(one) for one in segments]) for models in (starts, anchors))
        for slot in layout.parameters:
            name = slot.name
            own, working = stack.parameters[name], stack.working[name]
            if whole:
                torch.index_select(slot.of(starts.rows), 0, start, out=own)
            else:
                own[place] = slot.of(starts.rows).index_select(0, start)
            if working is not own:
                working[place] = own[place]
            if name in stack.received:
                stack.received[name][place] = slot.of(anchors.rows).index_select(0, anchor)
            for history in (stack.velocity, stack.first_moment, stack.second_moment):
                if name in history:
                    history[name].index_fill_(0, lanes, 0.0)
        for slot in layout.buffers:
            stack.buffers[slot.name][place] = slot.of(starts.rows).index_select(0, start)
        works = {one.request: one.work for one in segments}
        settings = {of: [work.momentum, work.weight_decay, work.proximal, work.clip] for of, work in works.items()}
        stack.settings[place] = self._tensor([settings[one.request] for one in segments], self.engine.dtype)
        stack.taken.index_fill_(0, lanes, 0)
        stack.loss.index_fill_(0, lanes, 0.0)

    def _fill_trainer(self, visits: list[Visit], requests: Sequence[TrainRequest], starts: "SentModels") -> None:
        """Write what the clients of these visits received, were sent and kept, if a trainer uses it."""
        if self.lanes.trainer is None:
            return
        segments = [visit.segment for visit in visits]
        orders = [trainer for one in segments if (trainer := requests[one.request].order.trainer) is not None]
        rows = starts.rows.index_select(0, self._tensor([starts.row(one) for one in segments]))
        counts = [
            requests[one.request].tables.class_counts(one.client, one.holdout, self.engine.learner.classes)
            for one in segments
        ]
        lanes = self._tensor([visit.lane for visit in visits])
        self.lanes.trainer.fill(lanes, segments, rows, orders, torch.stack(counts))

    def _empty(self, numbers: list[int], visits: list[Visit], results: list[TrainResult], losses: Tensor) -> None:
        """Copy the models and losses of finished visits out of their lanes."""
        segments, used = [visits[number].segment for number in numbers], [visits[number].lane for number in numbers]
        lanes = self._tensor(used)
        losses[self._tensor(numbers)] = self.lanes.loss[lanes]
        layout = self.engine.layout
        if self.lanes.trainer is not None:
            self._empty_trainer(self.lanes.trainer, lanes, segments, results)
        states = results[0].all_states
        rows = [results[one.request].first + one.position for one in segments]
        # Slices copy fastest. In a round of clients of equal size, all lanes are one.
        source = _consecutive(used) or lanes
        place = _consecutive(rows) or self._tensor(rows).to(states.device)
        for slots, values in ((layout.parameters, self.lanes.parameters), (layout.buffers, self.lanes.buffers)):
            for slot in slots:
                trained = values[slot.name][source].reshape(len(numbers), slot.size)
                states[place, slot.start : slot.start + slot.size] = trained.to(states.device)

    def _empty_trainer(
        self, own: TrainerLanes, lanes: Tensor, segments: list[Segment], results: list[TrainResult]
    ) -> None:
        """Copy what a trainer's clients reply and keep out of their lanes."""
        by_request: dict[int, list[int]] = {}
        for number, one in enumerate(segments):
            by_request.setdefault(one.request, []).append(number)
        for name, rows in zip(
            ("reply", "kept"), own.final(lanes, self.lanes.parameters, self.lanes.buffers), strict=True
        ):
            if rows is None:
                continue
            for request, numbers in by_request.items():
                place: Tensor = getattr(results[request], name)
                positions = [segments[number].position for number in numbers]
                source = _consecutive(numbers) or self._tensor(numbers)
                place[_consecutive(positions) or positions] = rows[source].to(place.device)

    def _tensor(self, values: Sequence[Any], dtype: torch.dtype | None = None) -> Tensor:
        """Copy numbers to the device, without waiting for it."""
        tensor = torch.tensor(values, dtype=dtype)
        return tensor.pin_memory().to(self.engine.device, non_blocking=True) if self._on_gpu else tensor


@dataclass(frozen=True, eq=False)
class SentModels:
    """The models that orders send out: one for all clients of an order, or one for each."""

    rows: Tensor
    """`[models, d]`, on the device."""
    first: list[int]
    """Row where each request's models begin."""
    shared: list[bool]
    """True for a request with one model for all its clients."""

    @classmethod
    def of(cls, sent: Sequence[Tensor], engine: "Engine") -> "SentModels":
        """Stack models `[d]` or `[cohort, d]`, one tensor per request."""
        parts = [models[None] if models.dim() == 1 else models for models in sent]
        on_device = [part.to(engine.device, engine.dtype) for part in parts]
        rows = on_device[0] if len(parts) == 1 else torch.cat(on_device)
        ends = np.cumsum([len(part) for part in parts])
        return cls(rows, [0, *ends[:-1].tolist()], [models.dim() == 1 for models in sent])

    def row(self, one: Segment) -> int:
        """Return the row of the model that a segment starts from."""
        return self.first[one.request] + (0 if self.shared[one.request] else one.position)


def _consecutive(numbers: list[int]) -> slice | None:
    """Return numbers as a slice if each is one more than the one before."""
    first, count = numbers[0], len(numbers)
    return slice(first, first + count) if numbers == list(range(first, first + count)) else None
