from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import covey
from covey.aggregation.coordinate_rules import trimmed
from covey.aggregation.krum import krum_scores, most_hostile, squared_distances
from covey.config.schema import Config, resolve
from covey.config.sections import Local
from covey.core.interfaces import Aggregator, Setting
from covey.core.replies import Replies
from covey.model.factory import build_model
from covey.model.layout import Layout
from covey.registries import aggregators

SMALL: dict[str, Any] = {
    "clients": 20,
    "cohort": 10,
    "rounds": 8,
    "environment": "iid",
    "workers": 1,
    "model": {"name": "mlp", "hidden": (16,)},
}
RULES = ("median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "bulyan", "norm-bound")


def made(name: str, **options: Any) -> Aggregator:
    aggregator: Aggregator = aggregators.make(name, options)
    module = build_model("mlp", {"hidden": (4,)}, (1, 8, 8), 10, 0)
    aggregator.begin(Setting(20, 10, 5, 10, 0, Layout.of(module), Local()))
    return aggregator


def combined(name: str, states: Tensor, samples: list[int] | None = None, **options: Any) -> Tensor:
    count = len(states)
    counts = torch.tensor(samples or [10] * count)
    replies = Replies(np.arange(count), states, counts, torch.ones(count, dtype=torch.float64))
    return made(name, **options).combine(1, torch.zeros(states.shape[1], dtype=states.dtype), replies)


@pytest.fixture
def states() -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(9, 40)))


@pytest.mark.parametrize("count", [1, 2, 8, 9])
def test_the_median_is_that_of_each_parameter(states, count):
    np.testing.assert_allclose(combined("median", states[:count]), np.median(states[:count], axis=0))


def test_the_trimmed_mean_leaves_out_either_end(states):
    ordered = np.sort(states, axis=0)
    np.testing.assert_allclose(combined("trimmed-mean", states, trim=0.25), ordered[2:-2].mean(axis=0))
    np.testing.assert_allclose(combined("trimmed-mean", states, trim=0.01), ordered[1:-1].mean(axis=0))
    np.testing.assert_allclose(combined("trimmed-mean", states, trim=0.0), ordered.mean(axis=0))
    assert [trimmed(0.4, count) for count in (1, 2, 3, 10)] == [0, 0, 1, 4]


def test_krum_takes_the_model_closest_to_its_neighbours(states):
    near = 0.01 * states + 1.0
    near[4] = 1.0
    near[7:] = 50.0
    assert torch.equal(combined("krum", near), near[4])
    distances = squared_distances(near, torch.zeros(40))
    np.testing.assert_allclose(distances, ((near[:, None] - near[None]) ** 2).sum(dim=2), atol=1e-9)
    # By hand: the sum of the k - f - 2 = 6 smallest distances to others.
    f = most_hostile(0.2, 9, 2)
    assert f == 1
    np.testing.assert_allclose(krum_scores(distances, f)[0], np.sort(distances[0])[1:7].sum())


def test_multi_krum_averages_all_but_the_hostile_share(states):
    near = states.clone()
    near[3] = 1000.0
    others = np.delete(np.arange(9), 3)
    np.testing.assert_allclose(combined("multi-krum", near), near[others].mean(dim=0))


def test_f_is_at_most_what_the_replies_allow():
    assert [most_hostile(0.4, count, 2) for count in (1, 3, 5, 7, 10)] == [0, 0, 1, 2, 3]
    assert [most_hostile(0.2, count, 4) for count in (6, 7, 10, 15)] == [0, 1, 1, 3]


def test_bulyan_averages_the_values_closest_to_the_median(states):
    near = states.clone()
    near[2] = 1000.0
    found = combined("bulyan", near)
    aggregator = made("bulyan")
    replies = Replies(np.arange(9), near, torch.full((9,), 10), torch.ones(9, dtype=torch.float64))
    aggregator.combine(1, torch.zeros(40, dtype=torch.float64), replies)
    chosen = aggregator.figures()["chosen"]
    assert isinstance(chosen, list)
    assert len(chosen) == 7
    assert 2 not in chosen
    kept = near[chosen].numpy()
    expected = [column[np.argsort(np.abs(column - np.median(column)), kind="stable")[:5]].mean() for column in kept.T]
    np.testing.assert_allclose(found, expected)


