import ast
import csv
import json
import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey.config.schema import Config
from covey.core.build import build_federation
from covey.data import parquet
from covey.data.columns import Column, fitted
from covey.data.dataset import Dataset, load_dataset
from covey.data.own_split import split_rows
from covey.errors import Refusal

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ROWS = [
    {"age": 20 + row, "colour": "red" if row % 3 else "blue", "seen": f"2024-01-{1 + row % 28:02d}", "smokes": "yes",
     "unit": 7, "ward": f"w{row % 4}", "label": "ill" if row % 2 else "well"}
    for row in range(40)
]  # fmt: skip
ROWS[5]["smokes"] = "no"


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


def changed(row: int, **cells: Any) -> list[dict[str, Any]]:
    return [{**one, **cells} if number == row else one for number, one in enumerate(ROWS)]


def load(path: Path, **options: Any) -> Dataset:
    kind = "csv" if path.suffix == ".csv" else "parquet"
    return load_dataset(kind, None, {"path": str(path), "client": "ward", **options})


def test_words_dates_yes_and_no_become_numbers_and_each_says_so(tmp_path):
    data = load(write(tmp_path / "own.csv", ROWS))
    assert data.shape == (6,)
    ages = data.x[:, 0]
    blue, red, days, smokes, unit = data.x[:, 1:].T
    row = (ages - 20).long()
    assert torch.equal(blue, (row % 3 == 0).float())
    assert torch.equal(red, 1 - blue)
    assert torch.equal(days - days.min(), (row % 28 - (row % 28).min()).float())
    assert torch.equal(smokes, (row != 5).float())
    assert set(unit.tolist()) == {7.0}
    said = " ".join(data.notes)
    assert "'colour': words, as 2 features of 0 and 1 (blue, red)." in said
    assert "'seen': a date, as days from 2024-01-0" in said
    assert "'smokes': yes or no, as 1 and 0" in said
    assert "'unit': a number, kept; it is the same in all training rows" in said
    assert "'age'" not in said


