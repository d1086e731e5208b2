"""Models: their sizes and heads, that every layer learns, batch norm, and users' own models."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import covey
from covey import randomness
from covey.client.learner import Learner
from covey.config.sections import Local
from covey.data import Samples, digits
from covey.errors import Refusal
from covey.model import build_model, dropout_layers, set_dropout_key
from covey.model.layout import Layout
from covey.registries import models

LARGE = digits(None, upscale=4)
SMALL = digits(None)

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)

SIZES = [
    ("tutorial-cnn", {}, CIFAR, 10, 62_006),
    ("fashion-cnn", {}, MNIST, 10, 582_026),
    ("mcmahan-cnn", {}, MNIST, 10, 1_663_370),
    ("leaf-cnn", {}, MNIST, 10, 1_662_752),
    ("leaf-cnn", {}, CIFAR, 10, 2_155_872),
    ("leaf-cnn", {"head_bias": True}, CIFAR, 10, 2_155_882),
    ("pfl-cnn", {}, CIFAR, 10, 1_626_442),
    ("vgg11", {}, CIFAR, 100, 9_797_092),
    ("mobilenetv2", {}, CIFAR, 100, 2_351_972),
    ("mobilenetv2", {"norm": "group"}, CIFAR, 100, 2_351_972),
]

VARIANTS: list[tuple[str, dict[str, object]]] = [
    ("mlp", {}),
    ("tutorial-cnn", {}),
    ("fashion-cnn", {}),
    ("mcmahan-cnn", {}),
    ("leaf-cnn", {}),
    ("leaf-cnn", {"head_bias": True}),
    ("pfl-cnn", {}),
    ("vgg11", {}),
    ("mobilenetv2", {}),
    ("mobilenetv2", {"norm": "group"}),
]

SMALLEST = {
    "tutorial-cnn": 16,
    "fashion-cnn": 16,
    "mcmahan-cnn": 4,
    "leaf-cnn": 6,
    "pfl-cnn": 6,
    "vgg11": 32,
    "mobilenetv2": 8,
}

HEADS = {
    "mlp": ["layers.head.weight", "layers.head.bias"],
    "tutorial-cnn": ["fc3.weight", "fc3.bias"],
    "fashion-cnn": ["fc2.weight", "fc2.bias"],
    "mcmahan-cnn": ["fc2.weight", "fc2.bias"],
    "leaf-cnn": ["fc2.weight"],
    "pfl-cnn": ["fc2.weight", "fc2.bias"],
    "vgg11": ["classifier.6.weight", "classifier.6.bias"],
    "mobilenetv2": ["classifier.weight", "classifier.bias"],
}


def images(*shape: int) -> Tensor:
    return randomness.uniform(1, torch.Size(shape).numel()).view(shape)


# ---------------------------------------------------------------------------------------------- the models


def test_this_file_tests_every_model_but_the_lstm():
    assert {name for name, _ in VARIANTS} == {*models.names()} - {"lstm"} == set(HEADS)


@pytest.mark.parametrize(("name", "options", "shape", "classes", "parameters"), SIZES)
def test_a_model_has_the_published_number_of_parameters(name, options, shape, classes, parameters):
    module = build_model(name, options, shape, classes, seed=0)
    assert Layout.of(module).trainable == parameters
    with torch.inference_mode():
        assert module.eval()(images(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize(("name", "side"), SMALLEST.items())
def test_a_model_takes_oblong_images_down_to_its_smallest_size_and_refuses_smaller_ones(name, side):
    module = build_model(name, {}, (2, side, side + 7), 3, seed=0)
    with torch.inference_mode():
        assert module.eval()(images(4, 2, side, side + 7)).shape == (4, 3)
    with pytest.raises(Refusal, match=f"'{name}' needs images of at least {side} x {side} pixels"):
        build_model(name, {}, (2, side + 7, side - 1), 3, seed=0)
    with pytest.raises(Refusal, match=f"'{name}' needs images"):
        build_model(name, {}, (64,), 3, seed=0)


@pytest.mark.parametrize("name", HEADS)
def test_the_head_is_the_last_layer_that_the_logits_depend_on(name):
    module = build_model(name, {}, CIFAR, 10, seed=0).eval()
    head = Layout.of(module).head
    assert [slot.name for slot in head] == HEADS[name]
    assert head[0].shape[0] == 10
    # Doubling the head's tensors doubles the logits: there is nothing between the head and the logits.
    with torch.inference_mode():
        before = module(images(2, *CIFAR))
        for slot in head:
            module.get_parameter(slot.name).mul_(2)
        assert torch.equal(module(images(2, *CIFAR)), 2 * before)


def test_the_leaf_cnn_has_no_bias_unless_asked():
    def biases(**options: bool) -> list[str]:
        layout = Layout.of(build_model("leaf-cnn", options, MNIST, 10, seed=0))
        return [slot.name for slot in layout.parameters if slot.name.endswith("bias")]

    assert biases() == []
    assert biases(head_bias=True) == ["fc2.bias"]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_the_logits_depend_on_every_tensor(name, options):
    learner = Learner(build_model(name, options, LARGE.shape, LARGE.classes, seed=0), LARGE)
    loss = F.cross_entropy(learner.module.eval()(learner.inputs(LARGE.x[:4])), LARGE.y[:4])
    gradients = torch.autograd.grad(loss, list(learner.module.parameters()))
    assert [slot.name for slot, g in zip(learner.layout.parameters, gradients, strict=True) if not g.any()] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_step_changes_every_layer_and_the_loss_falls(name, options):
    learner = Learner(build_model(name, options, LARGE.shape, LARGE.classes, seed=0), LARGE)
    samples = Samples(LARGE.x[:10], LARGE.y[:10])
    work = Local(epochs=1, batch=0, rate=0.01 if name in ("mobilenetv2", "vgg11") else 0.05)
    start = state = learner.layout.read(learner.module)
    losses = []
    for step in range(5):
        state, loss = learner.fit(state, samples, work, t=1, key=step)
        losses.append(loss)
        if step == 0:
            unchanged = {slot.name for slot in learner.layout.parameters if torch.equal(slot.of(state), slot.of(start))}
            # In training, a batch norm cancels scales and shifts of the one before it, whose gradient is then zero.
            norms = [name for name, layer in learner.module.named_modules() if isinstance(layer, nn.BatchNorm2d)]
            assert unchanged <= {f"{name}.{leaf}" for name in norms for leaf in ("weight", "bias")}
    assert losses[-1] < 0.98 * losses[0]


@pytest.mark.parametrize("name", ["fashion-cnn", "vgg11", "mobilenetv2"])
def test_initial_tensors_depend_on_the_seed_alone(name):
    def state(seed: int) -> Tensor:
        module = build_model(name, {}, CIFAR, 10, seed)
        return Layout.of(module).read(module)

    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = state(3)
    torch.manual_seed(8)
    assert torch.equal(state(3), first)
    assert not torch.equal(state(4), first)
    torch.manual_seed(7)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_signal_keeps_its_size_through_vgg11():
    module = build_model("vgg11", {}, CIFAR, 100, seed=0).eval()
    with torch.inference_mode():
        x = images(16, *CIFAR) * 2 - 1
        features = module.get_submodule("features")(x)
    assert 0.2 < float(features.square().mean() / x.square().mean()) < 10


# ---------------------------------------------------------------------------------------------- batch norm


@pytest.mark.slow
def test_running_statistics_are_in_the_trained_state_and_evaluation_uses_them():
    learner = Learner(build_model("mobilenetv2", {}, SMALL.shape, SMALL.classes, seed=0), SMALL)
    samples = Samples(SMALL.x[:40], SMALL.y[:40])
    start = learner.layout.read(learner.module)
    trained, _ = learner.fit(start, samples, Local(epochs=1, batch=20, rate=0.01), t=1, key=0)
    statistics = [slot for slot in learner.layout.buffers if "running" in slot.name]
    assert len(statistics) == len(learner.layout.buffers) == 2 * 52
    for slot in statistics:
        assert not torch.equal(slot.of(trained), slot.of(start)), f"{slot.name} was not updated"

    mixed = trained.clone()
    mixed[learner.layout.trainable :] = start[learner.layout.trainable :]
    assert learner.mean_loss(mixed, samples) != learner.mean_loss(trained, samples)
    # Evaluation of a sample does not depend on the others of its batch, and does not change the state.
    kept = trained.clone()
    one_by_one = sum(float(learner.score(trained, Samples(samples.x[[i]], samples.y[[i]]))[0]) for i in range(40))
    assert one_by_one / 40 == pytest.approx(learner.mean_loss(trained, samples), rel=1e-4)
    assert torch.equal(trained, kept)


def test_the_first_batch_norm_sees_the_mean_of_the_batch():
    learner = Learner(build_model("mobilenetv2", {}, SMALL.shape, SMALL.classes, seed=0), SMALL, precision="fp64")
    samples = Samples(SMALL.x[:20], SMALL.y[:20])
    start = learner.layout.read(learner.module)
    stem = learner.module.get_submodule("features.0.0")
    mean = stem(learner.inputs(samples.x)).mean(dim=(0, 2, 3)).detach()
    trained, _ = learner.fit(start, samples, Local(epochs=1, batch=0, rate=0.01), t=1, key=0)
    slot = next(slot for slot in learner.layout.buffers if slot.name.endswith("features.0.1.running_mean"))
    torch.testing.assert_close(slot.of(trained), 0.1 * mean)


@pytest.mark.parametrize("dataset", [SMALL, LARGE], ids=["8x8", "32x32"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_last_batch_of_one_sample_trains(dataset, norm):
    learner = Learner(build_model("mobilenetv2", {"norm": norm}, dataset.shape, dataset.classes, seed=0), dataset)
    start = learner.layout.read(learner.module)
    work = Local(epochs=1, batch=4, rate=0.01)
    state, loss = learner.fit(start, Samples(dataset.x[:5], dataset.y[:5]), work, t=1, key=0)
    assert state.isfinite().all() and loss == loss
    alone, _ = learner.fit(start, Samples(dataset.x[:1], dataset.y[:1]), work, t=1, key=0)
    assert alone.isfinite().all()
    assert all(not torch.equal(slot.of(alone), slot.of(start)) for slot in learner.layout.head)


def test_group_norm_has_no_statistics_to_keep():
    module = build_model("mobilenetv2", {"norm": "group"}, CIFAR, 10, seed=0)
    assert not Layout.of(module).buffers
    with pytest.raises(Refusal, match="norm"):
        build_model("mobilenetv2", {"norm": "layer"}, CIFAR, 10, seed=0)


# ---------------------------------------------------------------------------------------------- a user's own model


class Own(nn.Module):
    """A user's model with torch's own dropout, one layer of it in a nested module."""

    head = "last"

    def __init__(self, shape: tuple[int, ...], classes: int, *, width: int = 8, drop: type[nn.Module] | None = None):
        super().__init__()
        self.first = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(torch.Size(shape).numel(), width))
        self.drop = (drop or nn.Dropout)(0.4)
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.drop(F.relu(self.first(x))))
        return logits


class Convolution2(nn.Module):
    head = "layers.0"

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(shape[0], classes, 8), nn.Dropout2d(0.5))


class Normed(nn.Module):
    """A model with torch's own batch norm."""

    head = "last"

    def __init__(self, shape: tuple[int, ...], classes: int, *, momentum: float | None = 0.1, track: bool = True):
        super().__init__()
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 8))
        self.norm = nn.BatchNorm1d(8, momentum=momentum, track_running_stats=track)
        self.last = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(F.relu(self.norm(self.first(x))))
        return logits


