"""On Windows every module but those for fleets and the server can be imported."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.errors import Refusal
from covey.flower.memory_file import _turns
from tests.conftest import Answer

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_module_but_fleets_and_the_server_can_be_imported_without_what_only_unix_has() -> None:
    command = [sys.executable, "-m", "tests.conventions.import_all"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    imported, of, all_, _ = done.stdout.split()
    assert (imported, of) == (all_, "of")
    assert int(all_) > 250


def test_a_client_s_memory_is_refused_where_files_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(Refusal, match="Linux or macOS"), _turns(tmp_path / "memory"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("command", "lacking"), [(("serve", "runs"), "killpg"), (("fleet", "status", "f"), "fork")])
def test_the_server_and_fleets_are_refused_where_they_cannot_run(
    command: tuple[str, ...], lacking: str, covey_command: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, lacking)
    answer = covey_command(*command)
    assert (answer.code, answer.out) == (2, "")
    assert "Linux or macOS" in answer.err
