"""Requests as jobs: their identity, their command line, and what forms mean."""

import ast
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

import covey
from covey.cli.serve_command import forms
from covey.errors import Refusal
from covey.job.run_index import RunIndex
from covey.serve.api_routes import ServeActions, job_view
from covey.serve.form_fields import filled_request
from covey.serve.job_queue import JobQueue
from covey.serve.job_record import Job
from covey.serve.job_request import (
    JobRequest,
    analysis_request,
    comparison_request,
    ondemand_request,
    report_request,
    resume_request,
    run_request,
    shares_request,
)
from covey.serve.model_facts import spent_by_base
from covey.serve.model_order import target_text
from covey.serve.report_pages import KEPT
from covey.serve.round_stream import positions
from covey.serve.round_tail import RoundTail
from covey.serve.runs_view import PAGE, jobs_page
from covey.serve.served_folder import ServedFolder
from tests.serve.conftest import client_of


def command(request, folder):
    return request.command(folder)


def test_equal_requests_are_one_job_however_they_are_written(folder):
    one = run_request({"method": "fedprox", "local": {"rate": 0.1, "epochs": 2}})
    other = run_request({"local.epochs": 2, "local.rate": 0.1, "method": "fedprox"})
    assert one.identity == other.identity and one.place == other.place
    assert one.identity != run_request({"method": "fedprox", "local": {"rate": 0.2, "epochs": 2}}).identity
    first = ondemand_request(folder, "first", {"0": 0.5, "3": 0.5}, rounds=2)
    assert first == ondemand_request(folder, "first", {"3": 0.5, "0": 0.5, "1": 0.0}, rounds=2, survey=False)
    assert JobRequest.of(first.as_mapping()).identity == first.identity


def test_numbers_of_forms_and_of_programs_are_the_same_request(folder):
    typed = {"rounds": 2, "local": {"rate": 1e-5, "epochs": 1}, "model": {"name": "mlp", "hidden": [16, 8]}}
    written = {"rounds": "2", "local": {"rate": "0.00001", "epochs": 1.0}, "model": {"name": "mlp", "hidden": "16,8"}}
    typed |= {"aggregator": {"weighted": False}, "cohort": 0.5}
    written |= {"aggregator.weighted": "false", "cohort": "0.50"}
    assert run_request(typed).identity == run_request(written).identity
    assert run_request({"cohort": 0.5}).identity != run_request({"cohort": 4}).identity
    one = comparison_request(["fedavg"], 2, {"local.rate": [0.1, 0.01]}, None, False, {"rounds": 3})
    other = comparison_request(["fedavg"], [0, 1], {"local.rate": ["0.10", "1e-2"]}, None, False, {"rounds": "3"})
    assert one.identity == other.identity
    assert "--without site-1,site-2" in command(
        ondemand_request(folder, "first", "0=1", without="site-1,site-2"), folder
    )
    first = ondemand_request(folder, "first", "0=1", settings={"local.rate": 0.5})
    assert first.identity == ondemand_request(folder, "first", "0=1", settings={"local": {"rate": "5e-1"}}).identity


def test_a_comparison_asked_for_varies_options_for_the_methods_that_have_them() -> None:
    vary = {"trainer.mu": ["0.10", "1"]}
    one = comparison_request(["fedavg", "uniform+average+fedprox"], 2, vary, None, False, {"rounds": 3})
    assert one.content["vary"] == {"trainer.mu": [0.1, 1.0]}
    with pytest.raises(Refusal, match="has no option 'mu'"):
        comparison_request(["fedavg", "scaffold"], 2, vary, None, False, {"rounds": 3})


def test_a_class_mix_is_the_same_request_however_it_is_written(folder):
    def asked(target):
        return ondemand_request(folder, "first", target).identity

    halves = {asked(one) for one in ({"0": 1, "3": 1}, {"3": 0.5, "0": 0.5}, "3=0.5,0=0.5", " 0 = 2, 3=2.0,4=0 ")}
    assert len(halves) == 1
    assert asked({"0": 1, "3": 2}) == asked({"0": 1 / 3, "3": 2 / 3}) == asked("0=10,3=20")
    assert asked("td1") == asked("TD1")
    assert asked("local:a") != asked("local:A")
    others = ("0=0.5,3=0.500001", "0=1", "td1", "0=1,0=1", "0=1,3=x", "0=1,3=-1", "0=1e400,3=1")
    assert len({asked(one) for one in others} | halves) == len(others) + 1
    # The command holds what was written first, so that its result is the same to the bit.
    assert command(ondemand_request(folder, "first", {"0": 1, "3": 2}), folder).split("--target ")[1][:7] == "0=1,3=2"