def test_conversions_are_said_once_when_the_file_is_read(tmp_path):
    path = write(tmp_path / "said.csv", ROWS)
    said = r"said.csv: 4 columns were converted, or filled in where a value is missing. All: covey inspect .*said.csv$"
    with pytest.warns(UserWarning, match=said):
        load(path)
    one = [{"a": row, "colour": "rb"[row % 2], "label": row % 2} for row in range(20)]
    with pytest.warns(UserWarning, match=r"one.csv: 'colour': words, as 2 features of 0 and 1 \(b, r\).$"):
        load(write(tmp_path / "one.csv", one), client="client")
    plain = [{"a": row, "ward": row % 2, "label": row % 2} for row in range(20)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(write(tmp_path / "plain.csv", plain))


@pytest.mark.parametrize("blank", ["", "NA", "nan", "?", "null"])
def test_a_missing_number_becomes_the_median_of_the_training_rows(tmp_path, blank):
    rows = changed(10, age=blank)
    data = load(write(tmp_path / "own.csv", rows))
    both = torch.cat([data.x, data.test_x])
    gap = both[:, 1] == 1
    held = bool((data.test_x[:, 1] == 1).any()) if both.shape[1] == 7 else True
    if both.shape[1] == 7 and not held:
        known = data.x[data.x[:, 1] == 0, 0]
        assert int(gap.sum()) == 1
        assert both[gap, 0].item() == np.median(known)
        assert "1 training row lacks it, the median" in " ".join(data.notes)
    with pytest.raises(Refusal, match=r"line 12, column 'age': '.*' is a missing value; with dataset.missing="):
        load(tmp_path / "own.csv", missing="refuse")


def test_a_category_that_training_rows_lack_is_all_zero_and_said(tmp_path):
    data = load(write(tmp_path / "own.csv", ROWS))
    tested = int(data.test_x[0, 0]) - 20
    strange = load(write(tmp_path / "own.csv", changed(tested, colour="green")))
    assert strange.shape == data.shape
    assert strange.test_x[0, 1:3].tolist() == [0, 0]
    assert "'colour': 1 test row says what no training row does (green)" in " ".join(strange.notes)
    lacking = load(write(tmp_path / "own.csv", changed(tested, colour="")))
    assert lacking.test_x[0, 1:3].tolist() == [0, 0]
    assert "'colour': 1 test row lacks it, and no training row does" in " ".join(lacking.notes)


def test_a_class_that_training_rows_lack_is_said(tmp_path):
    data = load(write(tmp_path / "own.csv", ROWS))
    tested = int(data.test_x[0, 0]) - 20
    with pytest.warns(UserWarning, match=r"own.csv: 1 class is in the test samples alone \('dead'\)"):
        strange = load(write(tmp_path / "own.csv", changed(tested, label="dead")))
    assert strange.class_names == ("dead", "ill", "well")
    assert strange.notes[-1] == "1 class is in the test samples alone ('dead'): no model can learn them."


@pytest.mark.parametrize(
    ("rows", "options", "sentence"),
    [
        (changed(7, age="old"), {}, r"line 9, column 'age': 'old' is not a number, .* dataset.categorical=age"),
        (changed(7, age="inf"), {}, r"line 9, column 'age': 'inf' is not a finite float32 number"),
        ([{**row, "label": "ill"} for row in ROWS], {}, "there is only one class, 'ill'"),
        (changed(7, label=" "), {}, r"line 9: the column 'label' is empty"),
        (changed(7, ward=""), {}, r"line 9: the column 'ward' is empty"),
        ([{"ward": row["ward"], "label": row["label"]} for row in ROWS], {}, "no columns beside 'label' and 'ward'"),
        (ROWS, {"ignore": ("age", "colour", "seen", "smokes", "unit")}, "no columns beside 'label' and 'ward'"),
        ([{**row, "id": f"p{number}"} for number, row in enumerate(ROWS)], {"categories": 20},
         "column 'id' has 32 different words .*, more than the 20 .* dataset.ignore=id"),
        (ROWS, {"test_column": "colour"}, r"line 2: the column 'colour' says 'blue'; it must say test or train"),
        (ROWS, {"ignore": ("height",)}, "has no column 'height'"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_used_are_refused_with_the_line_or_the_column(tmp_path, rows, options, sentence):
    with pytest.raises(Refusal, match=sentence):
        load(write(tmp_path / "own.csv", rows), **options)


def test_numbers_may_be_taken_for_categories(tmp_path):
    data = load(write(tmp_path / "own.csv", ROWS), categorical="unit", ignore="age,seen")
    assert data.shape == (4,)
    assert data.x[:, 3].tolist() == [1.0] * len(data.x)


def test_a_column_or_a_second_file_may_say_what_is_held_out(tmp_path):
    marked = [{**row, "fold": "test" if number < 9 else "train"} for number, row in enumerate(ROWS)]
    by_column = load(write(tmp_path / "own.csv", marked), test_column="fold")
    write(tmp_path / "train.csv", ROWS[9:])
    write(tmp_path / "test.csv", ROWS[:9])
    by_file = load(tmp_path / "train.csv", test_file=str(tmp_path / "test.csv"))
    for data in (by_column, by_file):
        assert sorted(data.test_x[:, 0].tolist()) == list(range(20, 29))
        assert data.test_groups is not None and data.test_groups.tolist() == [n % 4 for n in range(9)]
    assert by_column.shape == by_file.shape


@pytest.mark.parametrize("split", ["within", "last", "by-client"])
def test_natural_clients_have_the_tests_that_the_split_gives_them(tmp_path, split):
    write(tmp_path / "own.csv", ROWS)
    dataset = {"name": str(tmp_path / "own.csv"), "client": "ward", "split": split, "test": 0.25, "ignore": "seen"}
    federation = build_federation(covey.Config.of(dataset=dataset, environment="natural"))
    ages = federation.dataset.x[:, 0] - 20
    if split == "by-client":
        assert federation.test_parts is None
        assert federation.clients == 3
        tested = {f"w{int(age - 20) % 4}" for age in federation.dataset.test_x[:, 0]}
        assert len(tested) == 1 and not tested & set(federation.names)
        assert f"1 client has test samples alone ('{tested.pop()}')" in " ".join(federation.dataset.notes)
        return
    assert federation.test_parts is not None
    for client, name in enumerate(federation.names):
        own = federation.dataset.test_x[federation.test_parts[client], 0] - 20
        assert len(own) == 3 and {f"w{int(row) % 4}" for row in own} == {name}
        if split == "last":
            assert ages[federation.parts[client]].max() < own.min()
    shared = covey.Config.of(dataset=dataset, environment={"name": "natural", "tests": "shared"})
    assert build_federation(shared).test_parts is None
    old = covey.Config.stored(
        {"dataset": dataset, "environment": {"name": "natural"}, "clients": 4, "method": "fedavg"}
    )
    assert build_federation(old).test_parts is None


def test_a_client_with_one_sample_trains_and_has_no_tests(tmp_path):
    rows = changed(7, ward="lone")
    federation = build_federation(
        covey.Config.of(
            dataset={"name": str(write(tmp_path / "own.csv", rows)), "client": "ward"}, environment="natural"
        )
    )
    lone = federation.names.index("lone")
    assert federation.test_parts is not None
    assert (federation.sizes[lone], len(federation.test_parts[lone])) == (1, 0)
    assert "1 client has no test samples of their own." in " ".join(federation.dataset.notes)


def test_an_older_folder_of_a_federation_that_was_passed_in_is_resumed(tmp_path):
    x, y, sites = np.eye(40, 5), np.arange(40) % 2, np.arange(40) % 4
    federation = covey.federation(x, y, sites)
    assert federation.test_parts is not None
    old = covey.Federation(federation.dataset, federation.parts, shared=False, names=federation.names)
    settings: dict[str, Any] = {"cohort": 2, "workers": 1}
    covey.run(settings, federation=old, rounds=1, out=tmp_path / "run")
    assert covey.resume(tmp_path / "run", federation=federation).finished


def test_dates_as_text_in_parquet_are_told_of(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range("2024-01-01", periods=100)
    frame = pandas.DataFrame({"day": days.strftime("%Y-%m-%d"), "label": ["ill", "well"] * 50})
    frame.to_parquet(tmp_path / "own.parquet")
    with pytest.raises(covey.Refusal, match=r"here dates are a column of that type, not of text \(pandas.to_datetime"):
        parquet(None, path=str(tmp_path / "own.parquet"))
    frame.assign(day=days).to_parquet(tmp_path / "own.parquet")
    assert parquet(None, path=str(tmp_path / "own.parquet")).columns[0].kind == "date"


@pytest.mark.parametrize("kind", ["parquet", "feather", "arrow"])
def test_arrow_tables_are_understood_as_csv_files_are(tmp_path, kind, monkeypatch):
    pandas, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(ROWS)
    frame["seen"], frame["smokes"] = pandas.to_datetime(frame["seen"]), frame["smokes"] == "yes"
    frame.loc[3, "age"] = np.nan
    rows = frame.assign(
        seen=frame["seen"].dt.strftime("%Y-%m-%d"), smokes=frame["smokes"].map({True: "yes", False: "no"})
    )
    plain = load(write(tmp_path / "own.csv", rows.astype(object).where(rows.notna(), "").to_dict("records")))
    path = tmp_path / f"own.{kind}"
    table = pa.Table.from_pandas(frame)
    if kind == "parquet":
        frame.to_parquet(path, row_group_size=7)
    else:
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=7)
    data = load(path)
    monkeypatch.setattr("covey.data.arrow_table.READ_AT_ONCE", 0)
    streamed = parquet(None, path=str(path), client="ward")
    for one in (data, streamed):
        for field in ("x", "y", "test_x", "test_y"):
            assert torch.equal(getattr(one, field)[:], getattr(plain, field))
        assert one.notes == plain.notes
        assert one.group_names == plain.group_names
        assert one.mean == pytest.approx(plain.mean, abs=1e-12)
    some = torch.tensor([20, 3, 3, 11])
    assert torch.equal(streamed.x[some], plain.x[some])
    streamed.x.keep_within(1 << 20)  # type: ignore[attr-defined]
    assert torch.equal(streamed.x[some], plain.x[some])
    assert streamed.x.resident  # type: ignore[attr-defined]


def test_a_run_on_a_streamed_table_is_that_on_one_in_memory(tmp_path, monkeypatch):
    frame = pytest.importorskip("pandas").DataFrame(ROWS)
    frame.to_parquet(tmp_path / "own.parquet", row_group_size=9)
    losses = []
    for at_once in (1 << 26, 0):
        monkeypatch.setattr("covey.data.arrow_table.READ_AT_ONCE", at_once)
        load_dataset.__globals__["_load"].cache_clear()
        run = covey.run(
            dataset={"name": str(tmp_path / "own.parquet"), "client": "ward"}, environment="natural", cohort=2,
            rounds=2, workers=1, host_memory_limit="1KiB", out=tmp_path / f"run{at_once}",
        )  # fmt: skip
        losses.append(run.metrics[-1]["loss"])
    assert losses[0] == losses[1]


def test_lists_of_numbers_are_vectors(tmp_path):
    frame = pytest.importorskip("pandas").DataFrame(ROWS)[["ward", "label"]]
    frame["reading"] = [np.arange(4.0) + row for row in range(40)]
    frame.to_parquet(tmp_path / "own.parquet")
    data = load(tmp_path / "own.parquet")
    assert data.shape == (4,)
    assert {tuple((row - row[0]).tolist()) for row in data.x} == {(0, 1, 2, 3)}
    frame.at[8, "reading"] = np.arange(3.0)
    frame.to_parquet(tmp_path / "own.parquet")
    with pytest.raises(Refusal, match=r"column 'reading'.* lists.* have different lengths \(3, 4\)"):
        parquet(None, path=str(tmp_path / "own.parquet"), client="ward")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"age": None}, "row 6: the column 'label' is empty"),
        ({"what": [{"a": 1}] * 40}, r"column 'what' is of the type struct.*dataset.ignore=what"),
        ({"age": [np.inf] * 40}, r"row\[\d+\] holds a value that is not a finite float32 number"),
    ],
)
def test_arrow_tables_that_cannot_be_used_are_refused(tmp_path, change, sentence):
    frame = pytest.importorskip("pandas").DataFrame(ROWS).assign(**change)
    if change == {"age": None}:
        frame.loc[6, "label"] = None
    frame.to_parquet(tmp_path / "own.parquet")
    with pytest.raises(Refusal, match=sentence):
        load(tmp_path / "own.parquet")


