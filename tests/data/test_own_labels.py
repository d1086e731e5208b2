"""Labels as people's tables and arrays have them: what is a number, what a class, and what is refused."""

import datetime
import decimal
from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey.data.dataset import Dataset, load_dataset
from covey.data.own_arrays import from_arrays

X = np.random.default_rng(0).normal(size=(60, 3))
AMOUNTS = [f"{value:.3f}" for value in X[:, 0]]


def with_odd(word: str, words: list[str] = AMOUNTS) -> list[str]:
    return [word if row == 5 else one for row, one in enumerate(words)]


def table(folder, labels, clients=None, kind="csv", **options) -> Dataset:
    clients = clients or [f"c{row % 3}" for row in range(60)]
    columns = {"a": X[:, 0], "b": X[:, 1], "client": clients, "label": labels}
    path = folder / f"own.{kind}"
    if kind == "csv":
        rows = [",".join(f'"{cell}"' for cell in row) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join([",".join(columns), *rows]))
    else:
        pytest.importorskip("pandas").DataFrame(columns).to_parquet(path)
    return load_dataset(kind, None, {"path": str(path), **options})


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("word", ["NA", "nan", "?", "N/A", "null"])
def test_a_word_for_a_missing_value_is_no_label_and_no_client(tmp_path, kind, word):
    row = "line 7" if kind == "csv" else "row 5"
    for labels in (with_odd(word), with_odd(word, ["ill", "well"] * 30)):
        with pytest.raises(covey.Refusal, match=rf"{row}: the column 'label' says '.*', which stands for a missing v"):
            table(tmp_path, labels, kind=kind)
    with pytest.raises(covey.Refusal, match=rf"{row}: the column 'client' says '.*', which stands for a missing v"):
        table(tmp_path, ["ill", "well"] * 30, with_odd(word, ["north", "south"] * 30), kind=kind)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("word", ["inf", "unknown", "1.2.3"])
def test_what_is_no_number_among_amounts_is_refused_with_its_row(tmp_path, kind, word):
    row = "line 7" if kind == "csv" else "row 5"
    with pytest.raises(covey.Refusal, match=f"{row}: the label '{word}' is not a finite number, as most labels are"):
        table(tmp_path, with_odd(word), kind=kind)
    whole = [str(number) for number in range(60)]
    with pytest.raises(covey.Refusal, match=f"{row}: the label '{word}' is not a finite number"):
        table(tmp_path, with_odd(word, whole), kind=kind)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_none_is_a_name_like_any_other(tmp_path, kind):
    """A sample without any defect has the class none."""
    labels, sites = ["none", "scratch"] * 30, ["None", "north"] * 30
    assert table(tmp_path, labels, sites, kind=kind, client="client").class_names == ("none", "scratch")
    with pytest.raises(covey.Refusal, match=r"x\[5\] has no label"):
        from_arrays("mine", X, with_odd(None, labels), None)  # type: ignore[arg-type]


def test_a_label_of_a_few_numbers_and_words_has_classes(tmp_path):
    assert table(tmp_path, with_odd("other", ["1", "2"] * 30)).class_names == ("1", "2", "other")


@pytest.mark.filterwarnings("ignore:.*whole numbers, each taken as a class")
def test_labels_may_be_said_to_be_words(tmp_path):
    codes = with_odd("V45", AMOUNTS)
    assert len(table(tmp_path, codes, categorical="label").class_names) == len(set(codes))
    category = pytest.importorskip("pandas").Categorical(codes)
    assert len(table(tmp_path, category, kind="parquet").class_names) == len(set(codes))


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y"])
def test_dates_are_no_classes(tmp_path, form):
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=row) for row in range(60)]
    words = [day.strftime(form) for day in days]
    with pytest.raises(covey.Refusal, match=r"line 2: the label '.*2024.*' is a date, as all labels are"):
        table(tmp_path, words)
    assert len(table(tmp_path, words, categorical="label").class_names) == 60
    with pytest.raises(covey.Refusal, match=r"the label 'label' is of the type .*number of days"):
        table(tmp_path, days, kind="parquet")
    for given in (words, days, np.array(days, dtype="datetime64[D]")):
        with pytest.raises(covey.Refusal, match=r"x\[0\]: the label .* is a date"):
            from_arrays("mine", X, given, None)


