"""Asking for help costs next to nothing: neither torch nor any algorithm is imported."""

import json
import re
import subprocess
import sys

import pytest

from covey import Config
from covey.cli import flags
from covey.cli.main import COMMANDS

PROBE = """
import json, sys, time
from covey.cli.main import main
sys.argv = ["covey", *sys.argv[1:]]
try:
    main()
finally:
    heavy = ("torch", "numpy", "flwr", "sklearn", "scipy.stats")
    print(json.dumps([time.process_time(), [name for name in heavy if name in sys.modules]]))
"""


def measured(*arguments):
    """CPU seconds, and the heavy modules that were imported."""
    command = [sys.executable, "-c", PROBE, *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout.splitlines()[-1])


@pytest.mark.slow
def test_help_takes_less_than_half_a_second():
    found = [measured("--help") for _ in range(4)]
    assert [heavy for _, heavy in found] == [[]] * 4
    assert min(seconds for seconds, _ in found) < 0.5


@pytest.mark.slow
def test_a_run_needs_neither_scikit_learn_nor_scipys_statistics(tmp_path):
    small = ["--clients", "6", "--cohort", "2", "--rounds", "1", "--workers", "1", "--runtime", "local"]
    assert measured("run", *small, "--out", str(tmp_path / "run"))[1] == ["torch", "numpy"]


@pytest.mark.parametrize("command", [name for commands in COMMANDS.values() for name in commands])
def test_the_help_of_every_command_imports_no_torch(command):
    assert measured(command, "--help")[1] == []


@pytest.mark.parametrize("arguments", [["fleet", "--help"], ["list"], ["list", "methods"], ["list", "selectors"]])
def test_fleet_help_and_lists_import_no_torch(arguments):
    assert measured(*arguments)[1] == []


def test_importing_covey_takes_less_than_a_second_and_a_half():
    script = "import covey, sys, time; print(time.process_time(), 'torch' in sys.modules)"
    seconds, torch = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert float(seconds) < 1.5
    assert torch == "False"


def test_defaults_in_the_help_are_those_of_a_configuration():
    config = Config.of(workers=0)
    plain = {"method": config.method, "dataset": config.dataset.name, "environment": config.environment.name,
             "model": config.model.name, "clients": config.clients, "rounds": config.rounds, "seed": config.seed,
             "runtime": Config.runtime, "precision": config.precision, "device": config.device,
             "cohort": config.cohort / config.clients, "workers": Config.workers}  # fmt: skip
    for name, default in plain.items():
        option = getattr(flags, f"{name.capitalize()}Flag").__metadata__[0]
        stated = re.search(r"default: ([\w.]+)", option.help)
        assert stated is not None, name
        assert stated[1] == str(default), name


def test_defaults_of_jobs_in_the_help_are_those_of_the_jobs():
    from covey.cli import agent_command, inspect_commands, on_demand_command
    from covey.job import agent_training, analysis, on_demand

    assert inspect_commands._ROUNDS == analysis.ROUNDS
    assert on_demand_command._ROUNDS == on_demand.ROUNDS
    assert agent_training.Offline.epochs == agent_command._EPOCHS
    assert agent_training.Offline.actor_rate == agent_command._ACTOR_RATE