def test_a_damaged_parquet_file_is_refused_in_a_sentence(tmp_path):
    pytest.importorskip("pandas").DataFrame(ROWS).to_parquet(tmp_path / "own.parquet")
    good = (tmp_path / "own.parquet").read_bytes()
    for at in range(4, 400, 20):
        (tmp_path / "own.parquet").write_bytes(good[:at] + b"\xff" * 12 + good[at + 12 :])
        with pytest.raises(Refusal, match=r"own.parquet"):
            load(tmp_path / "own.parquet")


def test_what_is_no_parquet_file_is_refused(tmp_path):
    (tmp_path / "own.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(Refusal, match=r"own.parquet cannot be read as a table"):
        load(tmp_path / "own.parquet")


def test_without_pyarrow_the_refusal_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "own.parquet").write_text("")
    with pytest.raises(Refusal, match=r"pip install '.\[parquet\]'"):
        load(tmp_path / "own.parquet")


def test_a_folder_of_npy_files_is_a_data_set(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(120.0).reshape(40, 3))
    np.save(tmp_path / "y.npy", np.array(["a", "b"] * 20))
    np.save(tmp_path / "client.npy", np.arange(40) % 4)
    dataset = {"name": "npy", "path": str(tmp_path)}
    assert build_federation(covey.Config.of(dataset=dataset, environment="natural")).sizes.tolist() == [8] * 4
    np.save(tmp_path / "y.npy", np.array([object()] * 40))
    with pytest.raises(Refusal, match=r"y.npy is not an array, or holds Python objects"):
        covey.inspect(tmp_path)


