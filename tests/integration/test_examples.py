"""Every example runs as its README says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(*command: str, **environment: str) -> str:
    answer = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_own_arrays():
    said = run(sys.executable, "examples/own/arrays.py")
    assert "3 clients: coast, north, south" in said
    accuracy = re.search(r"accuracy after 20 rounds: ([\d.]+)%", said)
    assert accuracy
    assert float(accuracy[1]) > 80


def test_own_table():
    said = run(sys.executable, "examples/own/table.py")
    csv, npz = re.findall(r"4 growers, accuracy ([\d.]+)%", said)
    assert csv == npz
    assert float(csv) > 85


@pytest.mark.parametrize(("example", "least"), [("transformer", 0.8), ("transfer", 0.8)])
def test_models_of_ones_own_learn_as_they_do_in_one_place(example, least, tmp_path):
    program = EXAMPLES / "own" / f"{example}.py"
    answer = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    federated, alone = (float(found) / 100 for found in re.findall(r"(?:rounds|epochs): ([\d.]+)%", answer.stdout))
    assert federated > least
    # Three standard errors of a difference on 397 test samples.
    assert abs(federated - alone) < 3 * (2 * alone * (1 - alone) / 397) ** 0.5
    assert example != "transfer" or "of which 2600 are the head's" in answer.stdout


def test_a_dataset_larger_than_the_memory_given():
    said = run(sys.executable, "examples/own/larger_than_memory.py")
    found = re.search(r"4,000 clients, accuracy ([\d.]+)%; (\d+) MiB used", said)
    alone = re.search(r"in one place, accuracy ([\d.]+)%", said)
    assert found
    assert alone
    assert float(found[1]) > 80
    assert int(found[2]) < 64
    # Three standard errors of a difference on 4,000 test samples.
    assert abs(float(found[1]) - float(alone[1])) < 100 * 3 * (2 * 0.86 * 0.14 / 4000) ** 0.5


def test_parquet_by_client_is_as_good_as_plain_pytorch_in_one_place():
    said = run(sys.executable, "-W", "ignore", "examples/own/parquet_by_client.py")
    ours, plain = map(float, re.findall(r"accuracy ([\d.]+)%", said))
    assert said.startswith("4 wards")
    # 480 test rows: two standard errors of a share of 0.84 are 3.3 points.
    assert ours > 80
    assert abs(ours - plain) < 3.3


@pytest.mark.parametrize(("name", "noise"), [("regression", 2.5), ("multilabel", 2.0)])
def test_a_task_is_learned_as_well_as_by_pytorch_in_one_place(name, noise):
    said = run(sys.executable, f"examples/tasks/{name}.py")
    federated, together = (float(figure) for figure in re.findall(r"(?:RMSE|precision) ([\d.]+)", said))
    assert abs(federated - together) < noise


def test_every_example_on_own_data_and_tasks_is_short():
    programs = [*EXAMPLES.glob("own/*.py"), *EXAMPLES.glob("tasks/*.py")]
    assert len(programs) >= 11
    lines = {one.name: len(one.read_text().splitlines()) for one in programs}
    assert {name: count for name, count in lines.items() if count >= 40} == {}


@pytest.mark.parametrize(
    "flags",
    [
        ["--dataset", "rings:load", "--environment", "dirichlet"],
        ["--model", "narrow:Narrow", "--set", "environment.samples=50"],
        ["--selector", "fair:LeastInvited", "--aggregator", "fair:Median", "--set", "environment.samples=50"],
        ["--model", "narrow:Narrow", "--set", "model.width=8", "--set", "environment.samples=50"],
    ],
)
def test_own_data_models_and_algorithms_by_name(flags, tmp_path):
    command = [
        sys.executable,
        "-m",
        "covey.cli.main",
        "run",
        *flags,
        "--rounds",
        "20",
        "--out",
        str(tmp_path / "run"),
        "--json",
    ]
    result = json.loads(run(*command, PYTHONPATH=str(EXAMPLES / "own")))
    assert result["accuracy"] > 0.7


def test_the_readme_names_every_example():
    text = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.glob("own/*.py"):
        assert path.name in text or f"{path.stem}:" in text
