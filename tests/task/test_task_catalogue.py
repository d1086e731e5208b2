"""Every method runs on tasks without classes, or is refused with a sentence that says which do."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import covey
from covey.core.interfaces import needs_classes
from covey.page.html_page import render
from covey.page.run_data import read_report_data
from covey.page.run_report import page_of
from covey.task import main_score
from tests.task.federations import FEDERATIONS, SETTINGS

pytestmark = pytest.mark.filterwarnings("ignore")
NEEDS_CLASSES = {"fed-cbs", "fedentopt", "fedlc", "hics-fl", "mocha", "ondemand"}
MODEL = {"fedbn": {"name": "mlp", "hidden": (8,), "norm": "batch"}, "fedrep": None}


def settings_of(method, **more):
    """A method's settings; the pool of FedACS holds a cohort."""
    pool = {"selector": {"name": "fedacs", "pool": 0.7}} if method == "fedacs" else {}
    local = {**SETTINGS["local"], "epochs": 2 if method == "fedrep" else 1}
    return {
        **SETTINGS,
        "local": local,
        "method": method,
        "model": MODEL.get(method) or SETTINGS["model"],
        **pool,
        **more,
    }


def test_these_methods_alone_need_classes():
    assert {name for name in covey.methods.names() if needs_classes(covey.methods[name].part)} == NEEDS_CLASSES
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "tasks.md").read_text(encoding="utf-8")
    said = page.partition("## Methods that need classes\n\n")[2].partition(" work with classes")[0]
    assert set(re.findall(r"`([\w-]+)`", said)) == NEEDS_CLASSES


@pytest.mark.slow
@pytest.mark.parametrize("task", list(FEDERATIONS))
@pytest.mark.parametrize("method", covey.methods.names())
def test_a_method_runs_on_a_task_without_classes_or_is_refused(method, task, tmp_path):
    def run():
        return covey.run(settings_of(method), federation=FEDERATIONS[task](), out=tmp_path / "run")

    if method in NEEDS_CLASSES:
        works = ", ".join(sorted(NEEDS_CLASSES))
        with pytest.raises(covey.Refusal, match=f"task {task} has none: choose another method; all work but {works}"):
            run()
        assert not (tmp_path / "run").exists()
        return
    last = run().metrics[-1]
    assert last["metric"] == {"regression": "rmse", "multilabel": "map"}[task]
    assert main_score(last) is not None
    assert last["dropped"] == last["unmeasured"] == []
    assert "accuracy" not in last


@pytest.mark.slow
@pytest.mark.parametrize("task", list(FEDERATIONS))
@pytest.mark.parametrize("trainer", covey.trainers.names())
def test_a_trainer_gives_the_same_on_the_stacked_runtime(trainer, task, tmp_path):
    own = {"fedbn", "fedper", "fedrep", "ditto"}
    if trainer in NEEDS_CLASSES or trainer in own:
        pytest.skip("needs classes, or belongs to a method that the test below runs")
    given = settings_of("fedavg", trainer=trainer, precision="fp64")
    if trainer == "dp-sgd":
        pytest.importorskip("dp_accounting")
    if trainer in ("scaffold", "feddyn"):
        given = settings_of(trainer, precision="fp64")
        given.pop("trainer", None)
    same_on_both(given, FEDERATIONS[task](), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("task", list(FEDERATIONS))
@pytest.mark.parametrize("method", ["fedacs", "oort", "nccb", "feddrl", "cfl", "fedbn", "ditto", "fedfomo"])
def test_a_method_gives_the_same_on_the_stacked_runtime(method, task, tmp_path):
    same_on_both(settings_of(method, precision="fp64"), FEDERATIONS[task](), tmp_path)


def same_on_both(given, federation, tmp_path):
    local = covey.run(given, federation=federation, out=tmp_path / "local")
    stacked = covey.run(given, federation=federation, runtime="stacked", device="cpu", out=tmp_path / "stacked")
    for mine, theirs in zip(local.metrics, stacked.metrics, strict=True):
        assert mine["clients"] == theirs["clients"]
        assert mine["metrics"] == pytest.approx(theirs["metrics"], rel=1e-7)
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-7)
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-7)


def test_clients_are_scored_on_tests_of_their_own(tmp_path):
    whole = FEDERATIONS["regression"]()
    rows = covey_rows(len(whole.dataset.test_y), whole.clients)
    federation = replace(whole, test_parts=rows)
    given = settings_of("fedavg", precision="fp64")
    stacked = {**given, "runtime": "stacked", "device": "cpu"}
    found = [
        covey.run(one, federation=federation, out=tmp_path / name).metrics[-1]["client_score"]
        for name, one in (("local", given), ("stacked", stacked))
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-7)
    assert found[0]["clients"] == whole.clients
    assert found[0]["worst_decile"] > found[0]["mean"] > 0
    assert found[0]["spread"] > 0
    page = page_of(read_report_data([tmp_path / "local"]))
    drawn = {part.heading for section in page.sections for part in section.content if hasattr(part, "heading")}
    assert "RMSE of the worst-served clients" in drawn
    assert "worst decile" in render(page)


def test_with_tests_of_their_own_classification_has_them_too(tmp_path):
    config = covey.Config.of({**settings_of("local-only"), "dataset": "digits", "clients": 5})
    whole = covey.Experiment.of(config).federation
    federation = replace(whole, test_parts=covey_rows(len(whole.dataset.test_y), 5))
    last = covey.run(settings_of("local-only"), federation=federation, out=tmp_path / "run").metrics[-1]
    assert 0 < last["client_score"]["worst_decile"] <= last["client_score"]["mean"] <= 1
    # Each client's rows are a fifth of the test set, so the mean is near that of all rows.
    assert last["client_score"]["mean"] == pytest.approx(last["accuracy"], abs=0.1)
    assert 0 < last["metrics"]["macro_f1"] < 1
    assert 0 < last["client_metrics"]["macro_f1"]["worst_decile"] <= last["client_metrics"]["macro_f1"]["mean"] < 1


def covey_rows(count, clients):
    import torch

    return list(torch.arange(count).tensor_split(clients))
