"""The Flower quickstart: one command runs it before and after Covey, and the steps by hand are those that work."""

import contextlib
import difflib
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from covey.fleet.processes import free_port, listens
from tests.programs import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples/flower-quickstart"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what Flower leaves running is found through /proc")


def fresh_environment(**more: str) -> dict[str, str]:
    """Return the environment of a shell in which nobody has prepared anything for Flower."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **more}


def running(word: str) -> list[str]:
    """Return the commands of all processes that name a word in them or in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command, environment = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
            if word.encode() in command + environment:
                found.append(command.replace(b"\0", b" ").decode())
    return found


@pytest.fixture
def short():
    """Return a folder for temporary files with a short path, as Ray's sockets need."""
    with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_one_command_runs_both_apps_from_any_folder_and_leaves_nothing(tmp_path, short):
    """Two rounds are enough to see two accuracies; that Covey's is higher is measured over thirty."""
    copied = tmp_path / "copied"
    shutil.copytree(QUICKSTART, copied)
    # Settings for some other SuperLink do not matter.
    surroundings = fresh_environment(
        STARTED_BY=str(tmp_path), FLWR_HOME="/nowhere", FLWR_LOCAL_SUPERLINK_HTTP_API_PORT="1"
    )
    command = [sys.executable, "run.py", "--seeds", "1", "--rounds", "2"]
    done = subprocess.run(command, cwd=copied, env=surroundings, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    before, after, said = done.stdout.splitlines()
    first = re.fullmatch(r"before, FedAvg in plain Flower: +([\d.]+)%", before)
    second = re.fullmatch(r"after,  covey of Covey: +([\d.]+)%", after)
    assert first and second, done.stdout
    gain = re.match(r"([+-][\d.]+) points with Covey, on one seed", said)
    assert gain, said
    assert float(gain[1]) == pytest.approx(float(second[1]) - float(first[1]), abs=0.11)
    assert list(short.iterdir()) == []
    assert running(str(short)) == []


@pytest.mark.slow
def test_a_stopped_comparison_leaves_nothing(short):
    surroundings = fresh_environment(TMPDIR=str(short))
    program = subprocess.Popen([sys.executable, str(QUICKSTART / "run.py")], env=surroundings)
    wait_until(lambda: any("flwr-simulation" in one for one in running(str(short))), "the simulation")
    program.send_signal(signal.SIGTERM)
    assert program.wait(PATIENCE) == 143
    assert list(short.iterdir()) == []
    assert running(str(short)) == []


def test_the_conclusion_says_no_more_than_the_accuracies():
    conclusion = runpy.run_path(str(QUICKSTART / "run.py"))["conclusion"]
    said = conclusion([0.7, 0.8], [0.9, 0.7])
    assert said == "+5.0 points with Covey on average; higher on 1 of 2 seeds (+20.0, -10.0)."
    assert conclusion([0.7], [0.65]).startswith("-5.0 points with Covey, on one seed")


def test_no_seeds_are_refused_with_a_sentence():
    command = [sys.executable, str(QUICKSTART / "run.py"), "--seeds", "0"]
    done = subprocess.run(command, capture_output=True, text=True, env=fresh_environment())
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "run.py: error: --seeds and --rounds are at least 1, not 0 and 30.",
    )


def by_hand() -> tuple[str, str, str]:
    """Return the README's commands for a SuperLink and for an app, and the port that both use."""
    readme = (QUICKSTART / "README.md").read_text()
    (superlink,) = re.findall(r"^flower-superlink .*", readme, re.MULTILINE)
    flwr = re.findall(r"^flwr run .*", readme, re.MULTILINE)[0]
    (given,) = re.findall(r"^export FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=(\d+)", readme, re.MULTILINE)
    assert f"--port {given} " in superlink
    return superlink, flwr, given


def test_the_steps_by_hand_start_the_programs_that_there_are():
    superlink, flwr, _ = by_hand()
    assert all(shutil.which(shlex.split(one)[0], path=fresh_environment()["PATH"]) for one in (superlink, flwr))


@pytest.mark.proof
def test_the_quickstart_runs_by_hand_as_its_readme_says(tmp_path):
    """Rounds aside: three are enough to see that it learns."""
    superlink, flwr, given = by_hand()
    port = str(free_port())
    surroundings = fresh_environment(FLWR_HOME=str(tmp_path / "home"), FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=port)
    shutil.copytree(QUICKSTART / "after", tmp_path / "after")
    link = subprocess.Popen(
        shlex.split(superlink.replace(given, port)),
        cwd=tmp_path,
        env=surroundings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: listens(int(port)), "the SuperLink")
        command = [*shlex.split(flwr), "--run-config", "num-server-rounds=3"]
        done = subprocess.run(command, cwd=tmp_path / "after", env=surroundings, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert len(re.findall(r"'accuracy': '([\d.e+-]+)'", said)) >= 3, said
        assert "Covey: covey" in said
        assert (tmp_path / "final_model.pt").exists()
    finally:
        link.terminate()
        link.wait()
        wait_until(lambda: running(str(tmp_path)) == [], "Flower's programs to end")


def test_the_quickstarts_differ_in_a_handful_of_lines():
    before, after = QUICKSTART / "before", QUICKSTART / "after"
    assert (before / "quickstart/task.py").read_text() == (after / "quickstart_covey/task.py").read_text()
    added = 0
    for name in ("client_app.py", "server_app.py"):
        old = (before / "quickstart" / name).read_text().replace("quickstart.", "quickstart_covey.").splitlines()
        new = (after / "quickstart_covey" / name).read_text().splitlines()
        added += sum(line.startswith("+ ") for line in difflib.ndiff(old, new))
    assert added <= 20