def test_another_run_in_the_place_of_a_base_is_another_base(served_runs, tmp_path):
    folder = ServedFolder(tmp_path / "runs")
    asked = []
    for name in ("deep/second", "first"):
        shutil.copytree(served_runs / name, folder.root / "base")
        asked.append([ondemand_request(folder, "base", {"0": 1.0}), shares_request(folder, "base")])
        shutil.rmtree(folder.root / "base")
    for old, new in zip(*asked, strict=True):
        assert old.content["base_round"] == new.content["base_round"] and old.identity != new.identity
    # An order that waited while the base was replaced does not begin at the new one.
    shutil.copytree(served_runs / "deep" / "second", folder.root / "base")
    with pytest.raises(Refusal, match="another one"):
        asked[1][0].arguments(folder, tmp_path)
    # A resume that only raises the number of rounds leaves it the same base.
    config = folder.root / "base" / "config.json"
    waiting = ondemand_request(folder, "base", {"0": 1.0})
    config.write_text(config.read_text().replace('"rounds": 3', '"rounds": 5'))
    assert waiting.arguments(folder, tmp_path)[0] == "ondemand"


def test_a_base_that_has_gone_on_is_another_one(served_runs, tmp_path):
    shutil.copytree(served_runs / "first", tmp_path / "runs" / "first")
    folder = ServedFolder(tmp_path / "runs")
    before = ondemand_request(folder, "first", {"0": 1.0})
    covey.run(covey.Run.open(tmp_path / "runs" / "first").config, out=tmp_path / "longer", rounds=4)
    shutil.rmtree(tmp_path / "runs" / "first")
    shutil.move(tmp_path / "longer", tmp_path / "runs" / "first")
    assert ondemand_request(folder, "first", {"0": 1.0}).identity != before.identity


def test_requests_stand_for_the_commands_that_one_would_type(folder):
    run = run_request({"method": "fedavg", "rounds": 5, "environment": {"name": "dirichlet", "alpha": 0.1}}, "mine")
    assert command(run, folder) == (
        "covey run --method fedavg --rounds 5 --environment dirichlet --set environment.alpha=0.1 "
        f"--out {folder.root}/mine"
    )
    compared = comparison_request(["fedavg", "iid"], 2, {"local.rate": [0.1, 0.01]}, 0.9, True, {"rounds": 3}, "both")
    assert command(compared, folder) == (
        "covey compare --methods fedavg,iid --seeds 2 --vary local.rate=0.1,0.01 --target 0.9 --fairness --rounds 3 "
        f"--out {folder.root}/both"
    )
    assert command(resume_request("first"), folder) == f"covey resume {folder.root}/first"
    assert "--seeds 7," in command(comparison_request(["fedavg"], [7], {}, None, False, {}), folder)


def test_a_fleets_run_is_a_base_and_its_sites_are_asked(served_runs, tmp_path):
    shutil.copytree(served_runs / "first", tmp_path / "runs" / "plant" / "run")
    (tmp_path / "runs" / "plant" / "fleet.toml").write_text('address = "127.0.0.1:8443"\nsites = ["a", "b"]\n')
    folder = ServedFolder(tmp_path / "runs")
    (line,) = RunIndex(folder.root).all()
    assert (line.kind, line.path, line.done, line.runs) == ("fleet", "plant", 3, ("plant/run",))
    for base in ("plant", "plant/run"):
        request = ondemand_request(folder, base, {"0": 1.0})
        assert request.content["base"] == "plant/run"
        words = request.arguments(folder, Path())
        assert words[words.index("--fleet") + 1] == str(folder.root / "plant")
        assert "--trust" not in words
        # Either address resumes the fleet's run, with its sites.
        resumed = resume_request(base)
        plant = folder.root / "plant"
        assert resumed.arguments(folder, Path()) == ["resume", f"{plant}/run", "--fleet", str(plant), "--json"]
        assert command(resumed, folder) == f"covey resume {plant}/run --fleet {plant}"