def cumulative(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Normed(shape, classes, momentum=None)


def without_statistics(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Normed(shape, classes, track=False)


def not_a_model(shape: tuple[int, ...], classes: int) -> str:
    return "logits"


def test_a_users_model_trains_with_reproducible_dropout():
    module = build_model("tests.model.test_models:Own", {"width": "12"}, SMALL.shape, SMALL.classes, seed=0)
    found = dropout_layers(module)
    assert {name: (layer.p, layer.number) for name, layer in found.items()} == {"first.1": (0.3, 0), "drop": (0.4, 1)}
    set_dropout_key(module, 3)
    x = SMALL.x[:5].float()
    assert torch.equal(module(x), module(x))
    learner = Learner(module, SMALL)
    samples = Samples(SMALL.x[:30], SMALL.y[:30])
    start = learner.layout.read(module)
    once, loss = learner.fit(start, samples, Local(), t=1, key=0)
    torch.manual_seed(1)
    assert torch.equal(once, learner.fit(start, samples, Local(), t=1, key=0)[0])
    assert loss > learner.mean_loss(once, samples)


def test_a_users_batch_norm_trains_on_a_last_batch_of_one_sample_on_both_runtimes(tmp_path):
    given = {"clients": 4, "cohort": 4, "rounds": 2, "environment": {"name": "iid", "samples": 21}, "precision": "fp64"}
    given |= {
        "model": "tests.model.test_models:Normed",
        "local": {"epochs": 1, "batch": 10, "rate": 0.1},
        "device": "cpu",
    }
    losses = [
        [row["loss"] for row in covey.run(given, runtime=runtime, workers=1, out=tmp_path / runtime).metrics]
        for runtime in ("local", "stacked")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("torch.nn:ReLU", "The model ReLU has no parameters to train"),
        ("torch.nn:Bilinear", "is not called as name.shape, classes"),
        ("tests.model.test_models:LARGE", "must be a class or a function; it is of the type Dataset"),
        ("tests.model.test_models:not_a_model", "built a str, not an nn.Module"),
        ("tests.model.test_models:Convolution2", "has a layer Dropout2d, which draws from torch's global generator"),
        ("tests.model.test_models:Missing", "cannot be imported"),
        (
            "tests.model.test_models:cumulative",
            "The layer norm of the model Normed is a batch norm with momentum=None or",
        ),
        (
            "tests.model.test_models:without_statistics",
            "give it a momentum, such as torch's 0.1, and running statistics",
        ),
    ],
)
def test_unusable_models_are_refused_with_a_sentence(name, sentence):
    with pytest.raises(Refusal, match=sentence):
        build_model(name, {}, SMALL.shape, SMALL.classes, seed=0)
