"""Which task labels are for, said in a sentence, and what is refused."""

import warnings

import numpy as np
import pytest
import torch

import covey
from covey.data.dataset import Dataset, for_task
from covey.data.own_arrays import from_arrays
from covey.task.label_kinds import infer
from tests.task.federations import conditions, diabetes, exercise, multilabel, regression

X = np.random.default_rng(0).normal(size=(60, 4))


def held(y, **more):
    return from_arrays("mine", X, y, None, **more)


def test_decimal_numbers_are_regression_and_a_sentence_says_so():
    data = regression().dataset
    assert (data.learns.name, data.outputs, data.classes, data.y.shape[1]) == ("regression", 1, 0, 1)
    assert "214 different decimal numbers, so the task is regression" in data.note
    assert "--task classification" in data.note


def test_several_columns_of_numbers_are_several_targets():
    data = exercise().dataset
    assert (data.learns.name, data.outputs) == ("regression", 3)
    torch.testing.assert_close(data.y.mean(dim=0), torch.zeros(3), atol=1e-5, rtol=0)


def test_a_matrix_of_0_and_1_is_multilabel():
    data = multilabel().dataset
    assert (data.learns.name, data.outputs) == ("multilabel", 3)
    assert "so the task is multilabel" in data.note
    assert data.y.unique().tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("y", "names", "says"),
    [
        (np.arange(60) % 3, ("0", "1", "2"), ""),
        (np.arange(60) % 2 == 0, ("False", "True"), ""),
        (np.array(["cat", "dog"])[np.arange(60) % 2], ("cat", "dog"), ""),
        ((np.arange(60) % 3).astype(float), ("0.0", "1.0", "2.0"), "3 different whole numbers"),
        (np.arange(60), tuple(map(str, range(60))), "60 different whole numbers, each taken as a class"),
    ],
)
def test_words_and_whole_numbers_are_classes(y, names, says):
    data = held(y)
    assert (data.learns.name, data.class_names) == ("classification", names)
    assert says in data.note
    assert bool(data.note) == bool(says)


def test_one_hot_rows_are_told_of():
    assert "--task classification if each row's one is its class" in infer(np.eye(3)[np.arange(30) % 3], "mine")[1]


def test_a_data_set_of_ones_own_function_is_inferred_too():
    y = torch.linspace(0, 1, 60)
    x = torch.from_numpy(X).float()
    data = Dataset("mine", x, y, x, y)
    assert (data.learns.name, data.outputs) == ("regression", 1)
    assert data.note


def test_the_task_can_be_said():
    numbers = held(np.arange(60))
    as_numbers = for_task(numbers, {"name": "regression"})
    assert (as_numbers.outputs, as_numbers.class_names, as_numbers.note) == (1, (), "")
    back = as_numbers.learns.original(as_numbers.y)
    torch.testing.assert_close(back[:, 0], numbers.y.double(), atol=1e-4, rtol=0)
    as_classes = for_task(held(np.repeat([0.5, 1.5, 2.5], 20)), {"name": "classification"})
    assert as_classes.class_names == ("0.5", "1.5", "2.5")
    one_hot = for_task(held(np.eye(3)[np.arange(60) % 3]), {"name": "classification"})
    assert sorted(one_hot.y.unique().tolist()) == [0, 1, 2]


def test_saying_the_task_that_was_inferred_changes_nothing():
    data = regression().dataset
    assert torch.equal(for_task(data, {"name": "regression", "centre": (), "scale": (), "bins": 10}).y, data.y)
    scaled = for_task(data, {"name": "regression", "centre": (0.0,), "scale": (100.0,), "bins": 10})
    torch.testing.assert_close(scaled.y * 100, data.learns.original(data.y).float(), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (np.where(np.arange(60) == 7, np.nan, np.arange(60) + 0.5), r"x\[7\] has no label"),
        (np.where(np.arange(60) == 7, np.inf, np.arange(60) + 0.5), r"x\[7\] has the label inf"),
        (np.where(np.arange(120).reshape(60, 2) == 9, np.nan, 0.5), r"x\[4\] has no label, column 1"),
        (np.zeros(60, dtype=int), "there is only one class, '0'"),
        (np.zeros((60, 2, 2)), "labels must be one per sample"),
        ([[1.0], [1.0, 2.0]] * 30, "labels must be one per sample"),
    ],
)
def test_bad_labels_are_refused_with_their_row(y, says):
    with pytest.raises(covey.Refusal, match=says):
        held(y)


