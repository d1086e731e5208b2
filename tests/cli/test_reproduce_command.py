"""`covey reproduce` finds the papers of a checkout; without one it says that it needs one."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import covey

SOURCE = Path(covey.__file__).parent


@pytest.mark.slow
def test_papers_of_a_checkout_are_found_from_anywhere(tmp_path):
    command = [sys.executable, "-c", "from covey.cli.main import main; main()", "reproduce", "--help"]
    helped = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert helped.returncode == 0, helped.stderr
    listed = subprocess.run(command[:-1], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr
    assert "covey reproduce PAPER --scale SCALE" in " ".join(listed.stdout.split())


def test_an_installation_without_papers_says_what_is_needed(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "a" / "b" / "covey", ignore=shutil.ignore_patterns("__pycache__"))
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'a' / 'b')!r}); from covey.cli.main import main; main()"
    refused = subprocess.run(
        [sys.executable, "-c", script, "reproduce"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert refused.stderr.startswith("covey: covey reproduce needs a checkout of Covey's repository")
    assert refused.stderr.count("\n") == 1
