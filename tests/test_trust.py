"""Folders are data: nothing that is read back imports or calls anything by name, unless the caller says so."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import covey
from covey import Refusal, Run
from covey.config.values import own_names
from covey.job.comparison.execution import resume_comparison
from covey.job.comparison.plan import place_of
from covey.job.on_demand import resume_ondemand
from tests.conftest import SMALL, Answer, without_timings

EXAMPLE = Path(__file__).parents[1] / "examples" / "own" / "fair.py"
FAIR: dict[str, Any] = {"selector": "fair:LeastInvited", "aggregator": {"name": "fair:Median", "step": 0.5}}

HOSTILE = "import pathlib\npathlib.Path({mark!r}).touch()\ndef load(*given, **options): raise SystemExit\n"


def edited(folder: Path, **settings: Any) -> Path:
    """Write other settings into a run folder."""
    path = folder / "config.json"
    stored = json.loads(path.read_text())
    stored["config"] = {key: value for key, value in {**stored["config"], **settings}.items() if value is not None}
    path.write_text(json.dumps(stored))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, which tests copy."""
    return covey.run(SMALL, out=tmp_path_factory.mktemp("made") / "run").folder


@pytest.fixture
def run_folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


@pytest.fixture
def fair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))


ATTACKS: dict[str, dict[str, Any]] = {
    "dataset": {"dataset": {"name": "os:system"}, "data_dir": "touch PWNED"},
    "counted": {"dataset": "os:system", "data_dir": "touch PWNED", "environment": "natural", "clients": None},
    "environment": {"environment": "payload:load"},
    "model": {"model": {"name": "payload:load"}},
    "selector": {"method": None, "selector": {"name": "payload:load"}},
    "aggregator": {"method": None, "aggregator": "payload:load", "selector": "uniform"},
    "pair": {"method": "payload:load+average", "selector": None, "aggregator": None},
    "inner": {"method": None, "selector": "uniform", "aggregator": {"name": "ondemand", "inner": "payload:load"}},
    "around": {
        "method": None,
        "selector": "uniform",
        "aggregator": {"name": "norm-bound", "around": "norm-bound, around=payload:load,weighted=false"},
    },
    "trainer": {"method": None, "selector": "uniform", "aggregator": "average", "trainer": {"name": "payload:load"}},
    "task": {"task": {"name": "payload:load"}},
    "many": {"method": "payload:load", "selector": None, "aggregator": None},
    "insight": {"method": "fedacs", "selector": {"name": "fedacs", "insight": "payload:load"}},
    "twice": {
        "method": None,
        "selector": "uniform",
        "aggregator": {"name": "norm-bound", "around": "payload:load,weighted=fair:Median"},
    },
    # Importing runs a module, whatever follows the colon.
    "unnamed": {"method": None, "selector": "uniform", "aggregator": {"name": "norm-bound", "around": "payload:"}},
    "dashed": {"method": None, "selector": "uniform", "aggregator": {"name": "norm-bound", "around": "pay-load:x"}},
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(
    "command", ["report", "evaluate", "export", "resume", "ondemand", "analyze", "show", "runs", "rm"]
)
def test_no_command_runs_what_a_run_folder_names(
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    covey_command: Callable[..., Answer],
    attack: str,
    command: str,
) -> None:
    edited(run_folder, **ATTACKS[attack])
    for name in ("payload.py", "pay-load.py"):
        (run_folder.parent / name).write_text(HOSTILE.format(mark=str(run_folder.parent / "PWNED")))
    monkeypatch.chdir(run_folder.parent)
    monkeypatch.delitem(sys.modules, "payload", raising=False)
    words = {"ondemand": ["run", "--target", "0=1", "--estimator", "ground-truth"], "analyze": ["--from", "run"]}
    words |= {"runs": ["."], "rm": ["run", "--yes"]}
    answer = covey_command(command, *words.get(command, ["run"]))
    assert not (run_folder.parent / "PWNED").exists()
    assert "payload" not in sys.modules
    assert answer.code in (0, 2), answer.err
    assert "Traceback" not in answer.err
    if command == "resume" and attack in ("unnamed", "dashed"):
        assert answer.code == 2 and "package.module:name" in answer.err
    elif command == "resume":
        name = "os:system" if attack in ("dataset", "counted") else "payload:load"
        assert answer.code == 2
        assert name in answer.err and "--trust" in answer.err and "trust=True" in answer.err


def test_a_refusal_names_all_parts_in_question(run_folder: Path) -> None:
    edited(run_folder, dataset="one:load", model="two:Net", method=None, selector="three:Turns")
    with pytest.raises(Refusal, match="dataset one:load, model two:Net, selector three:Turns"):
        covey.resume(run_folder)


def test_a_module_in_the_folder_is_not_imported_even_with_trust(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, covey_command: Callable[..., Answer]
) -> None:
    mark = run_folder.parent / "PWNED"
    for name in ("payload.py", "__init__.py"):
        (run_folder / name).write_text(HOSTILE.format(mark=str(mark)))
    for name, place in (("run.payload:load", run_folder.parent), ("payload:load", run_folder)):
        edited(run_folder, dataset={"name": name})
        monkeypatch.chdir(place)
        for command in ("evaluate", "export", "resume"):
            answer = covey_command(command, run_folder, "--trust")
            assert answer.code == 2
            assert "lies in" in answer.err
    assert not mark.exists()


def test_a_module_in_a_comparison_is_not_imported_for_one_of_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    covey.compare(["fedavg"], 1, given=SMALL, out=tmp_path / "all")
    (tmp_path / "all" / "payload.py").write_text(HOSTILE.format(mark=str(tmp_path / "PWNED")))
    monkeypatch.syspath_prepend(str(tmp_path))
    edited(tmp_path / "all" / "fedavg" / "seed-0", dataset="all.payload:load")
    with pytest.raises(Refusal, match="lies in"):
        Run.open(tmp_path / "all" / "fedavg" / "seed-0", trust=True)
    assert not (tmp_path / "PWNED").exists()


def test_files_of_the_current_folder_are_not_imported_as_packages(run_folder: Path) -> None:
    """Packages that Covey imports only if they are installed must not come from a folder of results."""
    for name in ("plotly", "pandas", "tensorboard", "dp_accounting", "flwr", "json"):
        (run_folder / f"{name}.py").write_text("raise SystemExit('imported from the folder')")
    for command in (["-m", "covey"], ["-c", "from covey.cli.main import main; main()"]):
        options = ["-P"] if command[0] == "-c" else []
        answer = subprocess.run(
            [sys.executable, *options, *command, "evaluate", ".", "--json"],
            cwd=run_folder,
            env={**os.environ, "PYTHONPATH": str(Path(covey.__file__).parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr


def test_each_of_several_names_in_one_option_is_judged(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, covey_command: Callable[..., Answer]
) -> None:
    mark = run_folder.parent / "PWNED"
    (run_folder / "payload.py").write_text(HOSTILE.format(mark=str(mark)))
    monkeypatch.chdir(run_folder.parent)
    around = {"name": "norm-bound", "around": "run.payload:load,weighted=fair:Median"}
    edited(run_folder, method=None, selector="uniform", aggregator=around)
    answer = covey_command("resume", run_folder, "--trust")
    assert answer.code == 2 and "lies in" in answer.err
    with pytest.raises(Refusal, match=r"run\.payload:load"):
        covey.resume(run_folder, trust=["fair:Median"])
    assert not mark.exists()


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl.part", "checkpoint.safetensors.part", "report.html.part"])
def test_links_in_a_folder_are_not_written_through(
    run_folder: Path, covey_command: Callable[..., Answer], name: str
) -> None:
    """An archive may hold links, and what they point to is not the folder's."""
    edited(run_folder, rounds=3)
    precious = run_folder.parent / "precious"
    precious.write_text("mine")
    (run_folder / name).symlink_to(precious)
    answers = [covey_command("resume", run_folder), covey_command("report", run_folder)]
    assert precious.read_text() == "mine"
    assert "Traceback" not in "".join(answer.err for answer in answers)
    assert {answer.code for answer in answers} <= {0, 2}
    (run_folder / ".lock").unlink(missing_ok=True)
    assert covey_command("resume", run_folder).code == 0


def test_a_comparisons_runs_lie_in_its_folder(tmp_path: Path) -> None:
    for label in ("..", ".", "../..", "a/../../b"):
        assert place_of(tmp_path, label, 0).resolve().is_relative_to(tmp_path.resolve() / "")
        assert place_of(tmp_path, label, 0).parent.resolve() not in (tmp_path.resolve(), tmp_path.resolve().parent)


@pytest.mark.usefixtures("fair")
def test_own_parts_are_trusted_in_the_call_that_names_or_trusts_them(tmp_path: Path) -> None:
    whole = covey.run(SMALL, **FAIR, out=tmp_path / "whole")
    part = covey.run(SMALL, **FAIR, rounds=2, out=tmp_path / "part").folder
    edited(part, rounds=3)
    with pytest.raises(Refusal, match="selector fair:LeastInvited, aggregator fair:Median"):
        covey.resume(part)
    with pytest.raises(Refusal, match=r"names code .* aggregator fair:Median"):
        covey.resume(part, trust=["fair:LeastInvited"])
    resumed = covey.resume(part, trust=True, workers=1)
    assert without_timings(resumed.metrics) == without_timings(whole.metrics)
    assert Run.open(part).evaluate()["accuracy"] == whole.metrics[-1]["accuracy"]


@pytest.mark.usefixtures("fair")
def test_a_comparison_is_resumed_by_the_call_that_names_its_parts_or_with_trust(tmp_path: Path) -> None:
    methods = ["fedavg", "fair:LeastInvited+fair:Median"]
    given: dict[str, Any] = {"given": SMALL, "out": tmp_path / "all"}
    first = covey.compare(methods, 1, **given)
    cut = tmp_path / "all" / "fair-LeastInvited+fair-Median" / "seed-0"
    shutil.rmtree(cut)
    with pytest.raises(Refusal, match=r"selector of fair:LeastInvited.fair:Median fair:LeastInvited"):
        resume_comparison(tmp_path / "all")
    assert not cut.exists()
    assert covey.compare(methods, 1, **given).rows == first.rows
    shutil.rmtree(cut)
    assert resume_comparison(tmp_path / "all", trust=True).rows == first.rows


def own_data(data_dir: Path | None, /) -> covey.Dataset:
    """Two classes of points."""
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(200, 4)).astype(np.float32))
    y = (x[:, 0] > 0).long()
    return covey.Dataset("points", x[:160], y[:160], x[160:], y[160:], ("left", "right"))


def test_own_data_is_needed_to_evaluate_and_not_to_report(tmp_path: Path) -> None:
    own = f"{__name__}:own_data"
    given = {**SMALL, "environment": "iid", "dataset": own}
    run = covey.run(given, out=tmp_path / "run")
    assert run.evaluate()["accuracy"] == run.metrics[-1]["accuracy"]
    page = covey.report([tmp_path / "run"]).read_text()
    assert own in page
    assert "could not be rebuilt here" in page
    with pytest.raises(Refusal, match=f"dataset {own}"):
        Run.open(tmp_path / "run").evaluate()
    assert Run.open(tmp_path / "run", trust=True).evaluate()["accuracy"] == run.metrics[-1]["accuracy"]
    compared = covey.compare(["fedavg"], 1, given=given, out=tmp_path / "all")
    assert compared.runs["fedavg"][0].evaluate()["accuracy"] is not None

    target = {"left": 0.7, "right": 0.3}
    asked: dict[str, Any] = {"estimator": "ground-truth", "rounds": 1, "out": tmp_path / "job"}
    with pytest.raises(Refusal, match=f"dataset {own}"):
        covey.ondemand(tmp_path / "run", target, **asked)
    job = covey.ondemand(tmp_path / "run", target, trust=True, **asked)
    with pytest.raises(Refusal, match=f"dataset {own}"):
        resume_ondemand(tmp_path / "job")
    again = resume_ondemand(tmp_path / "job", trust=True)
    assert again.tailored[0].scored == job.tailored[0].scored


def test_a_jobs_settings_name_no_parts(tmp_path: Path, run_folder: Path) -> None:
    covey.ondemand(run_folder, "0=1", estimator="ground-truth", rounds=1, out=tmp_path / "job")
    path = tmp_path / "job" / "ondemand.json"
    job = json.loads(path.read_text())
    (tmp_path / "job" / "target-1" / "checkpoint.safetensors").unlink()
    for hostile in ({"dataset": "os:system"}, {"dataset.name": "os:system"}):
        path.write_text(json.dumps({**job, "plan": {**job["plan"], "settings": hostile}}))
        with pytest.raises(Refusal, match="is that of the base run"):
            resume_ondemand(tmp_path / "job")


def test_an_agents_file_names_no_code(tmp_path: Path, covey_command: Callable[..., Answer]) -> None:
    path = tmp_path / "agent.safetensors"
    save_file({"actor.main": torch.zeros(3)}, path, {"agent": json.dumps({"kind": "os:system", "meaning": {}})})
    answer = covey_command("run", "--agent", path, "--out", tmp_path / "run")
    assert answer.code == 2
    assert "is for the aggregator 'os:system', which is not installed" in answer.err


def test_a_fleets_folder_names_no_code(tmp_path: Path, covey_command: Callable[..., Answer]) -> None:
    pytest.importorskip("flwr")
    made = covey_command("fleet", "init", tmp_path / "fleet", "--sites", "a,b", "--shape", "4", "--classes", "2")
    assert made.code == 0, made.err
    for path, line in (
        (tmp_path / "fleet" / "fleet.toml", '\n[run]\nmethod = "fedavg"\nmodel = "os:system"\n'),
        (tmp_path / "fleet" / "sites" / "a" / "site.toml", '\n[node]\nallow = "os:system"\n'),
    ):
        before = path.read_text()
        path.write_text(before.partition("\n[run]")[0] + line)
        words = ["node", path.parent] if path.name == "site.toml" else ["run", path.parent]
        answer = covey_command("fleet", *words)
        assert answer.code == 2
        assert "os:system" in answer.err and "--trust" in answer.err
        path.write_text(before)


DEEP = "[" * 100_000


@pytest.mark.parametrize("name", ["environment.json", "checkpoint.safetensors", "metrics.jsonl", "config.json"])
def test_files_that_are_nested_deeply_are_refused_with_a_sentence(
    run_folder: Path, covey_command: Callable[..., Answer], name: str
) -> None:
    if name == "checkpoint.safetensors":
        save_file({"model": torch.zeros(3)}, run_folder / name, {"covey": DEEP})
    else:
        (run_folder / name).write_text(f"{DEEP}\n")
    for command in ("report", "evaluate", "resume"):
        answer = covey_command(command, run_folder)
        assert answer.code in (0, 2), answer.err
        assert "Traceback" not in answer.err


def test_settings_and_agents_that_are_nested_deeply_are_refused_with_a_sentence(
    tmp_path: Path, covey_command: Callable[..., Answer]
) -> None:
    agent, settings = tmp_path / "agent.safetensors", tmp_path / "fleet.toml"
    save_file({"actor.main": torch.zeros(3)}, agent, {"agent": DEEP})
    settings.write_text(f"sites = {DEEP}")
    shutil.copy(settings, tmp_path / "site.toml")
    for arguments in (
        ("run", "--agent", agent, "--out", tmp_path / "run"),
        ("run", "--config", settings, "--out", tmp_path / "run"),
        ("fleet", "status", tmp_path),
        ("fleet", "join", tmp_path),
    ):
        answer = covey_command(*arguments)
        assert answer.code == 2, answer.err
        assert "cannot be read" in answer.err or "is not valid TOML" in answer.err


def test_a_folder_writes_no_escape_sequences_to_the_terminal(
    run_folder: Path, covey_command: Callable[..., Answer]
) -> None:
    """Those could set the clipboard, or pass for the output of another command."""
    hostile = "\x1b]52;c;cm0gLXJmIH4=\x07fed\x1b[31mavg"
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    rows[0]["dropped"] = [{"client": 0, "reason": hostile}]
    (run_folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (run_folder / "names.json").write_text(json.dumps([hostile] * 8))
    shown = covey_command("resume", run_folder)
    assert shown.code == 0 and "reply was dropped" in shown.out
    run_folder = run_folder.rename(run_folder.parent / "\x1b[31mred")
    for command in ("show", "runs", "report", "evaluate", "export", "resume"):
        answer = covey_command(command, run_folder)
        assert answer.code == 0 and not any(mark in answer.out + answer.err for mark in "\x1b\x07"), command
    edited(run_folder, method=hostile, selector={"name": hostile})
    answers = [shown, *(covey_command(command, run_folder) for command in ("resume", "report", "evaluate"))]
    assert answers[1].code == 2 and "fedavg" in answers[1].err
    assert not any(mark in answer.out + answer.err for answer in answers for mark in "\x1b\x07")


def test_columns_of_a_table_are_not_taken_for_code() -> None:
    assert own_names({"dataset": {"name": "csv", "label": "site:state"}, "model": "mlp"}) == {}
    assert own_names({"dataset": {"name": "my:load", "label": "site:state"}}) == {
        "dataset": "my:load",
        "dataset.label": "site:state",
    }
    assert own_names({"dataset": "covey.fleet.samples:load", "method": "fedacs+fair:Median"}) == {
        "aggregator": "fair:Median"
    }
