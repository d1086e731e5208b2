"""Parts of other packages, found through entry points."""

import subprocess
import sys

import pytest

PLUGIN = '''
import numpy as np
from covey import Recipe, Selector

class FirstCome(Selector):
    """Always the clients with the lowest numbers."""

    def __init__(self, *, skip: int = 0) -> None:
        self.skip = skip

    def select(self, round, candidates):
        return candidates[self.skip : self.skip + self.setting.cohort]

METHOD = Recipe("First come, first served.", selector="first-come")
'''


@pytest.fixture
def plugin_folder(tmp_path):
    """An installed package, as pip would leave it: a module and its entry points."""
    (tmp_path / "firstcome.py").write_text(PLUGIN)
    info = tmp_path / "firstcome-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: firstcome\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[covey.selectors]\nfirst-come = firstcome:FirstCome\nbroken = firstcome:Absent\n"
        "[covey.methods]\nfirst-come = firstcome:METHOD\n"
    )
    return tmp_path


def run_python(code: str, folder) -> str:
    answer = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_parts_of_other_packages_come_through_entry_points(plugin_folder):
    code = """
import covey
for given in ({"method": "first-come"}, {"method": "first-come", "selector": {"skip": 2}}, {"selector": "first-come"}):
    run = covey.run(given, rounds=1, clients=6, cohort=2, workers=1, out=f"run-{len(str(given))}")
    print(run.metrics[0]["clients"])
print("first-come" in covey.methods.names())
"""
    assert run_python(code, plugin_folder).split("\n")[:4] == ["[0, 1]", "[2, 3]", "[0, 1]", "True"]


def test_a_broken_entry_point_is_named_only_when_it_is_asked_for(plugin_folder):
    code = """
import covey
try:
    covey.Config.of(selector="broken")
except covey.Refusal as refusal:
    print(refusal)
covey.Config.of(selector="uniform")
"""
    assert "The selector 'broken' comes from the entry point firstcome:Absent" in run_python(code, plugin_folder)
