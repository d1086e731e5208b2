"""New rows of a table are scored as a run's own rows are, and exported models say how."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import covey
from covey.core.build import dataset_of
from covey.errors import Refusal

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ROWS: list[dict[str, Any]] = [
    {"age": 20 + row if row % 7 else "", "colour": "red" if row % 3 else "blue", "seen": f"{1 + row % 28}.01.2024",
     "smokes": "yes" if row % 5 else "no", "label": "ill" if row % 2 else "well"}
    for row in range(60)
]  # fmt: skip
SMALL: dict[str, Any] = {
    "clients": 3, "cohort": 2, "rounds": 1, "workers": 1, "environment": "iid",
    "model": {"name": "mlp", "hidden": (8,)}, "local": {"epochs": 1, "batch": 10},
}  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


@pytest.fixture
def run(tmp_path):
    return covey.run(SMALL, dataset={"name": "csv", "path": str(write(tmp_path / "own.csv", ROWS))}, out=tmp_path / "r")


def test_the_runs_own_rows_become_the_samples_that_it_trained_on(run, tmp_path):
    again = run.features(tmp_path / "own.csv")
    data = dataset_of(run.config)
    known = {tuple(row) for row in torch.cat([data.x, data.test_x]).tolist()}
    assert {tuple(row) for row in again.tolist()} == known
    assert again.shape == (60, data.shape[0])


def test_columns_are_found_by_name_and_gaps_and_unseen_words_are_as_in_training(run, tmp_path):
    new = [{"smokes": "yes", "seen": "2.1.2024", "colour": "green", "age": ""}]
    with pytest.warns(UserWarning, match=r"'colour': 1 new row says what no training row does \(green\)"):
        found = run.features(write(tmp_path / "new.csv", new))
    age = next(column for column in dataset_of(run.config).columns if column.name == "age")
    first = min(1 + row % 28 for row in range(60))
    assert found.tolist() == [[age.fill, 1.0, 0.0, 0.0, 2.0 - first, 1.0]]


def test_answers_are_those_of_the_model_and_of_an_exported_program(run, tmp_path, covey_command):
    answers = run.predict(tmp_path / "own.csv")
    run.export(tmp_path / "model.ts")
    with torch.no_grad():
        logits = torch.jit.load(str(tmp_path / "model.ts"))(run.features(tmp_path / "own.csv"))
    assert np.allclose(answers["probability of ill"], logits.softmax(dim=1)[:, 0], atol=1e-5)
    assert answers["prediction"] == [["ill", "well"][place] for place in logits.argmax(dim=1).tolist()]
    said = covey_command("predict", run.folder, "--data", tmp_path / "own.csv", "--out", tmp_path / "scored.csv")
    assert said.code == 0
    rows = list(csv.DictReader((tmp_path / "scored.csv").open()))
    assert [row["prediction"] for row in rows] == answers["prediction"]
    assert list(rows[0]) == ["row", "prediction", "probability of ill", "probability of well"]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("rain,wind", ["probability of rain", "probability of wind"]),
        ("price, area", ["prediction of price", "prediction of area"]),
    ],
)
def test_several_answers_have_the_names_of_their_columns(columns, names, tmp_path):
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = [
        {"hour": row, "rain": row % 2, "wind": int(row % 3 == 0), "price": rng.random(), "area": rng.random()}
        for row in range(40)
    ]
    data = {"name": "csv", "path": str(write(tmp_path / "own.csv", rows)), "label": columns}
    run = covey.run(SMALL, dataset=data, out=tmp_path / "r")
    assert list(run.predict(tmp_path / "own.csv")) == names


class InDict(torch.nn.Module):
    """A model whose output is not the tensor itself."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.last = torch.nn.Linear(shape[0], outputs)

    def forward(self, x):
        return {"hidden": x, "logits": self.last(x)}


def test_a_model_with_an_output_of_another_kind_predicts(run, tmp_path):
    data = {"name": "csv", "path": str(tmp_path / "own.csv")}
    other = covey.run({**SMALL, "model": InDict}, dataset=data, out=tmp_path / "dict")
    answers = other.predict(tmp_path / "own.csv")
    shares = torch.tensor([answers["probability of ill"], answers["probability of well"]]).T
    known = dataset_of(other.config)
    x = (other.features(tmp_path / "own.csv") - torch.tensor(known.mean)) / torch.tensor(known.deviation)
    torch.testing.assert_close(shares, other.model()(x)["logits"].softmax(dim=1))


