"""`covey list` reads a stored catalogue, which must agree with the registries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from covey.cli.catalogue import FILE, KINDS, SETTINGS

PLUGIN = '''
class Spread:
    """Invites every client once before any of them twice."""

    def __init__(self, *, pause: int = 3) -> None:
        self.pause = pause
'''


def covey(*arguments, folder, installed=True):
    """Run a command in a folder whose packages are installed, or just lie there."""
    command = [sys.executable, "-m", "covey", *arguments]
    path = [str(Path(FILE).parents[2]), *([str(folder)] if installed else [])]
    options = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": os.pathsep.join(path)}}
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.slow
def test_the_stored_catalogue_is_that_of_the_registries():
    script = "import json; from covey.cli.catalogue import build_catalogue; print(json.dumps(build_catalogue()))"
    built = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert json.loads(FILE.read_text(encoding="utf-8")) == json.loads(built), "run: python -m covey.cli.catalogue"


def test_without_a_kind_it_says_which_there_are(covey_command):
    assert all(kind in covey_command("list").out for kind in KINDS)
    assert [row["name"] for row in covey_command("list", "--json").json] == [*KINDS, SETTINGS]


def test_options_are_shown_as_one_types_them(covey_command):
    assert "hidden=64" in covey_command("list", "models").out
    (mlp,) = [part for part in covey_command("list", "models", "--json").json if part["name"] == "mlp"]
    assert mlp["options"] == {"hidden": [64], "norm": "none"}


@pytest.mark.slow
def test_parts_of_other_packages_are_listed_too(tmp_path):
    (tmp_path / "spread.py").write_text(PLUGIN)
    info = tmp_path / "spread-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spread\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[covey.selectors]\nspread = spread:Spread\n")
    nearby = json.loads(covey("list", "selectors", "--json", folder=tmp_path, installed=False).stdout)
    assert "spread" not in [part["name"] for part in nearby], "a file in the current folder is not installed"
    listed = json.loads(covey("list", "selectors", "--json", folder=tmp_path).stdout)
    assert {"name": "spread", "summary": "Invites every client once before any of them twice.",
            "options": {"pause": 3}} in listed  # fmt: skip
    assert [part["name"] for part in listed] == sorted(part["name"] for part in listed)
    (info / "entry_points.txt").write_text("[covey.selectors]\nspread = spread:Absent\n")
    refused = covey("list", "selectors", folder=tmp_path)
    assert refused.returncode == 2
    assert "The selector 'spread' comes from the entry point spread:Absent" in refused.stderr
