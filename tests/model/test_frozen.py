"""Frozen parameters: only what is trained travels, is counted, averaged and kept; the rest is in the folder once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import covey
from covey import Refusal, Run
from covey.model.frozen import architecture, constants, constants_digest, frozen_parts, set_constants, start_training
from covey.model.layout import Layout
from tests.conftest import without_timings
from tests.model.own_models import Alone, Lora, Transfer

GIVEN: dict[str, Any] = {"clients": 6, "cohort": 2, "rounds": 4, "workers": 1, "environment.samples": 30}
HEAD = 256 * 10 + 10


def transfer(seed: int = 0) -> Transfer:
    torch.manual_seed(seed)
    return Transfer()


def test_only_trained_parameters_and_buffers_beside_frozen_parts_are_state() -> None:
    layout = Layout.of(Transfer())
    assert [slot.name for slot in layout.parameters] == ["fc.weight", "fc.bias"]
    assert layout.buffers == ()
    assert [slot.name for slot in Layout.of(Lora()).parameters] == ["down", "up"]
    unfrozen = Layout.of(Transfer().requires_grad_(True))
    assert len(unfrozen.buffers) == 2


def test_frozen_parts_stay_in_evaluation_mode() -> None:
    module = Transfer()
    assert start_training(module) is module
    assert frozen_parts(module) == [module.backbone]
    assert module.training and module.fc.training
    assert not any(layer.training for layer in module.backbone.modules())


def test_bytes_of_a_round_are_those_of_the_head(tmp_path: Path) -> None:
    run = covey.run(GIVEN, model=transfer(), out=tmp_path / "run")
    # Beside its tensor, a reply has a header of a few hundred bytes; the whole model has 60 parameters more.
    assert all(2 * 4 * HEAD < row["bytes_up"] < 2 * (4 * HEAD + 400) for row in run.metrics)
    assert all(2 * 4 * HEAD < row["bytes_down"] < 2 * (4 * HEAD + 400) for row in run.metrics)
    tensors = load_file(tmp_path / "run" / "checkpoint.safetensors")
    assert max(one.numel() for one in tensors.values()) == HEAD
    assert run.metrics[-1]["accuracy"] > run.metrics[0]["accuracy"]


@pytest.mark.parametrize("runtime", ["local", "stacked"])
def test_what_is_frozen_does_not_change(runtime: str, tmp_path: Path) -> None:
    module = transfer()
    before = {name: one.clone() for name, one in constants(module).items()}
    given = {**GIVEN, "runtime": runtime, "device": "cpu", "method": "fedavg"}
    trained = covey.run(given, model=module, out=tmp_path / "run").model()
    assert all(torch.equal(before[name], one) for name, one in constants(trained).items())
    assert not torch.equal(trained.get_parameter("fc.weight"), module.fc.weight)
    # The module that was given is the user's: nothing of it changes.
    assert isinstance(module.backbone[3], nn.Dropout)
    assert all(torch.equal(before[name], one) for name, one in constants(module).items())


@pytest.mark.parametrize("method", ["fedacs", "scaffold", "fedper", "cfl", "fedadam"])
def test_methods_of_every_kind_train_adapters(method: str, tmp_path: Path) -> None:
    # FedPer needs a head that is trained, and a layer below it to share.
    module: nn.Module = transfer()
    if method == "fedper":
        module = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32).requires_grad_(False), nn.Linear(32, 8), nn.Linear(8, 10)
        )
    run = covey.run({**GIVEN, "method": method}, model=module, out=tmp_path / "run")
    assert run.finished
    assert constants_digest(run.model(0)) == constants_digest(module)


def test_a_frozen_head_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"that of the model Lora \(out\) is frozen"):
        covey.run(GIVEN, model=Lora(), method="fedacs", out=tmp_path / "run")
    assert covey.run(GIVEN, model=Lora(), method="fedavg", out=tmp_path / "run").finished


def test_a_run_resumes_with_its_own_frozen_parts(tmp_path: Path) -> None:
    module = transfer()
    whole = covey.run(GIVEN, model=module, out=tmp_path / "whole")

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        covey.run(GIVEN, model=module, out=tmp_path / "cut", on_round=stop)
    # Another instance, with other weights: those of the run are in its folder.
    resumed = covey.resume(tmp_path / "cut", model=transfer(seed=9))
    assert without_timings(resumed.metrics) == without_timings(whole.metrics)
    assert constants_digest(resumed.model()) == constants_digest(module)


def test_the_whole_model_is_exported_and_evaluated_from_the_folder(tmp_path: Path) -> None:
    run = covey.run(GIVEN, model=transfer(), out=tmp_path / "run")
    later = Run.open(tmp_path / "run", model=transfer(seed=5))
    assert later.evaluate()["accuracy"] == run.metrics[-1]["accuracy"]
    about = later.export(tmp_path / "model.safetensors")
    assert about["parameters"] == sum(one.numel() for one in transfer().parameters())
    fresh = transfer(seed=7)
    fresh.load_state_dict(load_file(tmp_path / "model.safetensors"))
    x = torch.rand(4, 1, 8, 8)
    assert torch.allclose(fresh.eval()(x), run.model()(x))


def test_folders_with_lost_damaged_or_other_constants_are_refused(tmp_path: Path) -> None:
    covey.run(GIVEN, model=transfer(), out=tmp_path / "run")
    with pytest.raises(Refusal, match="names, shapes or frozen parts of its tensors differ"):
        Run.open(tmp_path / "run", model=Alone).evaluate()
    Run.open(tmp_path / "run", model=transfer())
    path = tmp_path / "run" / "constants.safetensors"
    save_file({"fc.weight": torch.zeros(2)}, path, {"architecture": architecture(Transfer())})
    with pytest.raises(Refusal, match="The frozen tensors are of another model"):
        Run.open(tmp_path / "run").evaluate()
    path.write_bytes(b"nothing")
    with pytest.raises(Refusal, match=r"constants.safetensors is damaged"):
        Run.open(tmp_path / "run").evaluate()
    path.unlink()
    with pytest.raises(Refusal, match=r"has lost constants.safetensors"):
        covey.resume(tmp_path / "run")


def test_constants_of_another_shape_are_refused() -> None:
    with pytest.raises(Refusal, match="The frozen tensors are of another model than this Transfer"):
        set_constants(Transfer(), {"backbone.0.weight": torch.zeros(1)})


@pytest.mark.parametrize("runtime", ["local", "stacked"])
def test_a_frozen_part_computes_in_the_precision_of_the_run(runtime: str, tmp_path: Path) -> None:
    given = {**GIVEN, "rounds": 2, "runtime": runtime, "device": "cpu", "precision": "bf16"}
    run = covey.run(given, model=transfer(), out=tmp_path / "run")
    exact = covey.run({**GIVEN, "rounds": 2}, model=transfer(), out=tmp_path / "exact")
    assert run.metrics[-1]["loss"] == pytest.approx(exact.metrics[-1]["loss"], rel=0.02)
