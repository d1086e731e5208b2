"""Users' own algorithms: found by name, their answers checked; their runs can be read without them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey import Aggregator, Refusal, Run, Selector
from covey.job.comparison.execution import resume_comparison
from covey.page.run_report import report as write_report

EXAMPLE = Path(__file__).parents[1] / "examples" / "own" / "fair.py"
SMALL: dict[str, Any] = {"clients": 6, "cohort": 2, "rounds": 2, "workers": 1, "environment.samples": 20}
FAIR: dict[str, Any] = {"selector": "fair:LeastInvited", "aggregator": {"name": "fair:Median", "step": 0.5}}


class Chosen(Selector):
    """Choose what a test has set."""

    answer: Any = None

    def select(self, t, candidates):
        return self.answer


class Found(Aggregator):
    """Return what a test has set, or its result for the model."""

    answer: Any = None

    def combine(self, t, model, replies):
        return self.answer(model) if callable(self.answer) else self.answer


class Neither:
    """Neither a selector nor an aggregator."""


class Edited(Selector):
    """Has options."""

    def __init__(self, *, powers: list[int] = [1], share: float | None = None) -> None:  # noqa: B006 (not written to)
        self.powers, self.share = powers, share

    def select(self, t, candidates):
        return candidates[: self.setting.cohort]


class Needy(Edited):
    def __init__(self, *, power: float) -> None:
        super().__init__()


class Positional(Edited):
    def __init__(self, power) -> None:
        super().__init__()


class Unfinished(Selector):
    """Selects nobody."""


def own(name: str) -> str:
    return f"{__name__}:{name}"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ([0, 0], "The selector Chosen chose a client more than once: list [0, 0]."),
        ([0, 1, 2], "The selector Chosen chose 3 clients for a cohort of at most 2."),
        ([0, 9], "The selector Chosen chose client 9, which is none of the round's 6 candidates."),
        ([-1], "The selector Chosen chose client -1, which"),
        ([0.0, 1.0], "The selector Chosen must return an array of client numbers, not list [0.0, 1.0]."),
        ([[0, 1]], "The selector Chosen must return an array of client numbers, not list [[0, 1]]."),
        ([[0], [1, 2]], "The selector Chosen must return an array of client numbers, not list [[0], [1, 2]]."),
        (np.array([2**63 + 5], dtype=np.uint64), "The selector Chosen chose client 9223372036854775813, which"),
        (None, "The selector Chosen must return an array of client numbers, not None."),
    ],
)
def test_a_selectors_answer_is_a_choice_among_the_candidates(tmp_path, monkeypatch, answer, sentence):
    monkeypatch.setattr(Chosen, "answer", answer)
    with pytest.raises(Refusal) as refused:
        covey.run(SMALL, selector=own("Chosen"), out=tmp_path / "run")
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize("answer", [[3, 1], (3, 1), torch.tensor([3, 1]), np.array([3, 1], dtype=np.int32)])
def test_a_cohort_may_come_in_any_order_and_kind(tmp_path, monkeypatch, answer):
    monkeypatch.setattr(Chosen, "answer", answer)
    run = covey.run(SMALL, selector=own("Chosen"), out=tmp_path / "run")
    assert [row["clients"] for row in run.metrics] == [[1, 3], [1, 3]]


def test_nobody_may_be_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(Chosen, "answer", [])
    run = covey.run(SMALL, selector=own("Chosen"), out=tmp_path / "run")
    assert [row["clients"] for row in run.metrics] == [[], []]


@pytest.mark.parametrize(
    ("answer", "given"),
    [
        (None, "None"),
        (lambda model: model[:3], "one of the shape (3,)"),
        (lambda model: model.numpy()[:1], "ndarray array("),
    ],
)
def test_an_aggregators_answer_is_a_model(tmp_path, monkeypatch, answer, given):
    monkeypatch.setattr(Found, "answer", staticmethod(answer) if callable(answer) else answer)
    with pytest.raises(
        Refusal, match="The aggregator Found must return the next model, a tensor of the shape"
    ) as refused:
        covey.run(SMALL, aggregator=own("Found"), out=tmp_path / "run")
    assert f"not {given}" in str(refused.value)


def test_a_model_that_is_not_finite_is_not_taken_and_no_client_is_blamed(tmp_path, monkeypatch):
    beyond = [torch.inf, 1e300, 1.0, torch.nan]

    def combine(model):
        return model.double() + beyond.pop(0)

    monkeypatch.setattr(Found, "answer", staticmethod(combine))
    with pytest.warns(UserWarning, match="The aggregator Found returned NaN or infinity in round") as told:
        run = covey.run(SMALL, aggregator=own("Found"), rounds=4, out=tmp_path / "run")
    assert [str(one.message).split("round ")[1][0] for one in told] == ["1", "4"]
    assert not any(row["dropped"] for row in run.metrics)
    assert [row.get("figures", {}).get("model_kept", False) for row in run.metrics] == [True, True, False, True]
    assert run.metrics[0]["loss"] == run.metrics[1]["loss"] != run.metrics[2]["loss"] == run.metrics[3]["loss"]


def test_a_model_keeps_its_precision(tmp_path, monkeypatch):
    monkeypatch.setattr(Found, "answer", staticmethod(lambda model: model.double()))
    run = covey.run(SMALL, aggregator=own("Found"), out=tmp_path / "run")
    first, second = run.metrics
    assert first["bytes_down"] == second["bytes_down"]


def test_a_round_without_replies_keeps_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr(Chosen, "answer", [0])
    monkeypatch.setattr(Found, "answer", staticmethod(lambda model: model * torch.nan))

    def nobody(record):
        monkeypatch.setattr(Chosen, "answer", [])

    with pytest.warns(UserWarning, match="in round 1: the model stays as it was"):
        run = covey.run(SMALL, selector=own("Chosen"), aggregator=own("Found"), on_round=nobody, out=tmp_path / "run")
    assert [row.get("figures") for row in run.metrics] == [{"model_kept": True}, None]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (own("Needy"), "The selector '.*:Needy' needs the option selector.power"),
        (own("Positional"), r"cannot be made: missing a required argument: 'power'; options are arguments after a \*"),
        (own("Unfinished"), "leaves out what every selector has to do"),
        ("builtins:dict", "cannot be made: no signature found"),
        ("broken:Part", "cannot be imported: SyntaxError"),
        ("raising:Part", "cannot be imported: OSError: no such disk"),
        (".relative:Part", "cannot be imported: TypeError"),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(tmp_path, monkeypatch, name, sentence):
    (tmp_path / "broken.py").write_text("class Part(:")
    (tmp_path / "raising.py").write_text("raise OSError('no such disk')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Refusal, match=sentence):
        covey.run(SMALL, selector=name, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_lists_are_options_and_a_run_whose_options_are_gone_can_be_looked_at(tmp_path, monkeypatch):
    chosen = {"name": own("Edited"), "share": 0.5}
    run = covey.run(SMALL, selector=chosen, out=tmp_path / "run")
    assert Run.open(tmp_path / "run", trust=True).config == run.config
    listed = covey.Config.of(selector={**chosen, "powers": "2,3"}).selector
    assert listed is not None
    assert listed.options["powers"] == [2, 3]

    def renamed(self, *, part: float | None = None) -> None:
        self.part = part

    monkeypatch.setattr(Edited, "__init__", renamed)
    assert Run.open(tmp_path / "run").evaluate()["accuracy"] == run.metrics[-1]["accuracy"]
    with pytest.raises(Refusal, match="has no option 'powers'"):
        covey.resume(tmp_path / "run", trust=True)


def test_a_run_of_a_method_that_is_gone_is_not_resumed_as_another(tmp_path):
    covey.methods.add("iid-again")(replace(covey.methods["iid"].part, summary="Clients without skew."))
    run = covey.run(SMALL, method="iid-again", out=tmp_path / "run")
    del covey.methods._entries["iid-again"]
    assert Run.open(tmp_path / "run").evaluate()["accuracy"] == run.metrics[-1]["accuracy"]
    with pytest.raises(Refusal, match="There is no method 'iid-again'"):
        covey.resume(tmp_path / "run")


@pytest.mark.parametrize(("kind", "role"), [("selector", "Selector"), ("aggregator", "Aggregator")])
def test_something_else_than_the_role_is_refused(tmp_path, kind, role):
    neither: dict[str, Any] = {kind: own("Neither")}
    with pytest.raises(Refusal, match=f"is no {kind}: one of your own derives from covey.{role}"):
        covey.run(SMALL, **neither, out=tmp_path / "run")
    example: dict[str, Any] = {kind: own("EXAMPLE")}
    with pytest.raises(Refusal, match=f"The {kind} '{own('EXAMPLE')}' must be a class or a function"):
        covey.run(SMALL, **example, out=tmp_path / "run")


def test_a_comparison_of_parts_that_are_gone_can_be_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(Chosen, "answer", [1, 2])
    covey.selectors.add("chosen")(Chosen)
    vary = {"model.hidden": [(8,), (8, 4)]}
    found = covey.compare(["fedavg", "chosen+average"], 2, vary=vary, given=SMALL, out=tmp_path / "all")
    del covey.selectors._entries["chosen"]
    later = covey.Comparison.open(tmp_path / "all")
    assert later.rows == found.rows
    assert [one.label for one in later.contenders][3] == "chosen+average model.hidden=[8, 4]"
    assert "chosen+average" in write_report([tmp_path / "all"]).read_text()
    with pytest.raises(Refusal, match="There is no selector 'chosen'"):
        resume_comparison(tmp_path / "all")


def test_a_run_of_registered_parts_that_are_gone_can_be_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(Chosen, "answer", [1, 2])
    covey.selectors.add("chosen")(Chosen)
    covey.methods.add("choosing")(covey.Recipe("The clients a test has set.", selector="chosen"))
    run = covey.run(SMALL, method="choosing", out=tmp_path / "run")
    for registry, name in ((covey.selectors, "chosen"), (covey.methods, "choosing")):
        del registry._entries[name]
    later = Run.open(tmp_path / "run")
    assert later.config.method == "choosing"
    assert later.evaluate()["accuracy"] == run.metrics[-1]["accuracy"]
    assert "choosing" in write_report([tmp_path / "run"], tmp_path / "page.html").read_text()
    with pytest.raises(Refusal, match="There is no method 'choosing'"):
        covey.resume(tmp_path / "run")
    with pytest.raises(Refusal, match="There is no method 'choosing'"):
        covey.run(SMALL, method="choosing", out=tmp_path / "another")


def test_the_example_resumes_as_if_never_stopped(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    whole = covey.run(SMALL, **FAIR, rounds=4, out=tmp_path / "whole")
    part = covey.run(SMALL, **FAIR, rounds=2, out=tmp_path / "part")
    config = json.loads((part.folder / "config.json").read_text())
    config["config"]["rounds"] = 4
    (part.folder / "config.json").write_text(json.dumps(config))
    resumed = covey.resume(part.folder, trust=True)
    assert [row["loss"] for row in resumed.metrics] == [row["loss"] for row in whole.metrics]