def test_values_that_look_like_flags_stay_values(folder):
    words = run_request({"clients": 8, "dataset": "digits", "local": {"rate": 0.1}}).arguments(folder, Path())
    assert "--trust" not in words
    with pytest.raises(Refusal):
        run_request({"dataset": "--trust"})
    assert target_text("--trust") == "--trust"
    words = ondemand_request(folder, "first", "--trust").arguments(folder, Path())
    assert "--target=--trust" in words and "--trust" not in words


def test_a_form_means_what_its_command_does(folder):
    fields = forms()
    form = {"method": "fedavg", "poison": "0.2", "attack": "flip", "attackers": "0.3", "set_": "local.rate=0.2"}
    request = filled_request("run", fields["run"], form, folder)
    assert request.content["settings"] == {
        "method": "fedavg",
        "altered": {"poison": 0.2},
        "attack": {"kind": "flip", "attackers": 0.3},
        "local": {"rate": 0.2},
    }
    compared = filled_request("comparison", fields["comparison"], {"methods": "fedavg, iid", "seeds": "1,4"}, folder)
    assert (compared.content["methods"], compared.content["seeds"]) == (["fedavg", "iid"], [1, 4])
    model = filled_request("ondemand", fields["ondemand"], {"base": "first", "target": "0=1", "survey": "yes"}, folder)
    assert (model.content["target"], model.content["survey"]) == ("0=1", True)
    assert "estimator" not in model.content
    assert model.arguments(folder, folder.root)[:4] == ["ondemand", str(folder.root / "first"), "--target", "0=1"]
    for kind, wrong in (
        ("run", {"rounds": "many"}),
        ("run", {"attackers": "0.1"}),
        ("comparison", {"methods": "fedavg", "seeds": "few"}),
        ("comparison", {"methods": ""}),
        ("analysis", {"rounds": "x"}),
        ("ondemand", {"base": "first"}),
        ("ondemand", {"target": "0=1"}),
    ):
        with pytest.raises(Refusal):
            filled_request(kind, fields[kind], wrong, folder)


TYPED_IN = {
    **{"method": "fedavg", "methods": "fedavg,iid", "selector": "uniform", "aggregator": "average", "trainer": "sgd"},
    **{"environment": "uniform", "dataset": "digits", "model": "mlp", "runtime": "local", "precision": "fp32"},
    **{"device": "cpu", "attack": "flip", "attackers": "0.3", "poison": "0.2", "set_": "local.rate=0.2"},
    **{"vary": "local.rate=0.1,0.2", "seeds": "2", "target": "0.9", "insight": "full", "level": "0.1"},
    **{
        "task": "classification",
        "from_": "first",
        "base": "first",
        "estimator": "analytic",
        "pairing": "unscaled",
        "insight_dp": "1,1e-5",
    },
}
"""What one could type into a field; a small number, or "yes", where nothing is said."""


def test_every_field_of_every_form_can_be_filled_in(folder):
    for kind, fields in forms().items():
        needed = {field.name: TYPED_IN[field.name] for field in fields if field.needed}
        needed |= {"target": "0=1"} if kind == "ondemand" else {}
        plain = filled_request(kind, fields, needed, folder)
        for field in fields:
            more = {"attack": "flip"} if field.name == "attackers" else {}
            text = TYPED_IN.get(field.name, "yes" if field.switch else "3")
            request = filled_request(kind, fields, {field.name: text, **more, **needed}, folder)
            assert field.name in needed or request.identity != plain.identity, (kind, field.name)
            assert command(request, folder).startswith("covey ")


def test_every_field_of_a_form_has_its_flag_and_its_help():
    for fields in forms().values():
        assert all(field.help and (field.flag.startswith("--") or field.name == "base") for field in fields)
    methods = next(field for field in forms()["run"] if field.name == "method")
    assert "fedacs" in methods.suggestions and "default: fedavg" in methods.help


