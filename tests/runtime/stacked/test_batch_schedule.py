"""The schedule of a launch: lanes that all have a client of equal size get what they get among others."""

from dataclasses import replace

import pytest
import torch

import covey
from covey.config.sections import Local
from covey.runtime.devices import OnDevices
from covey.runtime.stacked.batch_schedule import Schedule, schedule
from covey.runtime.stacked.lane_schedule import Segment, pack
from covey.runtime.stacked.stacked_runtime import StackedRuntime
from tests.conftest import SMALL
from tests.runtime.stacked.segments import segment


def scheduled(segments: list[Segment], lanes: int) -> Schedule:
    """Return the schedule of clients of one or two requests; each holds 20 samples."""
    settings = {**SMALL, "environment": {"name": "iid", "samples": 20}, "runtime": "stacked", "device": "cpu"}
    experiment = covey.Experiment.of(covey.Config.of(settings))
    assert isinstance(experiment.runtime, OnDevices)
    assert isinstance(experiment.runtime.runtime, StackedRuntime)
    tables, visits = [experiment.runtime.runtime._tables] * 2, pack(segments, lanes)
    steps = max(visit.end for visit in visits)
    return schedule(visits, tables, lanes, segments[0].work.batch, torch.float32, torch.device("cpu"), steps)


@pytest.mark.parametrize("batch", [5, 8])
def test_clients_of_equal_size_get_the_same_batches_with_an_idle_lane_beside_them(batch: int) -> None:
    work = Local(epochs=2, batch=batch, crop=1, flip=True)
    segments = [segment(0, place, place, 20, work, 1, 7 + place) for place in range(3)]
    alone, beside = scheduled(segments, 3), scheduled(segments, 4)
    assert len(alone.rate) == 2 * -(-20 // batch)
    for name, value in alone.tensors().items():
        assert value.is_contiguous()
        assert torch.equal(value, beside.tensors()[name][:, :3])
        assert not beside.tensors()[name][:, 3].any()


def test_as_many_steps_of_other_epochs_are_told_apart() -> None:
    """Two epochs of three batches, and three of two: the second client has fewer samples, as some are held out."""
    work = Local(epochs=2, batch=8)
    segments = [
        segment(0, 0, 0, 20, work, 1, 7),
        segment(1, 0, 1, 20, replace(work, epochs=3), 1, 8, holdout=2),
    ]
    assert [one.steps for one in segments] == [6, 6]
    assert scheduled(segments, 2).count.T.tolist() == [[8, 8, 4, 8, 8, 4], [8, 2, 8, 2, 8, 2]]