def test_a_column_is_fitted_on_what_it_is_given():
    found = fitted("c", "category", np.array(["b", "", "a", "b"]), 9, "file")
    assert found == Column("c", "category", ("a", "b"), gaps=1)
    assert found.encode(np.array(["b", "", "new"])).tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert found.features == ["c=a", "c=b", "c is missing"]
    number = fitted("n", "number", np.array([1.0, np.nan, 4.0, 2.0]), 9, "file")
    assert number.encode(np.array([np.nan, 3.0])).tolist() == [[2, 1], [3, 0]]


def test_a_split_by_client_needs_clients():
    with pytest.raises(Refusal, match="a split by client needs at least two clients, and there are none named"):
        split_rows(None, 10, 0.2, "own", how="by-client")
    with pytest.raises(Refusal, match="split is one of within, last, by-client, not 'time'"):
        covey.federation(np.eye(4), [0, 1, 0, 1], [0, 0, 1, 1], split="time")  # type: ignore[arg-type]


def test_inspect_shows_what_was_understood(tmp_path, covey_command):
    path = write(tmp_path / "own.csv", changed(7, ward="lone"))
    answer = covey_command("inspect", path, "--client", "ward", "--json")
    assert answer.code == 0, answer.err
    seen = answer.json
    assert (seen["samples"], seen["features"], seen["label"], seen["task"]) == (40, 6, "label", "classification")
    assert seen["classes"] == {"ill": 20, "well": 20}
    assert seen["clients"] == {"lone": 1, "w0": 10, "w1": 10, "w2": 10, "w3": 9}
    assert [column["kind"] for column in seen["columns"]] == ["number", "category", "date", "yes or no", "number"]
    assert "1 client has one sample alone: lone." in seen["notes"]
    shown = covey_command("inspect", path)
    said = " ".join(shown.out.split())
    assert shown.code == 0 and "read as csv" in said and "no column names them" in said
    assert seen["command"] == f"covey run --dataset {path} --environment natural --set dataset.client=ward --cohort 5"
    json.dumps(seen)