@pytest.mark.parametrize(
    "settings",
    [
        {"dataset": {"name": "csv", "path": "data.csv"}},
        {"dataset.path": "data.csv", "dataset.name": "npz"},
        {"dataset": "data.csv"},
        {"dataset": {"name": "table.NPZ"}},
        {"dataset": {"name": "csv", "test_file": "data.csv"}},
        {"aggregator": {"name": "feddrl", "agent": "agent.safetensors"}},
        {"aggregator": {"name": "ondemand", "inner": "feddrl,agent=agent.safetensors"}},
    ],
)
def test_settings_name_no_file_not_even_by_a_bare_name(folder, settings):
    for ask in (
        lambda: run_request(settings),
        lambda: comparison_request(["fedavg"], 1, {}, None, False, settings),
        lambda: comparison_request(["fedavg"], 1, {key: [value] for key, value in settings.items()}, None, False, {}),
        lambda: ondemand_request(folder, "first", "0=1", settings=settings),
    ):
        with pytest.raises(Refusal, match="name no files"):
            ask()


def test_a_run_of_a_fleet_that_is_not_there_is_no_base(folder, served_runs, tmp_path, monkeypatch):
    shutil.copytree(served_runs / "first", tmp_path / "runs" / "fleet-run")
    config = tmp_path / "runs" / "fleet-run" / "config.json"
    config.write_text(config.read_text().replace('"runtime": "local"', '"runtime": "fleet"'))
    folder = ServedFolder(tmp_path / "runs")
    monkeypatch.delenv("COVEY_FLEET", raising=False)
    with pytest.raises(Refusal, match="made by a live fleet"):
        ondemand_request(folder, "fleet-run", {"0": 1.0})
    assert '<option value="fleet-run">' not in client_of(folder.root).get("/mix").text
    monkeypatch.setenv("COVEY_FLEET", str(tmp_path))
    assert ondemand_request(folder, "fleet-run", {"0": 1.0}).fleet(folder) == tmp_path


def test_a_report_is_made_anew_once_its_runs_have_changed(folder):
    one = report_request(folder, ["first"])
    assert one == report_request(folder, ["first"])
    metrics = folder.root / "first" / "metrics.jsonl"
    text = metrics.read_bytes()
    metrics.write_bytes(text + b"{")
    assert report_request(folder, ["first"]).identity != one.identity
    metrics.write_bytes(text)


def test_a_tail_returns_every_round_once_even_if_the_run_is_resumed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = RoundTail(path)
    assert tail.read() == []
    path.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert [row["round"] for row in tail.read()] == [1, 2]
    with path.open("a") as file:
        file.write('nd": 3}\n')
    assert [row["round"] for row in tail.read()] == [3]
    assert tail.read() == []
    # A resume replaces the file: round 3 is cut off, and computed again.
    beside = tmp_path / "beside"
    beside.write_text('{"round": 1}\n{"round": 2}\n')
    beside.replace(path)
    assert tail.read() == []
    with path.open("a") as file:
        file.write('{"round": 3}\nnonsense\n{"round": 4}\n')
    assert [row["round"] for row in tail.read()] == [4]
    assert [row["round"] for row in RoundTail(path, after=2).read()] == [3, 4]


def test_identities_of_events_are_read_with_care():
    assert positions("12") == {"": 12}
    assert positions("fedavg/seed-0:3;iid/seed-0:7") == {"fedavg/seed-0": 3, "iid/seed-0": 7}
    assert positions("") == positions("x") == positions("-1") == positions("9" * 30) == {}


def test_without_the_extra_the_command_says_how_to_get_it(monkeypatch, covey_command, tmp_path):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    answer = covey_command("serve", tmp_path)
    assert answer.code == 2
    assert answer.err == "covey: The server needs FastAPI and uvicorn: pip install '.[serve]' in Covey's checkout.\n"


def test_wrong_flags_of_the_server_are_refused(covey_command, tmp_path, served_runs):
    for flags, word in (
        (("--workers", 0), "--workers"),
        (("--port", 70000), "--port"),
        (("--retries", -1), "--retries"),
        (("--host", "no.such.host.invalid", "--token-file", tmp_path / "token"), "Choose another --port"),
    ):
        answer = covey_command("serve", tmp_path / "runs", *flags)
        assert (answer.code, word in answer.err) == (2, True), answer.err
    answer = covey_command("serve", served_runs / "first")
    assert answer.code == 2 and "is a run itself" in answer.err


