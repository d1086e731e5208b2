"""Steps recorded as CUDA graphs, faked so that a CPU can test them: results, checks and autotuning.

A stack whose lanes disagree is refused, since the GPU cannot be trusted.
"""

from types import FunctionType, SimpleNamespace

import numpy as np
import pytest
import torch

from covey import Config, Refusal
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.messages import Order
from covey.model import build_model
from covey.model.layout import Layout
from covey.runtime import StackedRuntime
from covey.runtime.stacked.graph_capture import GraphSteps
from covey.runtime.stacked.lane_check import SHARE, TRIALS
from covey.runtime.stacked.launcher import EagerSteps
from tests.conftest import SMALL
from tests.runtime.stacked.test_lane_check import WEIGHT, held, nothing, trained


class FakeGraphs:
    """A launcher's steps as faked CUDA graphs, whose replays end with `spoil`."""

    def __init__(self, launcher, monkeypatch, spoil=nothing):
        self.spoil, self.lanes = spoil, launcher.lanes
        self.steps = GraphSteps(launcher.engine, launcher.lanes, launcher._terms, launcher.batch)
        self.steps.buffers = launcher.steps.schedule
        fake_recording(monkeypatch, after_replay=lambda: self.spoil(self.lanes))
        monkeypatch.setattr("covey.runtime.stacked.autotune.replay_seconds", lambda graph, repeats: 1.0)


def fake_recording(monkeypatch, after_replay=lambda: None):
    """Have a replay call the recorded function again, and then `after_replay`."""

    def record(work):
        def replay():
            work()
            after_replay()

        return SimpleNamespace(replay=replay)

    monkeypatch.setattr("covey.runtime.stacked.graph_capture.warm_up", lambda work, device: work())
    monkeypatch.setattr("covey.runtime.stacked.graph_capture.record_graph", record)


def spoil_weight(lanes):
    lanes.parameters[WEIGHT][1].fill_(torch.nan)


def test_a_stack_whose_lanes_do_not_agree_is_refused(monkeypatch):
    graphs = FakeGraphs(trained(), monkeypatch, lambda lanes: lanes.parameters[WEIGHT][1:3].fill_(torch.nan))
    monkeypatch.delenv(SHARE, raising=False)
    sentence = r"2 of 6 models of MLP .* \(numbers 1, 2; in layers.hidden0.weight\).*errs\. The runtime 'local' does"
    with pytest.raises(Refusal, match=sentence) as refused:
        graphs.steps.captured()
    assert SHARE not in str(refused.value)
    monkeypatch.setenv(SHARE, "60")
    with pytest.raises(Refusal, match=f"{SHARE} is 60: unset it"):
        graphs.steps.captured()
    assert graphs.steps.recorded is None
    graphs.spoil = nothing
    graphs.steps.captured()
    assert graphs.steps.recorded is not None


def test_every_trial_is_the_first_step(monkeypatch):
    after = []
    graphs = FakeGraphs(trained(), monkeypatch)
    graphs.spoil = lambda lanes: after.append(int(graphs.steps.counter))
    graphs.steps.captured()
    assert after == [1] * TRIALS
    assert int(graphs.steps.counter) == 0


@pytest.mark.parametrize("work", [{}, {"optimizer": "adam", "rate": 0.002}], ids=str)
def test_recording_leaves_lanes_as_they_were_and_happens_once(monkeypatch, work):
    launcher = trained(**work)
    graphs = FakeGraphs(launcher, monkeypatch)
    before = [value.clone() for value in held(launcher)]
    recorded = graphs.steps.captured()
    assert all(map(torch.equal, before, held(launcher)))
    assert graphs.steps.captured() is recorded
    # A step that is known is recorded again without a search.
    graphs.steps.recorded = None
    monkeypatch.setattr(launcher.engine, "make_step", None)
    assert graphs.steps.captured().step is recorded.step


CHOICES = [{"a": "slices"}, {"a": "grouped"}]


def tuned(launcher, graphs, monkeypatch, spoiled, cached=None, choices=CHOICES):
    """Have `launcher` choose between convolution algorithms, of which those in `spoiled` err; return what is cached."""
    written, make_step = [], launcher.engine.make_step

    def make_step_with(terms, algorithms, updated=()):
        graphs.spoil = spoil_weight if algorithms in spoiled else nothing
        return make_step(terms, algorithms if isinstance(make_step, FunctionType) else {})

    monkeypatch.setattr(launcher.engine, "make_step", make_step_with)
    monkeypatch.setattr("covey.runtime.stacked.engine.Engine.for_speed", True)
    monkeypatch.setattr("covey.runtime.stacked.engine.Engine.signature", lambda engine, batch, terms: str)
    for name, value in {
        "convolutions": lambda module: {"a": None},
        "candidate_algorithms": lambda module, kernels, exact, fused, tiled: choices,
        "read_cache": lambda kind: {} if cached is None else {"6": cached},
        "write_cache": lambda kind, known: written.append(known),
    }.items():
        monkeypatch.setattr(f"covey.runtime.stacked.graph_capture.{name}", value)
    graphs.steps.captured()
    return written