def test_the_command_of_inspect_reads_the_file_as_inspect_did(tmp_path, covey_command):
    path = write(tmp_path / "my own.csv", ROWS)
    given = ["dataset.ignore=seen,age", "dataset.split=by-client", "dataset.test=0.25", "dataset.categories=9"]
    options = [word for one in given for word in ("--set", one)]
    answer = covey_command("inspect", path, "--client", "ward", *options, "--json")
    assert answer.code == 0, answer.err
    program, command, *words = shlex.split(answer.json["command"])
    assert (program, command) == ("covey", "run")
    assert words[:4] == ["--dataset", str(path), "--environment", "natural"]
    assert words[-2:] == ["--cohort", "3"]
    assert sorted(words[5:-2:2]) == sorted([*given, "dataset.client=ward"])
    described = covey_command("describe", *words[:-2], "--json")
    assert described.code == 0, described.err
    assert described.json["clients"] == 3, "the fourth client is the test"


def test_options_that_no_command_can_say_become_a_call_in_python(tmp_path):
    rows = [{"a,b": row, "c": row % 5, " label": "xy"[row % 2]} for row in range(30)]
    seen = covey.inspect(write(tmp_path / "own.csv", rows), ignore=("a,b",))
    assert seen.command.startswith("covey.run(dataset={'name': 'csv'")
    dataset = ast.literal_eval(seen.command.removeprefix("covey.run(dataset=").removesuffix(")"))
    assert covey.inspect(dataset.pop("path"), **{name: dataset[name] for name in ("label", "ignore")}).features == 1


