"""Packing of clients into lanes, and the number of lanes."""

import pytest

from covey.config.sections import Local
from covey.runtime.stacked.lane_schedule import COMPILING, pack, suitable_lanes, without_giants
from tests.runtime.stacked.segments import segment


def test_unequal_clients_cost_their_own_steps_not_those_of_the_largest():
    work = Local(epochs=1, batch=10)
    sizes = [1000, 300, 200, 150, 100, 100, 50, 50, 30, 20]
    segments = [segment(0, place, place, size, work, 1, 0) for place, size in enumerate(sizes)]
    lanes = suitable_lanes(segments, 100).lanes
    visits = pack(segments, lanes)
    computed = lanes * max(visit.end for visit in visits)
    assert sum(one.steps for one in segments) == 200
    assert computed <= 1.15 * 200
    assert sorted(visit.segment.position for visit in visits) == list(range(10))
    for one in visits:
        others = [visit for visit in visits if visit.lane == one.lane and visit is not one]
        assert all(visit.end <= one.begin or one.end <= visit.begin for visit in others)


def test_others_do_not_wait_for_a_giant():
    work = Local(epochs=1, batch=1)
    segments = [segment(0, place, place, size, work, 1, 0) for place, size in enumerate([10, 12, 11, 500])]
    assert [[one.samples for one in part] for part in without_giants(segments)] == [[10, 12, 11], [500]]
    assert len(without_giants(segments[:3])) == 1


def of_steps(*steps):
    work = Local(epochs=1, batch=1)
    return [segment(0, at, at, count, work, 1, at) for at, count in enumerate(steps)]


@pytest.mark.parametrize(
    ("steps", "made", "expected", "lost"),
    [
        ([100] * 10, [], 10, 0),
        # Clients that drop out leave lanes idle; nothing is compiled for the remaining ones.
        ([100] * 9, [10], 10, 0),
        ([100] * 7, [10], 10, 0),
        ([100] * 2, [10], 10, 100 * 8 / 18),
        ([100], [30], 30, 100 - 100 * 9 / 38),
        # One client more than lanes: twice the steps, each with one lane less.
        ([100] * 11, [10], 10, 200 - 100 * 19 / 18),
        ([100] * 30, [5], 5, 600 - 100 * 38 / 13),
        ([100] * 100, [10, 50], 50, 0),
        ([100] * 100, [10, 20], 20, 500 - 100 * 108 / 28),
        ([100] * 100, [90, 120], 120, 0),
        # Ten clients of different sizes keep six lanes busy.
        ([100, 90, 80, 70, 60, 50, 40, 30, 20, 10], [], 6, 0),
        ([100, 90, 80, 70, 60, 50, 40, 30, 20, 10], [5, 10], 5, 0),
        # Two clients of 70 steps in one lane would take 140, where the longest takes 100; two of 50 do not.
        ([100, *[70] * 11], [], 12, 0),
        ([100, *[50] * 11], [], 7, 0),
        # Three lanes take 110 steps, four and five 100.
        ([100, 90, 40, 40, 30], [], 4, 0),
        # A client without a whole batch has nothing to do.
        ([0], [], 1, 0),
        ([0, 0], [2], 2, 0),
    ],
)
def test_existing_lanes_are_used_if_they_are_nearly_as_fast(steps, made, expected, lost):
    chosen = suitable_lanes(of_steps(*steps), 512, made)
    assert chosen.lanes == expected
    assert chosen.lost == pytest.approx(lost)


def test_new_lanes_are_compiled_when_slower_ones_have_lost_as_much_as_compiling_costs():
    lost, rounds = 0.0, 0
    while (choice := suitable_lanes(of_steps(*[100] * 11), 512, [10], lost)).lanes == 10:
        assert choice.lost > lost
        lost, rounds = choice.lost, rounds + 1
    assert choice == (11, 0)
    assert rounds == COMPILING // (200 - 100 * 19 / 18)
    # A lane for each of many at once, rather than one after another.
    assert suitable_lanes(of_steps(*[100] * 400), 512, [1]) == (400, 0)
    # A good number of lanes neither adds to the steps lost nor resets them.
    assert suitable_lanes(of_steps(*[100] * 9), 512, [10], 70.0) == (10, 70)
    assert suitable_lanes(of_steps(*[100] * 10), 512, [10], 70.0) == (10, 70)
