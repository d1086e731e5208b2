"""Probes by name: the registry, and what travels to a client in their place."""

from dataclasses import dataclass

import pytest
import torch

import covey
from covey.config.sections import Local
from covey.flower.wire import describe, rebuild
from covey.probe import ClassQuery, Insight, Losses, PredictorProbe

WIRE_NAMES = {
    "class query",
    "gains",
    "insight",
    "losses",
    "predictor",
    "private predictor",
    "relevance",
    "simhash",
    "subproblem",
    "utility",
}


@covey.probes.add("test-largest label")
@dataclass(frozen=True)
class LargestLabel(covey.Probe):
    """The largest label that a client holds: field `label`."""

    offset: int = 0

    name = "largest label"

    def measure(self, learner, received, trained, samples, key):
        return {"label": samples.y.max() + self.offset}


def over_the_wire(probe, allowed=()):
    """The probe's description, and the probe as a client makes it."""
    arrays = {}

    def refer(where, numbers):
        arrays[where] = numbers
        return {"array": where}

    described = describe(probe, "probe", refer)
    return described, rebuild(described, lambda reference: arrays[reference["array"]], allowed)


def test_coveys_probes_are_registered_under_their_wire_names():
    assert {entry.name for entry in covey.probes if entry.part.__module__.startswith("covey.")} == WIRE_NAMES


@pytest.mark.parametrize(
    ("probe", "name"), [(Losses(), "losses"), (Insight(0.1), "insight"), (ClassQuery("weight"), "class query")]
)
def test_coveys_probes_travel_by_name_and_need_no_permission(probe, name):
    described, made = over_the_wire(probe)
    assert described["~part"] == name
    assert made == probe


def test_options_that_are_dataclasses_travel_with_their_probe():
    probe = PredictorProbe(torch.zeros(3), 4, 8, 1, 2, 0.1, 0.9, "shares", 5, work=Local(epochs=3), round=2)
    described, made = over_the_wire(probe)
    assert described["~part"] == "predictor"
    assert described["options"]["work"]["~part"] == "local"
    assert made.work == probe.work


def test_a_users_probe_is_registered_and_travels_as_where_it_is_defined():
    assert covey.probes["test-largest label"].part is LargestLabel
    path = f"{__name__}:LargestLabel"
    described, made = over_the_wire(LargestLabel(2), allowed=[path])
    assert described["~part"] == path
    assert made == LargestLabel(2)
    with pytest.raises(covey.Refusal, match="does not measure"):
        over_the_wire(LargestLabel(2))


def test_a_client_knows_a_users_probe_by_its_registered_name_if_it_allows_it():
    described = {"~part": "test-largest label", "options": {"offset": 3}}
    assert rebuild(described, lambda _: torch.empty(0), ["test-largest label"]) == LargestLabel(3)
    with pytest.raises(covey.Refusal, match="does not measure test-largest label"):
        rebuild(described, lambda _: torch.empty(0), [])
    with pytest.raises(covey.Refusal, match=r"There is no probe 'lossses'\. Did you mean 'losses'"):
        rebuild({"~part": "lossses", "options": {}}, lambda _: torch.empty(0), None)


def test_an_insight_imports_only_functions_that_the_client_allows():
    described = {"~part": "insight", "options": {"rate": 0.1, "kind": "os:getcwd"}}
    with pytest.raises(covey.Refusal, match="does not measure os:getcwd"):
        rebuild(described, lambda _: torch.empty(0), [])