def test_the_geometric_median_has_the_smallest_sum_of_distances(states):
    found = combined("geometric-median", states, steps=200)

    def total(point: Tensor) -> float:
        return float((states - point).norm(dim=1).sum())

    generator = np.random.default_rng(1)
    for _ in range(20):
        assert total(found) <= total(found + torch.from_numpy(generator.normal(scale=0.01, size=40))) + 1e-9
    far = states.clone()
    far[:3] = 1e25
    assert combined("geometric-median", far).abs().max() < 10
    same = torch.ones(4, 6, dtype=torch.float64)
    assert torch.equal(combined("geometric-median", same), same[0])


def test_the_geometric_median_takes_three_steps_and_in_earlier_folders_eight():
    given = {"aggregator": "geometric-median"}
    found = [config.as_mapping()["aggregator"]["steps"] for config in (Config.of(given), resolve(given, earlier=True))]
    assert found == [3, 8]


def test_samples_count_in_the_geometric_median_only_if_asked(states):
    samples = [10**6, *[1] * 8]
    assert torch.equal(combined("geometric-median", states, samples), combined("geometric-median", states))
    weighted = combined("geometric-median", states, samples, weighted=True, steps=50)
    torch.testing.assert_close(weighted, states[0], rtol=1e-3, atol=1e-3)


def test_a_bound_scales_large_updates_down_and_leaves_others(states):
    large = states.clone()
    large[0] *= 1e30
    bound = float(np.median(large.norm(dim=1)))
    scales = (bound / large.norm(dim=1)).clamp(max=1)
    np.testing.assert_allclose(combined("norm-bound", large), (large * scales[:, None]).mean(dim=0), rtol=1e-9)
    fixed = combined("norm-bound", states, bound=0.5)
    np.testing.assert_allclose(fixed, (states * (0.5 / states.norm(dim=1))[:, None]).mean(dim=0))
    assert torch.equal(combined("norm-bound", states, bound=1e6), combined("average", states, weighted=False))


def test_a_bound_goes_around_any_aggregator(states):
    counts = [1, *[10] * 8]
    inner = combined("norm-bound", states, counts, bound=1e6, around="average,weighted=true")
    np.testing.assert_allclose(inner, combined("average", states, counts))
    np.testing.assert_allclose(combined("norm-bound", states, bound=1e6, around="median"), combined("median", states))
    with pytest.raises(covey.Refusal, match="There is no aggregator 'medan'"):
        made("norm-bound", around="medan")
    with pytest.raises(covey.Refusal, match="a name with options after commas"):
        made("norm-bound", around="average,weighted")
    with pytest.raises(covey.Refusal, match="has no option 'wheighted'"):
        made("norm-bound", around="average,wheighted=true")


@pytest.mark.parametrize("inner", ["feddrl-set", "cmfl", "ondemand"])
def test_a_bound_around_an_aggregator_that_learns_resumes_to_the_same_end(inner, tmp_path):
    given = {**SMALL, "rounds": 4, "aggregator": {"name": "norm-bound", "around": inner}}

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    whole = covey.run(given, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        covey.run(given, out=tmp_path / "cut", on_round=stop)
    covey.resume(tmp_path / "cut")
    files = [(tmp_path / name / "checkpoint.safetensors").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]
    assert whole.metrics[-1]["figures"]["bound"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_learns_without_attackers_and_under_a_flip(rule, tmp_path):
    given = {**SMALL, "aggregator": rule}
    clean = covey.run(given, out=tmp_path / "clean")
    hostile = covey.run({**given, "attack": {"kind": "flip", "factor": 5, "attackers": 0.1}}, out=tmp_path / "hostile")
    floor = 0.6 if rule == "krum" else 0.75
    assert clean.metrics[-1]["accuracy"] > floor
    assert hostile.metrics[-1]["accuracy"] > floor


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("trimmed-mean", {"trim": 0.5}, "aggregator.trim"),
        ("krum", {"hostile": 0.6}, "aggregator.hostile"),
        ("bulyan", {"hostile": 0.3}, "aggregator.hostile"),
        ("geometric-median", {"steps": 0}, "aggregator.steps"),
        ("geometric-median", {"smoothing": 0.0}, "aggregator.smoothing"),
        ("norm-bound", {"bound": -1.0}, "aggregator.bound"),
        ("norm-bound", {"factor": 0.0}, "aggregator.factor"),
    ],
)
def test_options_out_of_range_are_refused(name, options, part):
    with pytest.raises(covey.Refusal, match=part):
        made(name, **options)
