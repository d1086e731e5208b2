"""Autotuning: the fastest number of lanes, and the cache of decisions."""

import pytest
import torch

from covey import Config
from covey.core.build import build_federation
from covey.core.trainer import TrainerRef
from covey.model import build_model
from covey.runtime.stacked.autotune import (
    cache_file,
    fastest_graph,
    fastest_lanes,
    nearest,
    read_cache,
    write_cache,
)
from covey.runtime.stacked.engine import Engine
from covey.runtime.stacked.lane_step import StepTerms
from tests.conftest import SMALL


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_cached_decisions_are_used_for_nearly_as_many_lanes():
    known = {"of 8": "few", "of 40": "some", "of 90": "many"}
    place = "of {}".format
    assert nearest(known, place, 40) == (40, "some")
    assert nearest(known, place, 66) == (90, "many") and nearest(known, place, 64) == (40, "some")
    assert nearest(known, place, 16) == (8, "few") and nearest(known, place, 4) == (8, "few")
    assert nearest(known, place, 3) is nearest(known, place, 17) is nearest(known, place, 200) is None


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        ({400: 1.0, 200: 1.1}, 400),
        # A gain of 3% or less is noise.
        ({400: 1.0, 200: 0.98}, 400),
        ({400: 1.0, 200: 0.9, 100: 0.95}, 200),
        ({400: 1.0, 200: 0.9, 100: 0.8, 50: 0.7}, 50),
    ],
)
def test_lanes_are_halved_while_the_launch_gets_faster(seconds, fastest):
    timed = []

    def time_launch(lanes):
        timed.append(lanes)
        return seconds[lanes]

    assert fastest_lanes(400, str, time_launch) == fastest
    assert timed == list(seconds)
    assert read_cache("lanes") == {"400": fastest}
    # Nearly as many lanes are cut into as many parts, without timing anything.
    assert fastest_lanes(600, str, time_launch) == 600 * fastest // 400
    assert timed == list(seconds)


def test_a_cache_is_read_back_and_one_that_cannot_be_read_is_empty():
    assert read_cache("ways") == {}
    write_cache("ways", {"a": {"conv1": "slices"}})
    assert read_cache("ways") == {"a": {"conv1": "slices"}}
    assert [file.name for file in cache_file("ways").parent.iterdir()] == ["ways.json"]
    for text in ("{", "[]"):
        cache_file("ways").write_text(text)
        assert read_cache("ways") == {}


def test_a_cache_that_cannot_be_written_is_skipped(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    write_cache("ways", {"a": 1})
    assert read_cache("ways") == {}


def test_no_more_candidates_are_tried_once_the_first_that_works_is_known_to_win(monkeypatch):
    monkeypatch.setattr("covey.runtime.stacked.autotune.replay_seconds", lambda graph, repeats: len(graph))
    recorded, asked = [], []

    def record(candidate):
        recorded.append(candidate)
        if candidate == "errs":
            raise RuntimeError("it does not compile")
        return f"graph of {candidate}"

    def wins(candidate):
        asked.append(candidate)
        return candidate == "best"

    assert fastest_graph(["errs", "best", "a"], record, wins) == ("best", "graph of best")
    assert recorded == ["errs", "best"] and asked == ["best"]
    assert fastest_graph(["longer", "best", "a"], record, wins)[0] == "a"
    assert asked == ["best", "longer"]


def test_decisions_hold_for_all_trainers_but_for_those_with_gradients_of_single_samples(monkeypatch):
    monkeypatch.setattr(Engine, "_machine", "a GPU")
    dataset = build_federation(Config.of(SMALL)).dataset
    engine = Engine(build_model("mlp", {}, (1, 8, 8), 10, 0), dataset, "fp32", torch.device("cpu"))

    def decision(trainer: str) -> str:
        ref = TrainerRef(trainer) if trainer else None
        return engine.signature(10, StepTerms(False, False, False, 0, False, trainer=ref))(40)

    assert decision("") == decision("scaffold") != decision("dp-sgd")