@pytest.mark.parametrize(
    "y",
    [
        np.array(AMOUNTS, dtype=np.float64).astype(object),
        [decimal.Decimal(word) for word in AMOUNTS],
        AMOUNTS,
        np.array(AMOUNTS, dtype=object),
        torch.tensor([float(word) for word in AMOUNTS], dtype=torch.float64, requires_grad=True),
    ],
    ids=["objects", "decimals", "words", "words as objects", "a tensor that requires gradients"],
)
def test_amounts_of_any_type_are_regression(y: Any):
    data, plain = from_arrays("mine", X, y, None), from_arrays("mine", X, np.array(AMOUNTS, dtype=np.float64), None)
    assert data.learns.name == "regression"
    assert torch.equal(data.y, plain.y)
    assert "decimal numbers, so the task is regression" in data.note


def test_numbers_as_objects_have_the_classes_of_numbers():
    for y in (np.arange(60) % 3, np.arange(60) % 2 == 0):
        data, plain = from_arrays("mine", X, y.astype(object), None), from_arrays("mine", X, y, None)
        assert data.class_names == plain.class_names
        assert torch.equal(data.y, plain.y)


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (with_odd("unknown"), r"x\[5\]: the label 'unknown' is not a finite number"),
        (with_odd("NA"), r"x\[5\] has no label"),
        (with_odd("NA", ["ill", "well"] * 30), r"x\[5\] has no label"),
    ],
)
def test_odd_words_in_arrays_are_refused_with_their_row(y, sentence):
    with pytest.raises(covey.Refusal, match=sentence):
        from_arrays("mine", X, y, None)


def test_many_whole_numbers_are_told_of_however_many_samples_there_are():
    y = np.arange(3000) % 221
    x = np.zeros((3000, 1))
    says = "221 different whole numbers, each taken as a class; if they are amounts, say --task regression"
    assert says in from_arrays("mine", x, y, None).note
    assert says in from_arrays("mine", x, y.astype(str), None).note
    assert from_arrays("mine", np.zeros((3000, 2), dtype=np.int64), y, None, tokens=True).note == ""
    assert from_arrays("mine", x, y % 50, None).note == ""


def test_samples_of_a_kind_that_numpy_lacks_are_float32():
    x = torch.tensor(X).bfloat16().requires_grad_()
    data = from_arrays("mine", x, torch.arange(60) % 2, None)
    assert torch.equal(torch.cat([data.x, data.test_x]).sum(), x.detach().float().sum())
    y = torch.arange(60).bfloat16() + 0.5
    assert from_arrays("mine", x, y, None).learns.name == "regression"


def test_a_parquet_file_holds_the_numbers_of_decimals_and_lists(tmp_path):
    rows = range(60)
    assert table(tmp_path, [decimal.Decimal(word) for word in AMOUNTS], kind="parquet").outputs == 1
    matrix = np.stack([np.array([row % 2, row % 3 == 0, 1]) for row in rows])
    as_matrix = table(tmp_path, list(matrix), kind="parquet")
    assert as_matrix.learns.name == "multilabel"
    classes = table(tmp_path, [np.flatnonzero(one) for one in matrix], kind="parquet")
    assert torch.equal(classes.y, as_matrix.y)
    numbers = table(tmp_path, list(X[:, :2]), kind="parquet")
    assert (numbers.learns.name, numbers.outputs) == ("regression", 2)
    for lists, sentence in (
        ([[row % 4, 7] for row in rows], "lists of labels hold 0 and 1"),
        ([[-1] * (1 + row % 2) for row in rows], "lists of labels hold 0 and 1"),
        ([[10**6] * (1 + row % 2) for row in rows], "the number of a class is 1,000,000"),
        ([["a"]] * 60, "holds lists of .*string"),
    ):
        with pytest.raises(covey.Refusal, match=sentence):
            table(tmp_path, lists, kind="parquet")


@pytest.mark.parametrize("name", [None, "patient"])
def test_the_row_index_of_pandas_is_no_feature(tmp_path, name):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "client": ["x", "y"] * 30, "outcome": ["ill", "well", "dead"] * 20})
    frame.sort_values("a").rename_axis(name).to_parquet(tmp_path / "own.parquet")
    shown = name or "__index_level_0__"
    with pytest.warns(UserWarning, match=f"The index '{shown}' of pandas was left out"):
        assert load_dataset("parquet", None, {"path": str(tmp_path / "own.parquet"), "label": "outcome"}).shape == (1,)
    frame = frame.rename(columns={"outcome": "mark"})
    frame.sort_values("a").rename_axis(name).to_parquet(tmp_path / "own.parquet")
    seen = covey.inspect(tmp_path / "own.parquet")
    assert (seen.label, seen.features) == ("mark", 1)
    assert any(f"'{shown}'" in note for note in seen.notes)
    # A named index may say whose a row is.
    frame.set_index("client").to_parquet(tmp_path / "own.parquet")
    assert covey.inspect(tmp_path / "own.parquet").holdings == {"x": 30, "y": 30}
