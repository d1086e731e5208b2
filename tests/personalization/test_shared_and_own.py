"""FedBN, FedPer, FedRep and Ditto: one part is shared and averaged, the other is each client's own and never sent."""

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor, nn

from covey import Config, Refusal, run
from covey.core.build import initial_model
from covey.core.messages import Order
from covey.core.replies import Replies
from covey.data.dataset import Samples
from covey.flower import InProcessGrid, Strategy, client_app
from covey.flower.wire import EVALUATE, ORDER, TRAIN, as_tensor, fields_of
from covey.job.experiment import Experiment
from covey.model.layout import Layout
from covey.training.fedper import last_layers
from tests.conftest import SMALL, learner_of, small_for
from tests.equal_runs import ends_the_same
from tests.flower.test_flower import a_local_experiment, net, net_with_norm, points

METHODS = ("fedbn", "fedper", "fedrep", "ditto")
RATE, PULL = 0.1, 0.5
OWN = "what the client kept"
ONE_STEP_AN_EPOCH: dict[str, Any] = {"local": {"epochs": 3, "batch": 0, "rate": RATE}, "precision": "fp64"}


def an_experiment(method: str, **changes: Any) -> Experiment:
    return Experiment.of(Config.of({**small_for(method), **ONE_STEP_AN_EPOCH, **changes}))


def played(experiment: Experiment, rounds: int) -> list[tuple[Order, Replies]]:
    """Return the orders of so many rounds, and their replies."""
    method, runtime, seen = experiment.method, experiment.runtime, []
    for t in range(1, rounds + 1):
        order = method.order(t, runtime.available(t))
        replies = runtime.execute(order)
        method.absorb(t, replies)
        seen.append((order, replies))
    runtime.close()
    return seen


class ByHand:
    """A client's training, written out."""

    def __init__(self, experiment: Experiment) -> None:
        self.learner = learner_of(experiment)
        self.layout = self.learner.layout
        self.module = self.learner.module
        head = {slot.name for slot in self.layout.head}
        self.head = [name in head for name, _ in self.module.named_parameters()]

    def gradients(self, state: Tensor, samples: Samples) -> tuple[Tensor, ...]:
        """Return the gradients at a state, whose batch-norm statistics move."""
        self.layout.bind(self.module, state)
        self.module.train()
        loss = F.cross_entropy(self.module(self.learner.inputs(samples.x)), samples.y)
        return torch.autograd.grad(loss, list(self.module.parameters()))

    def moved(self, state: Tensor, gradients: Any) -> None:
        for slot, gradient in zip(self.layout.parameters, gradients, strict=True):
            state[slot.start : slot.start + slot.size] -= RATE * gradient.reshape(-1)

    def trained(self, start: Tensor, samples: Samples, heads: tuple[bool | None, ...]) -> Tensor:
        """Return the model after an epoch for each of `heads`: True moves the head alone, False the body, None both."""
        state = start.clone()
        for of_head in heads:
            found = self.gradients(state, samples)
            kept = [of_head is None or of_head == own for own in self.head]
            self.moved(state, [one if moves else 0 * one for one, moves in zip(found, kept, strict=True)])
        return state

    def pulled(self, start: Tensor, samples: Samples, to: Tensor) -> Tensor:
        """Return a personal model after three epochs of Ditto."""
        state = start.clone()
        for _ in range(3):
            found = self.gradients(state, samples)
            apart = [slot.of(state - to) for slot in self.layout.parameters]
            self.moved(state, [g + PULL * away for g, away in zip(found, apart, strict=True)])
        return state


def own_places(method: str, layout: Layout) -> list[int]:
    slots = {"fedbn": layout.norms, "ditto": ()}.get(method, layout.head)
    return [place for slot in slots for place in range(slot.start, slot.start + slot.size)]