def test_targets_come_in_their_own_unit(tmp_path):
    rows = [{"a": row / 10, "price": 1000.0 + row} for row in range(60)]
    data = {"name": "csv", "path": str(write(tmp_path / "own.csv", rows)), "label": "price"}
    found = covey.run(SMALL, dataset=data, out=tmp_path / "r").predict(tmp_path / "own.csv")
    assert list(found) == ["prediction"]
    assert all(900 < value < 1200 for value in found["prediction"])


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        ({"age": "old"}, "was read as words; the model was trained on numbers"),
        ({"smokes": "3"}, "was read as numbers; the model was trained on yes and no"),
        ({"age": "1e60"}, "is not a finite float32 number"),
    ],
)
def test_rows_of_another_kind_are_refused(run, tmp_path, cells, sentence):
    with pytest.raises(Refusal, match=sentence):
        run.features(write(tmp_path / "new.csv", [{**ROWS[1], **cells}]))


def test_absent_columns_absent_files_and_data_sets_that_are_no_tables_are_refused(run, tmp_path):
    with pytest.raises(Refusal, match="lacks columns that the model was trained on: colour, seen, smokes"):
        run.features(write(tmp_path / "new.csv", [{"age": 3, "label": "ill"}]))
    with pytest.raises(Refusal, match="There is no file"):
        run.features(tmp_path / "absent.csv")
    digits = covey.run(SMALL, out=tmp_path / "digits")
    with pytest.raises(Refusal, match="The data set 'digits' is no table"):
        digits.predict(tmp_path / "own.csv")


def test_a_run_that_refuses_missing_values_refuses_them_in_new_rows(tmp_path):
    whole = [row for row in ROWS if row["age"]]
    data = {"name": "csv", "path": str(write(tmp_path / "own.csv", whole)), "missing": "refuse"}
    run = covey.run(SMALL, dataset=data, out=tmp_path / "r")
    with pytest.raises(Refusal, match="is a missing value"):
        run.predict(write(tmp_path / "new.csv", [{**whole[0], "age": ""}]))


def test_a_table_trained_from_parquet_is_scored_from_parquet_and_csv(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    rows = [{"a": row / 10, "word": "x" if row % 3 else "y", "label": row % 2} for row in range(60)]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "own.parquet")
    data = {"name": "parquet", "path": str(tmp_path / "own.parquet")}
    run = covey.run(SMALL, dataset=data, out=tmp_path / "r")
    assert torch.equal(run.features(tmp_path / "own.parquet"), run.features(write(tmp_path / "own.csv", rows)))
    assert len(run.predict(tmp_path / "own.parquet")["prediction"]) == 60


def test_cards_and_metadata_say_what_new_rows_need(run, tmp_path):
    run.export(tmp_path / "model.safetensors")
    with safe_open(str(tmp_path / "model.safetensors"), "pt") as file:
        columns = json.loads(file.metadata()["columns"])
    assert [column["column"] for column in columns] == ["age", "colour", "seen", "smokes"]
    data = dataset_of(run.config)
    assert sum(len(column["features"]) for column in columns) == data.shape[0]
    age, colour, seen, _ = columns
    assert age["missing"] == data.columns[0].fill
    assert age["features"] == ["age", "age is missing"]
    assert colour["words"] == ["blue", "red"]
    assert (seen["first_date"], seen["written"]) == ("2024-01-01", "day.month.year")
    card = (tmp_path / "model.safetensors.md").read_text()
    assert "| 2 to 3 | colour | 1 for its word, 0 for the others: blue, red; another word is all 0" in card
    assert "| 4 | seen | days from 2024-01-01 (written day.month.year); missing: 2024-01-" in card
    assert "normalised by `mean` and `deviation` in the file's metadata" in card
    run.export(tmp_path / "model.pt")
    assert "normalised: minus the mean (" in (tmp_path / "model.pt.md").read_text()
