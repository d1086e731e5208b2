"""CSV files as they are found: separators, encodings, decimal commas and dates, each said where it is converted."""

import csv
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import covey
from covey.data.dataset import Dataset, load_dataset
from covey.errors import Refusal

AMOUNTS = np.random.default_rng(0).normal(size=40).round(4)
ROWS = [[f"{amount}", f"2024-{1 + row % 12:02d}-{1 + row % 28:02d}", f"c{row % 2}", ("ill", "well")[row % 3 == 0]]
        for row, amount in enumerate(AMOUNTS)]  # fmt: skip
HEADER = ["a", "seen", "client", "label"]


def write(path: Path, rows: list[list[str]], separator: str = ",", encoding: str = "utf-8") -> Path:
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=separator).writerows([HEADER, *rows])
    return path


def load(path: Path, **options: str) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_dataset("csv", None, {"path": str(path), **options})


def changed(column: int, form) -> list[list[str]]:
    return [[*row[:column], form(row[column]), *row[column + 1 :]] for row in ROWS]


@pytest.fixture
def plain(tmp_path) -> Dataset:
    return load(write(tmp_path / "plain.csv", ROWS))


def comma(word: str) -> str:
    return word.replace(".", ",")


@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_another_separator_is_found_and_said(tmp_path, plain, separator, name):
    found = load(write(tmp_path / "own.csv", ROWS, separator))
    assert torch.equal(found.x, plain.x)
    assert found.notes == (f"Its columns are separated by {name}.", *plain.notes)
    assert covey.inspect(tmp_path / "own.csv").notes[0] == found.notes[0]


def test_commas_separate_where_they_can(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("a (x;y;z),label\n" + "\n".join(f"{row};0,{row % 2}" for row in range(10)))
    assert load(path).class_names == ("0", "1")


@pytest.mark.parametrize("separator", [",", ";"])
def test_decimal_commas_are_numbers_and_said(tmp_path, plain, separator):
    found = load(write(tmp_path / "own.csv", changed(0, comma), separator))
    assert torch.equal(found.x, plain.x)
    assert "Column 'a' was read as numbers with a decimal comma." in found.notes
    amounts = [[*row[:3], comma(row[0])] for row in changed(0, comma)]
    regression = load(write(tmp_path / "own.csv", amounts, separator))
    assert regression.learns.name == "regression"
    back = regression.learns.original(regression.y)[:, 0].sort().values
    assert set(back.numpy().round(4)) <= set(AMOUNTS)
    assert "Columns 'a', 'label' were read as numbers with a decimal comma." in regression.notes


def test_a_word_among_decimal_commas_is_refused_with_its_line(tmp_path):
    rows = changed(0, comma)
    rows[5][0] = "much"
    with pytest.raises(Refusal, match=r"line 7, column 'a': 'much' is not a number"):
        load(write(tmp_path / "own.csv", rows))


@pytest.mark.parametrize("column", [0, 3])
def test_a_comma_that_may_separate_thousands_is_refused(tmp_path, column):
    rows = [[*row[:column], f"1,{100 + number}", *row[column + 1 :]] for number, row in enumerate(ROWS)]
    with pytest.raises(Refusal, match=r"line 2, column '.*': '1,100' may have a decimal comma or .* dataset.categoric"):
        load(write(tmp_path / "own.csv", rows))
    # Between semicolons, a comma is a decimal one.
    assert load(write(tmp_path / "own.csv", rows, ";")).shape is not None


def test_what_is_not_utf_8_is_read_as_windows_1252_and_said(tmp_path):
    rows = [[*row[:3], {"ill": "böse", "well": "gut €"}[row[3]]] for row in ROWS]
    found = load(write(tmp_path / "own.csv", rows, encoding="cp1252"))
    assert found.class_names == ("böse", "gut €")
    assert found.notes[0].startswith("It is not UTF-8 (line ")
    (tmp_path / "own.csv").write_bytes("a,label\n1,ä\n".encode("utf-16"))
    with pytest.raises(Refusal, match=r"cannot be read as CSV: .* save it as UTF-8"):
        load(tmp_path / "own.csv")


@pytest.mark.parametrize(
    ("form", "order"),
    [
        ("{2}.{1}.{0}", "day.month.year"),
        ("{2}/{1}/{0}", "day/month/year"),
        ("{1}/{2}/{0}", "month/day/year"),
        ("{0}/{1}/{2}", "year/month/day"),
    ],
)
def test_dates_in_one_order_are_days(tmp_path, plain, form, order):
    rows = changed(1, lambda date: form.format(*date.split("-")))
    found = load(write(tmp_path / "own.csv", rows))
    assert torch.equal(found.x, plain.x)
    assert f"Column 'seen' was read as dates, {order}." in found.notes
    timed = changed(1, lambda date: form.format(*date.split("-")) + " 12:00")
    shifted = load(write(tmp_path / "own.csv", timed))
    assert torch.equal(shifted.x, plain.x)


def test_dates_whose_order_nothing_shows_are_words(tmp_path):
    rows = changed(1, lambda date: f"0{1 + int(date[-2:]) % 9}/0{1 + int(date[-2:]) % 7}/2024")
    seen = covey.inspect(write(tmp_path / "own.csv", rows))
    assert [column.kind for column in seen.columns] == ["number", "category"]
    assert any("Column 'seen' was read as words: they may be dates, and nothing shows" in note for note in seen.notes)
    words = covey.inspect(tmp_path / "own.csv", categorical="seen")
    assert not any("dates" in note for note in words.notes)


def test_lines_of_blanks_are_no_rows(tmp_path, plain):
    path = write(tmp_path / "own.csv", ROWS)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(["", "  ", lines[0], *lines[1:9], "  ", "", *lines[9:], " "]))
    assert torch.equal(load(path).x, plain.x)
    path.write_text("\n\n  \n")
    with pytest.raises(Refusal, match=r"own.csv has no rows\."):
        load(path)


def test_a_column_without_any_value_tells_nothing_and_says_so(tmp_path):
    found = load(write(tmp_path / "own.csv", changed(0, lambda amount: "")))
    assert "'a': no training row has a value; it tells nothing." in found.notes
    assert bool(torch.isfinite(found.x).all())
