"""Programs that go on beside each other while what they have is copied."""

import os
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.side_by_side import named_commands

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "side_by_side.py"


def call(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, words)], capture_output=True, text=True, check=False)


def begin(work: Path, **programs: str) -> str:
    jobs = [f"{name}={sys.executable} -c '{program}'" for name, program in programs.items()]
    return call("start", "--work", work, *jobs).stdout


def test_programs_go_on_and_what_they_have_is_copied(tmp_path: Path) -> None:
    work, kept, out, gate = (tmp_path / name for name in ("work", "kept", "out", "gate"))
    kept.mkdir()
    waits = f"""
import pathlib, time
print("at work", flush=True)
while not pathlib.Path("{gate}").exists():
    time.sleep(0.05)
print("over")
raise SystemExit(4)"""
    writes = f"""import pathlib; pathlib.Path("{kept}/found.json").write_text("1"); print("wrote it")"""
    try:
        assert begin(work, long=waits, short=writes) == "long: begun\nshort: begun\n"
        assert begin(work, long=waits).startswith("long: is running")
        while not (kept / "found.json").exists() or "at work" not in (work / "long.log").read_text(encoding="utf-8"):
            time.sleep(0.05)
        first = call("collect", "--work", work, "--out", out, "--keep", kept, "--seconds", 1)
        assert first.returncode == 3 and "long: goes on. at work" in first.stdout
        with tarfile.open(out / "kept.tar.gz") as tar:
            assert tar.getnames() == ["kept/found.json"]
        gate.touch()
        last = call("collect", "--work", work, "--out", out, "--keep", kept, "--seconds", 600)
        assert last.returncode == 0, last
        assert last.stdout == "long: ended with 4. over\nshort: ended with 0. wrote it\n"
        assert (out / "long.log").read_text(encoding="utf-8") == "at work\nover\n"
        # One that has ended begins again.
        assert begin(work, short=writes) == "short: begun\n"
    finally:
        for pid in work.glob("*.pid"):
            with suppress(ProcessLookupError):
                os.killpg(int(pid.read_text(encoding="utf-8")), signal.SIGKILL)


@pytest.mark.parametrize("text", ["no command", "=true", "a b=true", "name="])
def test_jobs_have_a_name_and_a_command(text: str) -> None:
    with pytest.raises(SystemExit, match="name=command"):
        named_commands([text])
