"""Parts of one's own, found by the command line."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from covey import Run
from covey.config.choice import Choice
from tests.test_own_parts import EXAMPLE


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`covey` as it is installed, which does not have the current folder on its path by itself."""
    code = "import sys; sys.path = [one for one in sys.path if one]; from covey.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False)


def test_an_algorithm_in_the_current_folder_goes_by_name_and_is_not_needed_to_look_at_its_run(tmp_path):
    shutil.copy(EXAMPLE, tmp_path / "fair.py")
    flags = ["--selector", "fair:LeastInvited", "--aggregator", "fair:Median", "--set", "aggregator.step=0.5"]
    size = ["--clients", "6", "--cohort", "2", "--rounds", "3", "--workers", "1", "--set", "environment.samples=20"]
    made = command(tmp_path, "run", *flags, *size, "--out", "run")
    assert made.returncode == 0, made.stderr
    run = Run.open(tmp_path / "run")
    assert [row["clients"] for row in run.metrics] == [[0, 1], [2, 3], [4, 5]]
    assert run.config.aggregator == Choice("fair:Median", {"step": 0.5})

    (tmp_path / "fair.py").unlink()
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    scored = command(tmp_path, "evaluate", "run", "--json")
    assert json.loads(scored.stdout)["accuracy"] == run.metrics[-1]["accuracy"]
    for words in (["report", "run"], ["export", "run"]):
        looked = command(tmp_path, *words)
        assert looked.returncode == 0, looked.stderr
    assert "fair:LeastInvited" in (tmp_path / "run" / "report.html").read_text()
    refused = command(tmp_path, "resume", "run")
    assert refused.returncode == 2
    assert "selector fair:LeastInvited, aggregator fair:Median" in refused.stderr
    refused = command(tmp_path, "resume", "run", "--trust")
    assert refused.returncode == 2
    assert "The selector 'fair:LeastInvited' cannot be imported" in refused.stderr


def test_the_readmes_algorithm_runs_as_it_stands_there(tmp_path):
    text = (EXAMPLE.parents[2] / "README.md").read_text()
    shown = re.search(r"```python\n(# turns\.py\n.*?)```\n\n```\n(covey run [^\n]*)", text, re.DOTALL)
    assert shown
    (tmp_path / "turns.py").write_text(shown[1])
    few = ["--rounds", "4", "--clients", "8", "--cohort", "3", "--set", "devices.availability=0.25", "--out", "run"]
    made = command(tmp_path, *shown[2].split()[1:], *few)
    assert made.returncode == 0, made.stderr
    assert [len(row["clients"]) for row in Run.open(tmp_path / "run").metrics] == [2, 2, 2, 2]
