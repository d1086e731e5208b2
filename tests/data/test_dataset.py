import subprocess
import sys

import numpy as np
import pytest
import torch

from covey import Refusal
from covey.client.learner import Learner
from covey.config.sections import Local
from covey.data import Dataset, digits, synthetic
from covey.data.dataset import Samples, load_dataset
from covey.model import build_model


def test_digits_are_whole_and_split_the_same_for_everybody():
    data = digits(None)
    assert (len(data.x), len(data.test_x)) == (1442, 355)
    assert data.x.dtype == torch.uint8
    assert data.shape == (1, 8, 8)
    assert torch.bincount(data.test_y).min() >= 34
    assert torch.equal(data.x, digits(None).x)


def test_no_test_digit_is_a_training_digit_by_position():
    from sklearn.datasets import load_digits

    data = digits(None)
    assert len(data.x) + len(data.test_x) == len(load_digits().target)
    together = torch.cat([data.y, data.test_y])
    assert torch.equal(torch.bincount(together), torch.bincount(torch.tensor(load_digits().target)))


def test_digits_are_those_of_the_loader_that_is_too_slow_to_import():
    code = "import sys; from covey.data import digits; digits(None); print('sklearn' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "False\n"
    from sklearn.datasets import load_digits

    data, bunch = digits(None), load_digits()
    found = torch.cat([data.x, data.test_x]).flatten(1).tolist()
    assert sorted(found) == sorted(bunch.data.astype(int).tolist())
    labels = {tuple(row): label for row, label in zip(bunch.data.astype(int).tolist(), bunch.target, strict=True)}
    assert [labels[tuple(row)] for row in found] == torch.cat([data.y, data.test_y]).tolist()


def test_upscaled_digits_repeat_pixels():
    small, large = digits(None), digits(None, upscale=4)
    assert large.shape == (1, 32, 32)
    assert torch.equal(large.x[:, :, ::4, ::4], small.x)
    assert torch.equal(large.x[:, :, 1::4, 3::4], small.x)


@pytest.mark.parametrize("shape", [(5,), (1, 8, 8), (3, 16, 20)])
def test_synthetic_has_the_shape_and_classes_asked_for(shape):
    data = synthetic(None, shape=shape, classes=7, train=700, test=140)
    assert data.shape == shape
    assert data.x.dtype == torch.uint8
    assert torch.bincount(data.y).tolist() == [100] * 7
    assert torch.bincount(data.test_y).tolist() == [20] * 7


def test_difficulty_makes_the_synthetic_task_harder():
    accuracies = []
    for difficulty in (0.1, 0.7, 2.0):
        data = synthetic(None, shape=(1, 8, 8), train=2000, test=500, difficulty=difficulty)
        learner = Learner(build_model("mlp", {}, data.shape, 10, seed=0), data)
        start = learner.layout.read(learner.module).clone()
        state, _ = learner.fit(start, Samples(data.x, data.y), Local(epochs=5, batch=20, rate=0.05), 1, 1)
        _, correct = learner.score(state, Samples(data.test_x, data.test_y))
        accuracies.append(int(correct.sum()) / 500)
    assert accuracies[0] > 0.97
    assert accuracies[0] > accuracies[1] + 0.05
    assert accuracies[1] > accuracies[2] + 0.1


def test_the_synthetic_seed_decides_the_data():
    one, same, other = (synthetic(None, train=50, test=20, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.x, same.x)
    assert not torch.equal(one.x, other.x)


def test_labels_outside_the_classes_are_refused():
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])
    with pytest.raises(Refusal, match="labels run from 0 to 2, but there are 2 classes"):
        Dataset("mine", x, y, x, y, ("a", "b"))
    with pytest.raises(Refusal, match="4 training samples but 3 labels"):
        Dataset("mine", x, y[:3], x, y, ("a", "b", "c"))


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64])
def test_arrays_become_tensors_and_labels_of_any_width_int64(kind: type[np.integer]) -> None:
    x, y = np.eye(4), np.array([0, 1, 1, 0], dtype=kind)
    data = Dataset("mine", x, y, x[::-1], torch.from_numpy(y), ("a", "b"), groups=y)  # type: ignore[arg-type]
    assert torch.equal(data.x, torch.eye(4, dtype=torch.float64))
    assert torch.equal(data.test_x, torch.eye(4, dtype=torch.float64).flip(0))
    for numbers in (data.y, data.test_y, data.groups):
        assert numbers is not None
        assert numbers.dtype == torch.int64 and numbers.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"y": torch.zeros(4)}, "mine: y must be whole numbers, not float32."),
        ({"test_y": np.array([0, 1, np.nan, 0])}, "mine: test_y must be whole numbers, not float64."),
        ({"y": np.zeros((4, 1), dtype=int)}, "mine: y must be one number per sample, not of shape [4, 1]."),
        ({"y": np.array(list("abba"))}, "mine: y must be a tensor or an array of numbers, not <U1."),
        ({"x": None}, "mine: x must be a tensor or an array of numbers, not NoneType."),
        ({"y": np.array([0, 1, 0])}, "mine: 4 training samples but 3 labels."),
        ({"test_y": np.array([0, 1, -1, 0])}, "mine: test labels run from -1 to 1, but there are 2 classes (0 to 1)."),
        ({"groups": np.array([0, 1])}, "mine: groups must be the client of each of the 4 training samples, from 0."),
    ],
)
def test_what_is_no_data_set_is_refused_in_a_sentence(changes, sentence):
    x, y = torch.eye(4), torch.tensor([0, 1, 1, 0])
    with pytest.raises(Refusal) as caught:
        Dataset(**{"name": "mine", "x": x, "y": y, "test_x": x, "test_y": y, "class_names": ("a", "b"), **changes})
    assert str(caught.value) == sentence


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("part", ["x", "test_x"])
def test_a_value_that_is_not_finite_is_found_in_samples_of_any_number(part, kind, monkeypatch):
    monkeypatch.setattr("covey.data.dataset._PIECE", 30)
    parts = {"x": torch.zeros(100, 2, 3, dtype=kind), "test_x": torch.zeros(40, 2, 3, dtype=kind)}
    parts[part][37:, 1, 2] = torch.inf
    with pytest.raises(Refusal, match=rf"mine: {part}\[37\] holds a value that is not a finite float"):
        Dataset("mine", parts["x"], torch.arange(100) % 2, parts["test_x"], torch.arange(40) % 2, ("a", "b"))


def test_a_loader_that_returns_something_else_is_refused():
    with pytest.raises(Refusal, match="not a Dataset"):
        load_dataset("tests.data.test_dataset:not_a_dataset", None, {})


def not_a_dataset(data_dir):
    return [1, 2, 3]
