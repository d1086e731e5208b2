"""The runtime that `auto` is, with and without a GPU. No GPU is needed: whether there is one is told."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import covey
from covey import Config, Refusal
from covey.config.runtime_choice import gpu_here, runtime_on
from covey.core.progress import announce_note, noting
from covey.core.records import read_config
from covey.job.agent_training import train_agent
from covey.job.comparison.plan import read_plan, runtime_settled, variants_of
from covey.job.experiment import Experiment
from covey.job.progress_display import run_progress
from covey.runtime.local import LocalRuntime
from covey.serve.job_request import run_request
from tests.conftest import SMALL


@pytest.fixture
def gpu(monkeypatch):
    """PyTorch says that there is a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr("covey.config.runtime_choice.gpu_here", gpu_here)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("runtime", "device", "gpu", "expected"),
    [
        ("auto", "auto", True, "stacked"),
        ("auto", "auto", False, "local"),
        ("auto", "cpu", True, "local"),
        ("auto", "cuda", True, "stacked"),
        # Refused later, as there is none: the local runtime would be a CPU.
        ("auto", "cuda", False, "stacked"),
        ("local", "auto", True, "local"),
        ("stacked", "cpu", False, "stacked"),
        ("flower", "auto", True, "flower"),
    ],
)
def test_auto_is_the_stack_where_there_is_a_gpu_and_nothing_else_changes(runtime, device, gpu, expected):
    assert runtime_on(runtime, device, gpu=gpu) == expected


def test_a_configuration_holds_the_runtime_that_was_chosen(gpu):
    assert Config.of().runtime == Config.of(runtime="auto").runtime == "stacked"
    assert Config.of(device="cpu").runtime == Config.of(runtime="local").runtime == "local"
    assert Config.of(Config.of().as_mapping()) == Config.of()


def test_without_a_gpu_it_is_the_local_one_as_before(no_gpu):
    assert not gpu_here()
    assert Config.of().runtime == Config.of(runtime="auto").runtime == "local"
    assert Config.of().as_mapping()["runtime"] == "local"