@pytest.mark.parametrize("method", METHODS)
def test_clients_and_server_do_what_the_paper_writes(method):
    options = {"weight": PULL} if method == "ditto" else {"head_epochs": 2} if method == "fedrep" else {}
    experiment = an_experiment(method, clients=3, cohort=3, many={**options, "participation": "all"})
    shared = initial_model(experiment.config, experiment.module)
    played(experiment, 3)
    hand, federation = ByHand(experiment), experiment.federation
    mine = own_places(method, hand.layout)
    others = [place for place in range(len(shared)) if place not in set(mine)]
    phases = (True, True, False) if method == "fedrep" else (None, None, None)
    samples = [federation.samples(client) for client in range(3)]
    weights = [len(one) / sum(map(len, samples)) for one in samples]
    own = [shared.clone() for _ in samples]
    for t in range(3):
        starts = [shared.clone() for _ in samples]
        for start, model in zip(starts, own, strict=True):
            start[mine] = model[mine]
        trained = [hand.trained(start, one, phases) for start, one in zip(starts, samples, strict=True)]
        if method == "ditto":
            before = [shared] * 3 if t == 0 else own
            own = [hand.pulled(model, one, shared) for model, one in zip(before, samples, strict=True)]
        else:
            own = trained
        shared = shared.clone()
        mean = torch.stack([weight * model for weight, model in zip(weights, trained, strict=True)]).sum(dim=0)
        shared[others] = mean[others]
    found = experiment.method.models()
    assert torch.allclose(found[0], shared, rtol=0, atol=1e-12)
    assert experiment.method.model_of_client.tolist() == [1, 2, 3]
    for row, model in zip(found[1:], own, strict=True):
        used = model.clone()
        if method != "ditto":
            used[others] = shared[others]
        assert torch.allclose(row, used, rtol=0, atol=1e-12)
        assert not torch.allclose(row, shared, rtol=0, atol=1e-3)


def test_fedper_leaves_as_many_layers_as_it_is_told():
    experiment = an_experiment("fedper", model={"name": "mlp", "hidden": (8, 6), "norm": "batch"}, many={"layers": 3})
    layout = Layout.of(experiment.module)
    kept = {slot.name.removeprefix("layers.") for slot in last_layers(layout, 3)}
    statistics = {"norm1.running_mean", "norm1.running_var"}
    assert (
        kept
        == {f"{layer}.{name}" for layer in ("head", "norm1", "hidden1") for name in ("weight", "bias")} | statistics
    )
    order = played(experiment, 1)[0][0]
    assert order.trainer is not None
    assert order.trainer.shared is not None
    assert len(order.trainer.shared) == layout.size - sum(slot.size for slot in last_layers(layout, 3))


@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_never_trained_uses_the_shared_model(method):
    experiment = an_experiment(method, cohort=2)
    start = initial_model(experiment.config, experiment.module)
    seen = played(experiment, 2)
    invited = {client for order, _ in seen for client in order.clients.tolist()}
    users = experiment.method.model_of_client
    assert {client for client in range(8) if users[client]} == invited
    mine = own_places(method, Layout.of(experiment.module))
    shared = experiment.method.models()[0]
    assert torch.equal(shared[mine], start[mine])
    assert not torch.equal(shared, start)


@pytest.mark.parametrize("method", ["fedbn", "fedper", "fedrep"])
def test_only_the_shared_part_counts_as_bytes(method):
    experiment = an_experiment(method, clients=3, cohort=3, many={"participation": "all"})
    layout = Layout.of(experiment.module)
    first, second = played(experiment, 2)
    shared = layout.size - len(own_places(method, layout))
    assert [first[0].tensors(0)["state"].numel(), second[0].tensors(0)["state"].numel()] == [layout.size, shared]
    model = small_for(method)["model"]
    plain = played(an_experiment("fedavg", clients=3, cohort=3, model=model), 1)
    less = 8 * 3 * len(own_places(method, layout))
    for t, (order, replies) in enumerate((first, second)):
        assert plain[0][1].traffic.bytes_up - replies.traffic.bytes_up == pytest.approx(less, abs=3 * 64)
        assert plain[0][0].bytes_down() - order.bytes_down() == pytest.approx(t * less, abs=3 * 256)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_ends_the_same_however_it_is_executed(method, tmp_path):
    given = {**small_for(method), "cohort": 3, "rounds": 5, "precision": "fp64", "devices": {"dropout": 0.3}}
    if method == "ditto":
        given["local"] = {**given["local"], "momentum": 0.5, "weight_decay": 0.01}
    ends_the_same(given, tmp_path)