def test_an_algorithm_whose_lanes_do_not_agree_leaves_the_others(monkeypatch):
    launcher = trained()
    graphs = FakeGraphs(launcher, monkeypatch)
    assert tuned(launcher, graphs, monkeypatch, CHOICES[:1]) == [{"6": CHOICES[1]}]
    assert graphs.steps.recorded is not None


def test_where_no_algorithm_has_lanes_that_agree_the_stack_is_refused(monkeypatch):
    launcher = trained()
    graphs = FakeGraphs(launcher, monkeypatch)
    with pytest.raises(Refusal, match="1 of 6 models"):
        tuned(launcher, graphs, monkeypatch, CHOICES)
    assert graphs.steps.recorded is None


def test_a_cached_algorithm_is_used_without_timing_others(monkeypatch):
    launcher = trained()
    graphs = FakeGraphs(launcher, monkeypatch)
    assert tuned(launcher, graphs, monkeypatch, CHOICES[1:], cached=CHOICES[0]) == []
    assert graphs.steps.recorded is not None


def test_a_cached_algorithm_that_errs_now_is_timed_anew(monkeypatch):
    launcher = trained()
    graphs = FakeGraphs(launcher, monkeypatch)
    assert tuned(launcher, graphs, monkeypatch, CHOICES[:1], cached=CHOICES[0]) == [{"6": CHOICES[1]}]
    assert graphs.steps.recorded is not None


def test_a_cached_algorithm_that_does_not_compile_now_is_timed_anew(monkeypatch):
    launcher = trained()
    graphs = FakeGraphs(launcher, monkeypatch)
    make_step, tried = launcher.engine.make_step, []

    def without_first(terms, algorithms, updated=()):
        tried.append(algorithms)
        if algorithms == CHOICES[0]:
            raise RuntimeError("no rule for it")
        return make_step(terms, {})

    launcher.engine.make_step = without_first
    assert tuned(launcher, graphs, monkeypatch, [], cached=CHOICES[0]) == [{"6": CHOICES[1]}]
    assert tried == [CHOICES[0], *CHOICES]


def test_the_check_is_skipped_where_memory_is_too_short_for_it(monkeypatch):
    def too_much(*_):
        raise torch.OutOfMemoryError

    graphs = FakeGraphs(trained(), monkeypatch)
    monkeypatch.setattr("covey.runtime.stacked.graph_capture.check_lanes", too_much)
    graphs.steps.captured()
    assert graphs.steps.recorded is not None


UPDATED = ["layers.hidden0"]
KEY = f"6 {UPDATED}"


def with_updates(launcher, graphs, monkeypatch, seconds, known=None, right=True, spoil=nothing):
    """Have a step with a split layer take `seconds` where others take 1; return what was made and what is cached."""
    made, written, last = [], [], [False]
    make_step = launcher.engine.make_step

    def make_step_with(terms, algorithms, updated=()):
        made.append(list(updated))
        step = make_step(terms, {}, updated)

        def noted(*given, **row):
            last[:] = [bool(updated)]
            step(*given, **row)
            if updated:
                spoil(launcher.lanes)

        return noted

    def replay_seconds(graph, repeats):
        graphs.steps.counter.zero_()
        assert bool((graphs.steps.buffers["rate"] > 0).all()), "no lane is idle in steps that are timed"
        graph.replay()
        return seconds if last[0] else 1.0

    monkeypatch.setattr(launcher.engine, "make_step", make_step_with)
    monkeypatch.setattr("covey.runtime.stacked.engine.Engine.for_speed", True)
    monkeypatch.setattr("covey.runtime.stacked.engine.Engine.signature", lambda engine, batch, terms: str)
    monkeypatch.setattr("covey.runtime.stacked.autotune.replay_seconds", replay_seconds)
    for name, value in {
        "movable_layers": lambda engine, terms: UPDATED,
        "updates_agree": lambda engine, names, terms, batch: right,
        "read_cache": lambda kind: {KEY: known} if kind == "updates" and known is not None else {},
        "write_cache": lambda kind, found: written.append((kind, found)),
    }.items():
        monkeypatch.setattr(f"covey.runtime.stacked.graph_capture.{name}", value)
    rates = graphs.steps.buffers["rate"]
    rates[1:, 2] = 0.0
    before = rates.clone()
    graphs.steps.captured()
    assert torch.equal(rates, before) and int(graphs.steps.counter) == 0
    return made, written