def test_inspect_leaves_out_a_column_of_names_and_its_command_too(tmp_path, covey_command):
    rows = [
        {"patient": f"P{row}", "age": row % 50, "site": "ab"[row % 2], "outcome": "xy"[row % 3 > 1]}
        for row in range(90)
    ]
    path = write(tmp_path / "own.csv", rows)
    seen = covey.inspect(path)
    assert [column.name for column in seen.columns] == ["age"]
    assert any("'patient' has 72 different words" in note and "dataset.ignore=patient;" in note for note in seen.notes)
    assert "--set dataset.ignore=patient" in seen.command
    assert shlex.split(seen.command)[-2:] == ["--cohort", "2"]
    assert covey_command("describe", *shlex.split(seen.command)[2:-2]).code == 0
    assert [column.name for column in covey.inspect(path, categories=72).columns] == ["patient", "age"]
    with pytest.raises(Refusal, match="no features"):
        covey.inspect(path, ignore=("age",))


@pytest.mark.parametrize(("clients", "default", "cohort"), [(3, 1, 3), (15, 2, 15), (45, 4, 20), (200, 20, None)])
def test_inspect_suggests_all_clients_a_round_where_they_are_few(tmp_path, clients, default, cohort):
    rows = [{"a": row, "site": f"s{row % clients}", "label": "xy"[row // clients % 2]} for row in range(4 * clients)]
    seen = covey.inspect(write(tmp_path / "own.csv", rows))
    assert any(f"here {default} of these {clients}" in note for note in seen.notes) == (cohort is not None)
    assert ("--cohort" in seen.command) == (cohort is not None)
    assert cohort is None or f"--cohort {cohort}" in seen.command
    dataset = {"name": "csv", "path": str(tmp_path / "own.csv"), "client": "site"}
    assert Config.of({"dataset": dataset, "environment": "natural"}).cohort == default


def test_inspect_guesses_columns_and_tasks_and_says_so(tmp_path):
    rows = [{"site": row % 3, "a": row, "target": row / 7} for row in range(30)]
    seen = covey.inspect(write(tmp_path / "own.csv", rows))
    assert (seen.label, seen.client, seen.guess.task) == ("target", "site", "regression")
    assert "'target' was taken for the label by its name: dataset.label=target." in seen.notes
    same = covey.inspect(write(tmp_path / "one.csv", [{**row, "label": "x"} for row in ROWS]), client="ward")
    assert "There is only one class, 'x': a run is refused." in same.notes
    np.savez(tmp_path / "own.npz", x=np.zeros((20, 1, 4, 4), np.uint8), y=np.arange(20) % 2)
    assert covey.inspect(tmp_path / "own.npz").columns[0].kind == "samples of shape 1 x 4 x 4, uint8"
    for name, sentence in (("own.txt", "none of the endings"), ("absent.csv", "There is no file")):
        with pytest.raises(Refusal, match=sentence):
            covey.inspect(tmp_path / name)


def test_a_table_without_the_label_is_answered_with_what_to_type(tmp_path, covey_command):
    path = write(tmp_path / "own.csv", [{"a": row, "outcome": "xy"[row % 2]} for row in range(30)])
    said = covey_command("run", "--dataset", path).err
    assert "no column 'label' (it has: a, outcome); by the names 'outcome' is the label, so type: " in said
    assert "--set dataset.label=outcome" in said and f"covey inspect {path}" in said


def test_the_flags_of_a_refusal_are_those_that_inspect_prints_and_work(tmp_path, covey_command):
    rows = [{"a": row, "State of it": "xy"[row % 2], "Hospital": ["kiel", "bonn"][row // 20]} for row in range(40)]
    path = write(tmp_path / "own.csv", rows)
    said = covey_command("analyze", "--dataset", path, "--environment", "natural").err
    assert "'Hospital' is the client, so type: --set dataset.label=COLUMN --set dataset.client=Hospital" in said
    path = write(tmp_path / "own.csv", [{"Outcome": row.pop("State of it"), **row} for row in rows])
    said = covey_command("analyze", "--dataset", path, "--environment", "natural").err
    flags = shlex.split(said.partition("type: ")[2].partition(". The whole")[0])
    assert flags == ["--set", "dataset.label=Outcome", "--set", "dataset.client=Hospital"]
    shown = covey_command("inspect", path).out
    assert all(flag in shown for flag in flags) and "go with covey analyze and covey compare" in " ".join(shown.split())
    assert covey_command("analyze", "--dataset", path, "--environment", "natural", *flags).code == 0