@pytest.mark.slow
def test_clients_with_few_classes_are_served_better_than_by_one_model(tmp_path):
    given = {**SMALL, "clients": 12, "rounds": 12, "environment": {"name": "dirichlet", "alpha": 0.1}}
    given["local"] = {"epochs": 3, "batch": 16, "rate": 0.05}
    own = {
        method: run({**given, "method": method}, out=tmp_path / method).metrics[-1]["own_accuracy"]
        for method in ("fedavg", "fedper", "fedrep", "ditto")
    }
    assert min(own["fedper"], own["fedrep"], own["ditto"]) > own["fedavg"] + 0.05


# Real clients


class Watching(InProcessGrid):
    """A grid that records the messages to clients and their answers."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: list[tuple[Message, Message]] = []

    def _answer(self, message: Message) -> Message:
        answer = super()._answer(message)
        self.seen.append((message, answer))
        return answer

    def sizes(self, kind: str) -> list[tuple[int, int]]:
        """Return the numbers in the models of the messages of one kind, and of their answers; 0 for none."""
        return [
            tuple(
                sum(
                    as_tensor(array).numel()
                    for record in one.content.array_records.values()
                    for array in record.values()
                )
                for one in pair
            )  # type: ignore[misc]
            for pair in self.seen
            if pair[0].metadata.message_type == kind
        ]


def started(method: str, grid: InProcessGrid, rounds: int = 3, **options: Any) -> Strategy:
    model = net_with_norm if method == "fedbn" else net
    strategy = Strategy(method, model=model(), clients=3, cohort=3, local={"epochs": 2}, **options)
    strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=rounds)
    return strategy


def a_grid(model: Any = net) -> Watching:
    app = client_app(model, lambda context: points(int(context.node_config["partition-id"])), threads=1)
    return Watching(app, 3)


@pytest.mark.parametrize(("method", "personal"), [("fedbn", 10), ("fedper", 18), ("fedrep", 18), ("ditto", 0)])
def test_what_is_a_clients_own_is_in_no_message(method, personal):
    grid = a_grid(net_with_norm if method == "fedbn" else net)
    strategy = started(method, grid)
    assert not any(entry["faults"] for entry in strategy.history)
    size = sum(one.numel() for one in (net_with_norm if method == "fedbn" else net)().parameters())
    assert grid.sizes(TRAIN) == [(size, size - personal)] * 3 + [(size - personal, size - personal)] * 6
    for message, answer in grid.seen:
        if message.metadata.message_type == TRAIN:
            assert fields_of(answer.content) == {"state", "samples", "loss"}


@pytest.mark.parametrize("method", ["fedper", "ditto"])
def test_a_real_client_scores_the_model_that_it_uses(method):
    grid = a_grid()
    started(method, grid, evaluate=1.0)
    local = a_local_experiment(method, 3, clients=3, local={"epochs": 2})
    learner = learner_of(local)
    models = local.method.models()
    last = [answer for message, answer in grid.seen if message.metadata.message_type == EVALUATE][-3:]
    assert len(last) == 3
    for client, answer in enumerate(last):
        samples = local.federation.samples(client)
        loss, correct = learner.score(models[local.method.model_of_client[client]], samples)
        told = answer.content.metric_records["covey.reply"]
        assert told["loss"] == pytest.approx(float(loss) / len(samples), rel=1e-6)
        assert told["accuracy"] == int(correct.sum()) / len(samples)


def test_a_client_that_lost_its_part_begins_again_with_the_first_one():
    class Forgetting(Watching):
        def _answer(self, message: Message) -> Message:
            if len(self.sizes(TRAIN)) == 3:
                self.contexts[1000].state = RecordDict()
            return super()._answer(message)

    whole, shared = 53, 35
    app = client_app(net, lambda context: points(int(context.node_config["partition-id"])), threads=1)
    grid = Forgetting(app, 3)
    strategy = started("fedper", grid, rounds=2)
    assert not any(entry["faults"] for entry in strategy.history)
    second = grid.sizes(TRAIN)[3:]
    assert second == [(shared, 0), (shared, shared), (shared, shared), (whole, shared)]


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("ditto", {"start": OWN, "trainer": None}),
        ("ditto", {"anchor": OWN}),
        (
            "ditto",
            {"trainer": {"name": "scaffold", "options": {}, "sent": {"array": "state"}, "kept": OWN, "age": 1}},
        ),
        ("ditto", {"trainer": {"name": "ditto", "options": {}, "sent": OWN, "kept": None, "age": 0}}),
        ("fedper", {"trainer": {"name": "fedrep", "options": {}, "sent": None, "kept": OWN, "age": 1}}),
    ],
)
def test_a_server_cannot_have_a_client_send_what_is_its_own(method, changes):
    """As a start, an anchor or another trainer's variate, a personal model could be computed from the reply."""

    class Curious(Watching):
        def _answer(self, message: Message) -> Message:
            record = message.content.config_records.get(ORDER)
            given = json.loads(str(record["instructions"])) if record else {}
            if record and given["round"] == 2:
                name = {"held": f"trainer.kept {method}@1"}
                text = json.dumps({**given, **changes}).replace(json.dumps(OWN), json.dumps(name))
                record["instructions"] = text
            return super()._answer(message)

    app = client_app(net, lambda context: points(int(context.node_config["partition-id"])), threads=1)
    strategy = started(method, Curious(app, 3), rounds=2)
    assert not strategy.history[0]["faults"]
    reasons = [fault["reason"] for fault in strategy.history[1]["faults"]]
    assert len(reasons) == 3
    assert all("is for this trainer alone" in reason for reason in reasons)