@pytest.mark.parametrize(("seconds", "faster"), [(0.5, True), (2.0, False)])
def test_layers_are_moved_by_one_operator_where_that_is_faster(monkeypatch, seconds, faster):
    launcher = trained()
    graphs = FakeGraphs(launcher, monkeypatch)
    before = [value.clone() for value in launcher.lanes.tensors()]
    assert with_updates(launcher, graphs, monkeypatch, seconds) == ([[], UPDATED], [("updates", {KEY: faster})])
    assert all(map(torch.equal, before, launcher.lanes.tensors()))


@pytest.mark.parametrize(("known", "made"), [(True, [UPDATED]), (False, [[]])])
def test_a_cached_choice_of_layers_to_move_is_used_without_compiling_another_step(monkeypatch, known, made):
    launcher = trained()
    graphs = FakeGraphs(launcher, monkeypatch)
    assert with_updates(launcher, graphs, monkeypatch, 0.5, known=known) == (made, [])


@pytest.mark.parametrize("known", [None, True])
def test_an_operator_that_errs_on_the_device_is_not_used(monkeypatch, known):
    launcher = trained()
    graphs = FakeGraphs(launcher, monkeypatch)
    assert with_updates(launcher, graphs, monkeypatch, 0.5, known=known, right=False) == ([[]], [])


@pytest.mark.parametrize("spoil", [spoil_weight, lambda lanes: lanes.parameters[WEIGHT].mul_(2.0)])
def test_a_step_that_is_not_the_ordinary_one_is_not_used(monkeypatch, spoil):
    launcher = trained()
    graphs = FakeGraphs(launcher, monkeypatch)
    assert with_updates(launcher, graphs, monkeypatch, 0.5, spoil=spoil) == (
        [[], UPDATED],
        [("updates", {KEY: False})],
    )


@pytest.mark.slow
def test_replayed_steps_train_the_same_models_as_eager_ones(monkeypatch):
    """Schedules that grow, more clients than lanes, and samples that another run moves by adding altered ones."""
    plain = {**SMALL, "environment": {"name": "dirichlet", "alpha": 0.3}}
    federation = build_federation(Config.of(plain))
    altered = build_federation(Config.of({**plain, "altered": {"poison": 0.5, "inverted": 0.3}}))
    module = build_model("mlp", {}, federation.dataset.shape, federation.dataset.classes, seed=0)
    start = Layout.of(module).read(module).double()
    works = [Local(epochs=epochs, batch=4, momentum=0.9, proximal=0.1) for epochs in (1, 1, 3)]
    orders = [Order(t, np.arange(8), start, work) for t, work in enumerate(works, start=1)]
    made = []

    def graph_steps(engine, lanes, terms):
        made.append(GraphSteps(engine, lanes, terms, batch=4))
        return made[-1]

    states = {}
    for kind in (EagerSteps, graph_steps):
        monkeypatch.setattr("covey.runtime.stacked.launcher.EagerSteps", kind)
        fake_recording(monkeypatch)
        runtime = StackedRuntime(federation, module, precision="fp64")
        runtime.engine.most_lanes = 3
        states[kind] = [runtime.execute(order).states for order in orders]
        graphs = {id(steps.recorded): steps.recorded for steps in made}
        other = StackedRuntime(altered, module, engine=runtime.engine)
        states[kind] += [runtime.execute(orders[0]).states, other.execute(orders[0]).states]
    assert len(made) == 1, "one launcher serves all of them"
    (before,) = graphs.values()
    after = made[0].recorded
    assert after is not None and before is not None
    assert after is not before, "samples moved, so the step is recorded again"
    assert after.step is before.step
    assert all(map(torch.equal, states[EagerSteps], states[graph_steps]))


@pytest.mark.parametrize("work", [{}, {"optimizer": "adam", "rate": 0.002}], ids=str)
def test_timing_leaves_lanes_as_they_were(monkeypatch, work):
    launcher = trained(**work)
    graphs = FakeGraphs(launcher, monkeypatch)
    replays = []

    def replay_seconds(graph, repeats):
        for _ in range(3):
            graph.replay()
            replays.append(int(graphs.steps.counter))
        return 0.5

    monkeypatch.setattr("covey.runtime.stacked.graph_capture.replay_seconds", replay_seconds)
    before = [value.clone() for value in held(launcher)]
    assert graphs.steps.seconds_per_step() == 0.5
    assert replays == [1, 2, 3]
    assert all(map(torch.equal, before, held(launcher)))