def test_a_folder_keeps_its_runtime_wherever_it_is_read(gpu, tmp_path):
    covey.run(SMALL, runtime="local", out=tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    assert read_config(tmp_path / "run").runtime == "local"
    written = json.loads(file.read_text())
    del written["config"]["runtime"]
    file.write_text(json.dumps(written))
    assert read_config(tmp_path / "run").runtime == "local"


@pytest.mark.parametrize("given", [{}, {"runtime": "auto"}, {"runtime": "stacked"}, {"runtime": "local"}])
def test_a_gpu_that_is_not_there_is_refused(no_gpu, given):
    with pytest.raises(Refusal, match="device=cuda was asked for, and there is no GPU here"):
        Config.of(given, device="cuda")


@pytest.mark.parametrize("runtime", ["local", "flower", "fleet"])
def test_a_runtime_that_computes_on_the_cpu_takes_no_gpu(gpu, runtime):
    with pytest.raises(Refusal, match=f"'{runtime}' computes on the CPU: give runtime=stacked"):
        Config.of(runtime=runtime, device="cuda")


def test_functions_refuse_a_gpu_that_is_not_there(no_gpu, tmp_path):
    base = covey.run(SMALL, out=tmp_path / "base")
    for refused in (
        lambda: covey.run(SMALL, device="cuda", out=tmp_path / "run"),
        lambda: covey.compare(["fedavg"], 1, given=SMALL, device="cuda", out=tmp_path / "all"),
        lambda: covey.analyze(SMALL, device="cuda"),
        lambda: covey.ondemand(base, "0=1", runtime="auto", device="cuda", out=tmp_path / "job"),
        lambda: train_agent(SMALL, rounds=1, method="feddrl", device="cuda", out=tmp_path / "agent"),
        lambda: run_request({**SMALL, "device": "cuda"}),
    ):
        with pytest.raises(Refusal, match="there is no GPU here"):
            refused()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["base"]


def test_a_run_on_a_gpu_that_is_gone_says_where_to_resume(no_gpu, tmp_path):
    run = covey.run(SMALL, out=tmp_path / "run")
    file = run.folder / "config.json"
    written = json.loads(file.read_text())
    written["config"] |= {"runtime": "stacked", "device": "cuda"}
    file.write_text(json.dumps(written))
    with pytest.raises(Refusal, match="is resumed where there is a GPU"):
        covey.resume(run.folder, rounds=30)
    written["config"] |= {"runtime": "stacked", "device": "auto"}
    file.write_text(json.dumps(written))
    with pytest.warns(UserWarning, match="no GPU here, so the local runtime takes the stacked one's place"):
        assert covey.resume(run.folder, rounds=len(run.metrics) + 1).finished
    assert read_config(run.folder).runtime == "stacked"


def test_a_device_that_had_no_effect_has_none_in_old_folders(no_gpu, tmp_path):
    run = covey.run(SMALL, out=tmp_path / "run")
    file = run.folder / "config.json"
    written = json.loads(file.read_text())
    written["config"] |= {"runtime": "local", "device": "cuda"}
    file.write_text(json.dumps(written))
    assert covey.resume(run.folder, rounds=len(run.metrics) + 1, workers=1).finished


def test_a_comparison_writes_the_runtime_only_where_it_is_not_the_local_one(gpu, monkeypatch):
    assert runtime_settled({"rounds": 3}) == {"rounds": 3, "runtime": "stacked"}
    assert runtime_settled({"runtime": "auto", "device": "cpu"}) == {"device": "cpu"}
    assert runtime_settled({"runtime": "local"}) == {"runtime": "local"}
    plan = {"format": 1_000, "methods": ["fedavg"], "seeds": [0], "vary": {}, "target": None}
    # Begun without a GPU, resumed with one.
    assert variants_of({**plan, "given": {}})[0].configs[0].runtime == "local"
    begun = {**plan, "given": runtime_settled({})}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert runtime_settled({"rounds": 3, "runtime": "auto"}) == {"rounds": 3}
    assert variants_of(begun)[0].configs[0].runtime == "stacked"


def test_a_plan_made_without_a_gpu_is_as_it_was(no_gpu, tmp_path):
    covey.compare(["fedavg"], 1, given=SMALL, out=tmp_path / "all")
    assert "runtime" not in read_plan(tmp_path / "all")["given"]


class Normed(nn.Module):
    """A model that a stack of models cannot train: its instance norm has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm2d(1, track_running_stats=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.norm(x).flatten(1))


class Branching(nn.Module):
    """A model that looks at its values."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(x if x.sum() > 0 else -x)


@pytest.mark.parametrize(("model", "reason"), [(Normed, "instance norm with running statistics"), (Branching, "")])
def test_a_model_that_no_stack_can_train_is_trained_on_the_cpu_and_the_reason_is_said(gpu, tmp_path, model, reason):
    with pytest.warns(UserWarning, match="cannot train this model") as warned:
        run = covey.run(SMALL, model=model, out=tmp_path / "run")
    assert reason in str(warned[0].message)
    assert run.finished
    assert run.config.runtime == read_config(run.folder).runtime == "local"


def test_the_runtime_of_others_models_stays_if_they_fit(gpu, monkeypatch):
    seen: list[str] = []

    def build(federation, module, config, fleet):
        seen.append(config.runtime)
        return LocalRuntime.of(federation, module, config)

    monkeypatch.setattr("covey.job.experiment.build_runtime", build)
    Experiment.of(Config.of(SMALL, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))).runtime.close()
    assert seen == ["stacked"]


def test_a_run_on_a_gpu_begins_by_saying_so_once(monkeypatch, tmp_path, capfd):
    for place in ("covey.config.runtime_choice", "covey.job.experiment"):
        monkeypatch.setattr(f"{place}.gpu_here", lambda: True)
    # The stack itself is built without one.
    with pytest.warns(UserWarning, match="There is no GPU here"):
        covey.run({**SMALL, "workers": 1}, out=tmp_path / "run", progress=True)
    with pytest.warns(UserWarning, match="There is no GPU here"):
        covey.compare(["fedavg", "iid"], 1, given=SMALL, out=tmp_path / "all", progress=True)
    assert capfd.readouterr().err.count("Trains on the GPU (stacked runtime)") == 2


def test_a_display_says_each_sentence_once(capfd):
    told: list[str] = []
    with noting(told.append), run_progress("fedavg", 3, 0):
        for text in ("One.", "", "Two.", "One."):
            announce_note(text)
    assert told == ["One.", "Two."]
    assert capfd.readouterr().err.split() == ["One.", "Two."]
    announce_note("Nobody listens.")


def test_choosing_needs_no_torch():
    code = "import covey.config.runtime_choice, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
