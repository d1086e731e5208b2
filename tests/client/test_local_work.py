"""A client's work in a round: training part, keys of probes, fields that are sent, and the gate."""

from dataclasses import dataclass

import pytest
import torch

from covey.client.holdout import training_part
from covey.client.learner import Learner
from covey.client.local_work import ClientTask, key_of_client, perform_task
from covey.config.sections import Local
from covey.core.interfaces import Probe
from covey.core.messages import Gate
from covey.data import digits
from covey.data.dataset import Samples
from covey.model import build_model
from covey.randomness import key


@dataclass(frozen=True)
class Echo(Probe):
    """Returns its key, the change that training made, and a number that stays on the client."""

    name = "echo"
    kept = ("secret",)

    def measure(self, learner, received, trained, samples, key):
        return {
            "key": torch.tensor(key >> 1),
            "change": (trained - received).norm(),
            "secret": torch.arange(1000.0)[:1],
        }


@pytest.fixture(scope="module")
def client():
    dataset = digits(None)
    module = build_model("mlp", {}, dataset.shape, dataset.classes, 0)
    learner = Learner(module, dataset)
    return learner, Samples(dataset.x[:30], dataset.y[:30]), learner.layout.read(module)


def test_a_client_trains_on_its_training_part_and_measures_with_keys_of_its_own(client):
    learner, samples, received = client
    task = ClientTask(3, 2, Local(epochs=1), (Echo(),), holdout=4)
    trained, result = perform_task(task, learner, samples, received, seed=7)
    client_key = key_of_client(7, 3, 2)
    expected, loss = learner.fit(received, training_part(samples, 4), Local(epochs=1), 3, client_key)
    assert torch.equal(trained, expected)
    assert (result.loss, result.samples) == (loss, len(samples))
    assert int(result.measured["echo"]["key"]) == key(client_key, "echo") >> 1
    assert result.measured["echo"]["change"] > 0
    assert set(result.probe_seconds) == {"echo"}


def test_kept_fields_are_not_sent_and_hold_only_their_own_memory(client):
    learner, samples, received = client
    _, result = perform_task(ClientTask(1, 2, Local(), (Echo(),), train=False), learner, samples, received, seed=0)
    assert set(result.measured["echo"]) == {"key", "change"}
    assert set(result.kept["echo"]) == {"secret"}
    assert result.kept["echo"]["secret"].untyped_storage().nbytes() == 4


def test_a_task_without_training_returns_the_model_received(client):
    learner, samples, received = client
    trained, result = perform_task(
        ClientTask(1, 2, Local(), (Echo(),), train=False), learner, samples, received, seed=0
    )
    assert torch.equal(trained, received)
    assert result.loss == 0.0
    assert result.measured["echo"]["change"] == 0


@pytest.mark.parametrize(("bound", "opens"), [(0.0, True), (1e9, False)])
def test_a_gate_decides_on_what_was_measured(client, bound, opens):
    learner, samples, received = client
    task = ClientTask(1, 2, Local(epochs=1), (Echo(),), gate=Gate("echo", "change", bound))
    assert perform_task(task, learner, samples, received, seed=0)[1].gate_opens is opens


def test_training_and_measuring_can_be_replaced(client):
    learner, samples, received = client
    trained, result = perform_task(
        ClientTask(1, 2, Local(), (Echo(),)),
        learner,
        samples,
        received,
        seed=0,
        train=lambda model, part: (model + 1, float(len(part))),
        measure=lambda probe, start, end, probe_key: {"sum": (end - start).sum(), "secret": torch.ones(1)},
    )
    assert torch.equal(trained, received + 1)
    assert result.loss == len(samples)
    assert set(result.measured["echo"]) == {"sum"}
