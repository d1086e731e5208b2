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