@pytest.mark.parametrize(
    ("y", "task", "says"),
    [
        (np.array(["cat", "dog"])[np.arange(60) % 2], "regression", "words such as 'cat'"),
        (np.arange(60) + 0.5, "multilabel", r"sample \d+ has [\d.]+ in column 0"),
        (np.arange(60) % 3, "multilabel", "needs a 0/1 matrix"),
        (conditions()[1][:60], "classification", r"takes one class a sample, and the (test )?sample \d+ has"),
    ],
)
def test_labels_that_do_not_fit_the_task_are_refused(y, task, says):
    with pytest.raises(covey.Refusal, match=says):
        for_task(held(y), {"name": task})


def own_loss(y, **options):
    return for_task(held(y), {"name": "custom", "loss": "losses:huber", "better": "lower", **options})


def test_a_loss_of_ones_own_gets_labels_to_the_bit():
    y = np.random.default_rng(0).integers(0, 20, size=(60, 7))
    data = own_loss(y)
    assert sorted(data.y.tolist() + data.test_y.tolist()) == sorted(y.astype(float).tolist())
    tenths = for_task(held(np.arange(60) / 10), {"name": "classification"})
    assert tenths.class_names[:4] == ("0", "0.1", "0.2", "0.3")


def test_a_loss_of_ones_own_gets_amounts_as_they_are_where_the_model_has_few_outputs():
    counts = np.arange(60) % 4 * 3
    data = own_loss(counts, outputs=1)
    assert data.y.unique().tolist() == [0, 3, 6, 9]
    assert (data.class_names, data.outputs, data.note) == ((), 1, "")
    assert data.bins.max() == 3
    assert own_loss(counts + 0.0, outputs=2).y.unique().tolist() == [0, 3, 6, 9]
    # Classes, by number: words, numbers from 0 without a gap, and what the model has outputs enough for.
    assert own_loss(np.array(["low", "high"])[counts % 2], outputs=1).y.unique().tolist() == [0, 1]
    assert own_loss(counts // 3, outputs=1).class_names == ("0", "1", "2", "3")
    classes = own_loss(counts)
    assert (classes.y.unique().tolist(), classes.outputs) == ([0, 1, 2, 3], 4)
    assert "labels such as 9 are taken as classes, and the loss gets their numbers, 0 to 3" in classes.note


def test_a_label_for_every_word_is_refused_with_what_to_give():
    words = np.random.default_rng(0).integers(0, 20, size=(60, 7))
    with pytest.raises(covey.Refusal, match=r"has 7 labels \(\d+, \d+, \d+, \d+, …\): give the word that follows"):
        for_task(held(words), {"name": "next-token"})


def test_a_constant_target_is_learned(tmp_path):
    y = np.full(60, 2.5)
    with pytest.warns(UserWarning, match="labels are all 2.5, so the task is regression"):
        run = covey.run(federation=covey.federation(X, y, np.arange(60) % 3), rounds=1, workers=1, out=tmp_path / "r")
    assert run.metrics[-1]["metrics"]["r2"] is None
    assert run.metrics[-1]["score"] >= 0


def test_classes_that_only_the_test_set_has_are_classes_too():
    data = held(np.arange(60) % 2, held_out=(X[:4], np.array([0, 1, 2, 2])))
    assert data.class_names == ("0", "1", "2")


def test_test_labels_of_another_shape_are_refused():
    with pytest.raises(covey.Refusal, match="test labels"):
        held(exercise().dataset.y.repeat(4, 1)[:60].numpy(), held_out=(X[:4], np.zeros(4)))


def test_csv_with_a_decimal_label_or_several(tmp_path, covey_command):
    x, y = diabetes()
    rows = np.column_stack([x[:, :3], y, y / 10, np.arange(len(y)) % 4])
    np.savetxt(tmp_path / "d.csv", rows, delimiter=",", header="a,b,c,y,z,client", comments="", fmt="%.4f")
    common: list[object] = ["run", "--dataset", "csv", "--set", f"dataset.path={tmp_path / 'd.csv'}"]
    common += ["--environment", "natural", "--rounds", 1, "--workers", 1]
    with pytest.warns(UserWarning, match="column 'y': labels are 214 different decimal numbers, so the task is regr"):
        one = covey_command(*common, "--set", "dataset.label=y", "--json", "--out", tmp_path / "one")
    assert (one.json["metric"], one.json["better"]) == ("rmse", "lower")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        two = covey_command(*common, "--set", "dataset.label=y,z", "--task", "regression", "--out", tmp_path / "two")
    assert "test RMSE" in two.out
    assert "R²" in two.out