# Refusals


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "fedbn"}, "fedbn leaves normalisation layers with clients, and the model has none"),
        ({"method": "fedper", "many": {"layers": 2}}, "many.layers=2 leaves nothing to share: the model has 2 layers"),
        ({"method": "fedper", "many": {"layers": 0}}, "many.layers must be at least 1, not 0"),
        ({"method": "fedrep", "local": {"epochs": 1}}, "many.head_epochs=1 leaves no local epoch for the body"),
        ({"method": "fedrep", "many": {"head_epochs": 0}}, "many.head_epochs must be at least 1, not 0"),
        ({"method": "fedrep", "local": {"epochs": 3, "momentum": 0.5}}, "fedrep freezes a part of the model"),
        ({"method": "ditto", "many": {"weight": -1.0}}, "many.weight must not be negative, not -1"),
        ({"method": "ditto", "local": {"optimizer": "adam"}}, "ditto trains personal models by SGD"),
        ({"method": "ditto", "model": {"name": "mlp", "norm": "batch"}}, "batch norm would have statistics of one"),
        ({"method": "fedavg", "trainer": "fedper"}, "run the method 'fedper'"),
        ({"method": "fedper", "trainer": "sgd"}, "has a training of its own: it takes no trainer"),
        ({"method": "fedper", "averaging": {"ema": 0.9}}, "keeps many models"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, sentence):
    with pytest.raises(Refusal, match=sentence):
        Experiment.of(Config.of({**SMALL, **changes}))


@pytest.mark.parametrize(
    ("layer", "tensors"),
    [(nn.BatchNorm1d(4), 4), (nn.LayerNorm(4), 2), (nn.GroupNorm(2, 4), 2), (nn.RMSNorm(4), 1), (nn.PReLU(4), 0)],
)
def test_a_layout_knows_normalisation_layers(layer, tensors):
    module = nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2))
    module.head = "2"  # type: ignore[assignment]
    layout = Layout.of(module)
    assert len(layout.norms) == tensors
    assert all(slot.name.startswith("1.") for slot in layout.norms)