def test_the_servers_own_folder_counts_only_where_it_was_made(tmp_path):
    root = tmp_path / "runs"
    assert ServedFolder(root).claim() is None
    (root / ".serve" / "token").write_text("mine")
    assert ServedFolder(root).claim() is None
    shutil.copytree(root, tmp_path / "copied")
    aside = ServedFolder(tmp_path / "copied").claim()
    assert aside is not None and aside == tmp_path / "copied" / ".serve-1"
    assert (aside / "token").read_text() == "mine"
    assert not (tmp_path / "copied" / ".serve" / "token").exists()
    assert ServedFolder(tmp_path / "copied").claim() is None
    # Whoever makes a folder knows its number, and cannot sign it.
    number = (root / ".serve").stat().st_ino
    for forged in (f"{number}\n", f"{number} {'0' * 64}\n", ""):
        (root / ".serve" / "origin").write_text(forged)
        assert ServedFolder(root).claim() is not None
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".serve").symlink_to(root / ".serve")
    assert ServedFolder(tmp_path / "linked").claim() is not None
    assert not (tmp_path / "linked" / ".serve").is_symlink()


def test_the_last_pages_of_reports_are_kept_and_others_made_anew(served_runs, tmp_path):
    shutil.copytree(served_runs / "first", tmp_path / "first")
    folder = ServedFolder(tmp_path)
    folder.claim()
    queue = JobQueue(folder)
    do = ServeActions(folder, queue)
    analysis = queue.place(queue.submit(analysis_request(None, "head", 1, 0.05, {})).id) / "page.html"
    queue.cancel(analysis.parent.name)
    old = [queue.place(f"old-{number:02}") / "page.html" for number in range(KEPT + 3)]
    for age, page in enumerate([analysis, *old], 1):
        page.parent.mkdir(exist_ok=True)
        page.write_text("page")
        os.utime(page, (age, age))
    queue.start()
    try:
        made = do.report(["first"])
        assert analysis.exists() and made.exists()
        assert [page.exists() for page in old] == [number >= 4 for number in range(KEPT + 3)]
        made.unlink()
        assert do.report(["first"]) == made
        assert "<html" in made.read_text()
    finally:
        queue.stop()


def test_many_jobs_are_on_several_pages(served_runs, tmp_path):
    queue = JobQueue(ServedFolder(tmp_path))
    for number in range(PAGE + 7):
        queue._jobs[str(number)] = Job(str(number), number, {"kind": "resume", "path": f"run-{number}"}, state="done")
    first, second = (jobs_page(queue.all(), "word", page) for page in (1, 2))
    assert (first.count("<tr data-run"), second.count("<tr data-run")) == (PAGE, 7)
    assert 'href="/queue?page=2"' in first and 'href="/queue?page=1"' in second
    assert "resume run-0<" in second and "resume run-0<" not in first


def test_many_models_are_listed_quickly(served_runs, tmp_path):
    """Each names what all models of its base have spent; that is added up once."""
    shutil.copytree(served_runs / "first", tmp_path / "first")
    folder = ServedFolder(tmp_path)
    folder.claim()
    queue = JobQueue(folder)
    one = {"mix": [1.0], "composed_mix": [1.0], "true_mix": [1.0], "distance": 0.0, "clients": [0], "ratios": [1.0]}
    one |= {"accuracy": 1.0, "base_accuracy": 1.0, "rounds": 1, "notes": []}
    result = {"targets": [one], "insight_dp": "0.5,1e-5", "base_round": 3, "class_names": ["0"], "notes": []}
    first = queue.submit(ondemand_request(folder, "first", {"0": 1.0}))
    for number in range(2000):
        queue._jobs[str(number)] = Job(str(number), number, first.request, state="done", result=result)
    do = ServeActions(folder, queue)
    spent = spent_by_base(queue.all())
    begin = time.process_time()
    views = [job_view(job, do, spent) for job in queue.all()]
    assert time.process_time() - begin < 2
    assert views[-1]["model"]["epsilon_of_all_models"] == 1000


def test_only_the_server_imports_what_it_is_made_of():
    package = Path(covey.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] in ("fastapi", "uvicorn", "starlette", "pydantic") for name in names):
                found.add(path.relative_to(package).as_posix())
    # The fleet's gate stands before Flower's own server, which is made of the same.
    assert {path for path in found if not path.startswith(("serve/", "fleet/"))} == {"cli/serve_command.py"}
    assert "serve/service_client.py" not in found
