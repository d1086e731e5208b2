"""The stacked runtime in programs of its own."""

import subprocess
import sys

import pytest
import torch


def test_a_comparison_warns_of_it_once(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    flags = ["--methods", "fedavg,fedprox", "--seeds", "2", "--rounds", "1", "--clients", "4", "--runtime", "stacked"]
    command = [sys.executable, "-m", "covey.cli.main", "compare", *flags, "--out", str(tmp_path / "runs")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stderr.count("There is no GPU here") == 1
