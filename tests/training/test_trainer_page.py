"""The page that teaches trainers: its files run as they stand, on both runtimes, and resume."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from tests.conftest import Answer
from tests.equal_runs import ends_the_same

PAGE = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text(encoding="utf-8")
FILES: dict[str, str] = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))
GIVEN: dict[str, Any] = {
    "clients": 6,
    "cohort": 3,
    "rounds": 4,
    "workers": 1,
    "precision": "fp64",
    "environment": {"name": "uniform", "samples": 24},
    "local": {"epochs": 2, "batch": 8, "rate": 0.05},
}


@pytest.mark.parametrize(("name", "trainer"), [("smooth", "Smooth"), ("habit", "Habit")])
def test_the_trainers_of_the_page_run(name: str, trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"page_{name}.py").write_text(FILES[name], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    given = {**GIVEN, "trainer": f"page_{name}:{trainer}"}
    monkeypatch.setattr("tests.equal_runs.resume", lambda folder: covey.resume(folder, trust=True))
    ends_the_same(given, tmp_path)
    plain = covey.run(GIVEN, out=tmp_path / "plain")
    assert covey.Run.open(tmp_path / "whole").metrics[-1]["loss"] != plain.metrics[-1]["loss"]


def test_the_pages_fedprox_is_fedprox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page_fedprox.py").write_text(FILES["prox"], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = covey.run(GIVEN, trainer={"name": "page_fedprox:Prox", "mu": 0.5}, out=tmp_path / "mine")
    ours = covey.run(GIVEN, trainer={"name": "fedprox", "mu": 0.5}, out=tmp_path / "ours")
    assert [row["loss"] for row in mine.metrics] == [row["loss"] for row in ours.metrics]


def test_the_pages_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, covey_command: Callable[..., Answer]
) -> None:
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # The current folder is on the path of a command; none of its modules may stay for other tests.
    for name in FILES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    blocks = re.findall(r"```\n(covey .*?)```", PAGE, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) == 6
    small = ["--clients", 4, "--cohort", 2, "--rounds", 1, "--set", "local.epochs=1", "--set", "workers=1"]
    for number, line in enumerate(lines):
        _, command, *words = shlex.split(line)
        # Flags that come later win.
        seeds = ["--seeds", 1] if command == "compare" else []
        more = [] if command == "list" else [*small, *seeds, "--out", tmp_path / str(number)]
        answer = covey_command(command, *words, *more)
        assert answer.code == 0, (line, answer)
    for name in FILES:
        sys.modules.pop(name, None)


def test_the_pages_other_code_runs() -> None:
    loose = re.findall(r"```python\n(?!#)(.*?)```", PAGE, re.DOTALL)
    assert len(loose) == 1
    one = {"w": torch.ones(2)}
    names: dict[str, Any] = {"covey": covey, "gradient": one, "direction": one}
    exec(loose[0], names)
    assert names["half"]["w"].tolist() == [0.5, 0.5]
    assert names["mixed"]["w"].tolist() == pytest.approx([1.0, 1.0])


def test_a_trainer_and_a_method_get_names_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = re.search(r"`(covey\.methods\.add.*?\)\))`", PAGE)
    assert said is not None
    for registry in (covey.trainers, covey.methods):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    names: dict[str, Any] = {"covey": covey}
    exec(FILES["smooth"].replace("class Smooth", '@covey.trainers.add("smooth")\nclass Smooth'), names)
    exec(said[1], names)
    run = covey.run({**GIVEN, "rounds": 1}, method="smooth", out=tmp_path / "run")
    assert run.config.trainer is not None and run.config.trainer.name == "smooth"


def test_the_page_names_every_fact_of_a_client_and_a_batch() -> None:
    for name in (*covey.LocalClient._fields, *covey.Batch._fields):
        assert f"`{name}`" in PAGE


def test_a_folder_that_names_a_trainer_of_somebodys_own_runs_it_only_with_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page_trusted.py").write_text(FILES["smooth"], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    def stop(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        covey.run({**GIVEN, "trainer": "page_trusted:Smooth"}, out=tmp_path / "run", on_round=stop)
    with pytest.raises(covey.Refusal, match="page_trusted:Smooth"):
        covey.resume(tmp_path / "run")
    accuracy = covey.Run.open(tmp_path / "run").evaluate()["accuracy"]
    assert isinstance(accuracy, float) and accuracy > 0
    assert covey.resume(tmp_path / "run", trust=True).metrics[-1]["round"] == GIVEN["rounds"]
