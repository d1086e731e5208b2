"""Local training against PyTorch's own optimisers, in float64."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from covey import randomness
from covey.client.batches import batches
from covey.client.learner import Learner
from covey.config.sections import Local
from covey.data import digits
from covey.data.dataset import Samples
from covey.model import build_model
from covey.model.cpu_layers import MaxPool2d
from covey.model.layout import Layout
from covey.probe.losses import Losses

DATA = digits(None)
SAMPLES = Samples(DATA.x[:53], DATA.y[:53])


def mlp() -> nn.Module:
    return build_model("mlp", {"hidden": (12,)}, DATA.shape, DATA.classes, seed=0)


def reference(start: torch.Tensor, samples: Samples, work: Local, t: int, key: int) -> torch.Tensor:
    """The same training written with nn.Module, torch.optim and the textbook proximal term."""
    module = mlp().double()
    layout = Layout.of(module)
    module.load_state_dict(layout.named(start.double()))
    received = [parameter.detach().clone() for parameter in module.parameters()]
    given: dict[str, Any] = {"lr": work.rate, "weight_decay": work.weight_decay}
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    optimiser: torch.optim.Optimizer = (
        torch.optim.SGD(module.parameters(), momentum=work.momentum, **given)
        if work.optimizer == "sgd"
        else kinds[work.optimizer](module.parameters(), **given)
    )
    mean, deviation = DATA.mean[0], DATA.deviation[0]
    for epoch in range(work.epochs):
        for group in optimiser.param_groups:
            group["lr"] = work.rate * work.decay ** ((t - 1) * work.epochs + epoch)
        for x, y in batches(samples, work, randomness.key(key, epoch)):
            loss = F.cross_entropy(module((x.double() - mean) / deviation), y)
            for parameter, before in zip(module.parameters(), received, strict=True):
                loss = loss + work.proximal / 2 * ((parameter - before) ** 2).sum()
            optimiser.zero_grad()
            loss.backward()
            if work.clip:
                torch.nn.utils.clip_grad_norm_(module.parameters(), work.clip)
            optimiser.step()
    return layout.read(module)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.01},
        {"proximal": 0.5},
        {"decay": 0.9},
        {"batch": 0},
        {"batch": 100},
        {"epochs": 1, "batch": 1},
        {"momentum": 0.5, "weight_decay": 0.005, "proximal": 0.1, "decay": 0.99, "epochs": 3},
    ],
    ids=str,
)
def test_local_sgd_equals_torch_sgd(options):
    work = Local(**{"epochs": 2, "batch": 10, "rate": 0.1, **options})
    learner = Learner(mlp(), DATA, "fp64")
    start = learner.layout.read(learner.module).clone()
    trained, _ = learner.fit(start, SAMPLES, work, t=3, key=11)
    expected = reference(start, SAMPLES, work, t=3, key=11)
    assert torch.allclose(trained, expected, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(trained, start)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.01},
        {"proximal": 0.5},
        {"decay": 0.9},
        {"batch": 0},
        {"clip": 0.3},
        {"weight_decay": 0.005, "proximal": 0.1, "decay": 0.99, "clip": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_local_adam_equals_torch_adam(optimizer, options):
    work = Local(**{"epochs": 4, "batch": 10, "rate": 0.002, "optimizer": optimizer, **options})
    learner = Learner(mlp(), DATA, "fp64")
    start = learner.layout.read(learner.module).clone()
    trained, _ = learner.fit(start, SAMPLES, work, t=3, key=11)
    expected = reference(start, SAMPLES, work, t=3, key=11)
    assert torch.allclose(trained, expected, rtol=1e-12, atol=1e-13)
    # Moments are forgotten between trainings.
    again, _ = learner.fit(start, SAMPLES, work, t=3, key=11)
    assert torch.equal(again, trained)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"proximal": 0.5, "weight_decay": 0.01}], ids=str)
def test_gradients_are_clipped_as_torch_clips_them(options):
    learner = Learner(mlp(), DATA, "fp64")
    start = learner.layout.read(learner.module).clone()
    trained = {}
    for clip in (0.0, 0.3, 1e6):
        work = Local(**{"epochs": 2, "batch": 10, "rate": 0.1, "clip": clip, **options})
        trained[clip], _ = learner.fit(start, SAMPLES, work, t=1, key=11)
        expected = reference(start, SAMPLES, work, t=1, key=11)
        assert torch.allclose(trained[clip], expected, rtol=1e-12, atol=1e-13)
    assert torch.allclose(trained[0.0], trained[1e6], rtol=1e-12)
    assert (trained[0.0] - trained[0.3]).norm() > 0.01


def test_a_clipped_step_of_sgd_is_as_long_as_the_rate_times_the_norm():
    learner = Learner(mlp(), DATA, "fp64")
    start = learner.layout.read(learner.module).clone()
    trained, _ = learner.fit(start, SAMPLES, Local(epochs=1, batch=0, rate=2.0, clip=0.25), t=1, key=1)
    assert (trained - start).norm().item() == pytest.approx(0.5, rel=1e-5)


def test_the_weight_decay_of_adamw_is_apart_from_the_gradient():
    learner = Learner(mlp(), DATA, "fp64")
    start = learner.layout.read(learner.module).clone()

    def step(**options: Any) -> torch.Tensor:
        work = Local(**{"epochs": 1, "batch": 0, "rate": 0.01, **options})
        return learner.fit(start, SAMPLES, work, t=1, key=0)[0]

    without = step(optimizer="adam")
    assert torch.equal(without, step(optimizer="adamw"))
    apart = step(optimizer="adamw", weight_decay=0.5)
    assert torch.allclose(apart, without - 0.01 * 0.5 * start, rtol=1e-12, atol=1e-15)
    assert (apart - step(optimizer="adam", weight_decay=0.5)).norm() > 0.1 * (apart - start).norm()


@pytest.mark.parametrize("option", ["momentum", "weight_decay", "proximal"])
def test_every_term_of_the_step_changes_the_result(option):
    learner = Learner(mlp(), DATA, "fp64")
    start = learner.layout.read(learner.module).clone()
    plain, _ = learner.fit(start, SAMPLES, Local(epochs=2), t=1, key=1)
    term: dict[str, Any] = {option: 0.1}
    other, _ = learner.fit(start, SAMPLES, Local(epochs=2, **term), t=1, key=1)
    assert (plain - other).abs().max() > 1e-4


def test_proximal_term_pulls_towards_the_received_model():
    learner = Learner(mlp(), DATA, "fp64")
    start = learner.layout.read(learner.module).clone()
    moved = [
        (learner.fit(start, SAMPLES, Local(epochs=5, proximal=mu), t=1, key=1)[0] - start).norm().item()
        for mu in (0.0, 0.1, 1.0)
    ]
    assert moved[0] > moved[1] > moved[2]


def test_the_received_model_is_not_written_to():
    learner = Learner(mlp(), DATA)
    start = learner.layout.read(learner.module).clone()
    before = start.clone()
    learner.fit(start, SAMPLES, Local(), t=1, key=1)
    assert torch.equal(start, before)


def test_rate_decay_continues_over_rounds():
    work = Local(epochs=5, rate=0.1, decay=0.9993)
    assert work.rate_at(1, 0) == 0.1
    assert work.rate_at(1, 4) == pytest.approx(0.1 * 0.9993**4)
    assert work.rate_at(1000, 0) == pytest.approx(0.1 * 0.9993 ** (999 * 5))


def test_training_loss_is_the_mean_over_samples_and_steps():
    learner = Learner(mlp(), DATA, "fp64")
    start = learner.layout.read(learner.module).clone()
    _, loss = learner.fit(start, SAMPLES, Local(epochs=1, batch=0), t=1, key=1)
    assert loss == pytest.approx(learner.mean_loss(start, SAMPLES), rel=1e-12)


def test_samples_are_normalised_per_channel():
    learner = Learner(mlp(), DATA, "fp64")
    x = learner.inputs(DATA.x)
    assert abs(x.mean().item()) < 1e-9
    assert abs(x.std(correction=0).item() - 1) < 1e-9


def test_bf16_keeps_small_updates_in_its_master_copy():
    work = Local(epochs=1, batch=0, rate=1e-5)
    start = Learner(mlp(), DATA).layout.read(mlp())
    exact, _ = Learner(mlp(), DATA, "fp32").fit(start, SAMPLES, work, t=1, key=1)
    mixed, _ = Learner(mlp(), DATA, "bf16").fit(start, SAMPLES, work, t=1, key=1)
    step, mixed_step = exact - start, mixed - start
    assert mixed.dtype == torch.float32
    assert not torch.equal(mixed, exact)
    assert (mixed_step - step).norm() < 0.05 * step.norm()
    # In bf16 weights almost all of these steps would have been rounded away.
    assert (start.bfloat16() == (start + step).bfloat16()).double().mean() > 0.95


def test_losses_probe_sees_training_lower_the_loss():
    learner = Learner(mlp(), DATA)
    start = learner.layout.read(learner.module).clone()
    trained, _ = learner.fit(start, SAMPLES, Local(epochs=5), t=1, key=1)
    measured = Losses().measure(learner, start, trained, SAMPLES, key=1)
    assert measured["before"].item() == pytest.approx(learner.mean_loss(start, SAMPLES))
    assert measured["after"] < 0.5 * measured["before"]


def test_score_counts_right_answers_per_class():
    learner = Learner(mlp(), DATA)
    start = learner.layout.read(learner.module).clone()
    trained, _ = learner.fit(start, Samples(DATA.x, DATA.y), Local(epochs=3), t=1, key=1)
    learner.chunk = 50
    _, correct = learner.score(trained, Samples(DATA.test_x, DATA.test_y))
    answers = learner.module(learner.inputs(DATA.test_x)).argmax(dim=1)
    expected = [int(((answers == label) & (DATA.test_y == label)).sum()) for label in range(10)]
    assert correct.tolist() == expected
    assert sum(expected) > 0.9 * len(DATA.test_y)


class Tempered(nn.Module):
    """A model that does not end with its head."""

    head = "answer"

    def __init__(self) -> None:
        super().__init__()
        self.body, self.answer = nn.Linear(64, 12), nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.answer(self.body(x.flatten(1)).relu())
        return 0.1 * logits


@pytest.mark.parametrize(("make", "passes"), [(mlp, 1), (Tempered, 3)])
def test_models_that_differ_in_their_head_alone_share_the_layers_below(make, passes):
    learner = Learner(make(), DATA)
    start = learner.layout.read(learner.module).clone()
    states = torch.stack([start, start, start])
    for row, factor in enumerate((1.0, -2.0, 0.5)):
        for slot in learner.layout.head:
            slot.of(states[row]).mul_(factor)
    samples = Samples(DATA.test_x, DATA.test_y)
    alone = [learner.score(state, samples) for state in states]
    first = next(layer for layer in learner.module.modules() if isinstance(layer, nn.Linear))
    calls = []
    first.register_forward_hook(lambda *_: calls.append(1))
    assert learner.share_body(states)
    losses, correct = learner.scores(states, samples)[:2]
    assert len(calls) == passes * len(list(learner.chunks(samples)))
    for (loss, right), one, other in zip(alone, losses, correct, strict=True):
        assert torch.equal(loss, one)
        assert torch.equal(right, other)
    assert len({tuple(row.tolist()) for row in correct}) > 1
    slot = next(slot for slot in learner.layout.parameters if slot not in learner.layout.head)
    slot.of(states[2]).mul_(2)
    assert not learner.share_body(states)


def test_losses_of_models_computed_together_are_those_of_each_alone():
    learner = Learner(mlp(), DATA, "fp64")
    start = learner.layout.read(learner.module).clone()
    states = torch.stack([start, 1.5 * start, 0.5 * start])
    counts = [7, 40, 23]
    samples = Samples(DATA.x[:70], DATA.y[:70])
    alone = learner.own_losses(states, samples, counts)
    learner.stacks = True
    learner.chunk = 20
    torch.testing.assert_close(learner.own_losses(states, samples, counts), alone, rtol=1e-12, atol=0)


def test_a_learner_on_a_cpu_takes_the_layers_that_are_faster_there() -> None:
    class Net(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Conv2d(1, 6, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 10))

    module = Net()
    Learner(module, DATA)
    assert type(module[1]) is MaxPool2d
