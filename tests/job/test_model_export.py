"""Models leave as tensors or as programs, with a card, and compute elsewhere what they compute here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open

import covey
from covey.data.dataset import Dataset
from covey.errors import Refusal
from covey.job.model_export import example_of, format_of, write_model
from covey.model.factory import build_model
from covey.model.layout import Layout
from tests.conftest import Answer
from tests.programs import start_covey
from tests.task.federations import exercise, regression

SMALL: dict[str, Any] = {
    "clients": 6,
    "cohort": 2,
    "rounds": 2,
    "workers": 1,
    "local": {"epochs": 1, "batch": 20, "rate": 0.1},
    "model": {"name": "mlp", "hidden": (8,)},
}


def _dataset(shape: tuple[int, ...], dtype: torch.dtype) -> Dataset:
    drawn = torch.Generator().manual_seed(1)
    if dtype == torch.int64:
        x = torch.randint(0, 40, (12, *shape), generator=drawn)
    elif dtype == torch.uint8:
        x = torch.randint(0, 256, (12, *shape), generator=drawn).to(torch.uint8)
    else:
        x = 3 + 2 * torch.randn(12, *shape, generator=drawn)
    y = torch.arange(12) % 3
    names = tuple(map(str, range(40 if dtype == torch.int64 else 3)))
    scale: dict[str, Any] = (
        {} if dtype == torch.int64 else {"mean": (100.0,) * shape[0], "deviation": (50.0,) * shape[0]}
    )
    return Dataset(name="made-up", x=x, y=y, test_x=x, test_y=y, class_names=names, **scale)


@pytest.mark.parametrize(
    ("name", "options", "shape", "dtype"),
    [
        ("mlp", {"hidden": (8,)}, (5,), torch.float32),
        ("tutorial-cnn", {}, (3, 32, 32), torch.uint8),
        ("lstm", {"embedding": 6, "hidden": 7}, (4,), torch.int64),
    ],
)
def test_programs_take_stored_samples_and_agree_with_the_model(
    name: str, options: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    dataset = _dataset(shape, dtype)
    module = build_model(name, options, dataset.shape, dataset.classes, seed=3).eval()
    tensors = Layout.of(module).named(Layout.of(module).read(module))
    for kind, ending in (("onnx", "onnx"), ("torchscript", "ts")):
        write_model(tmp_path / f"m.{ending}", kind, module, tensors, dataset, {"round": "3"})
    for count in (1, 5):
        x = example_of(dataset, count)
        spatial = (1,) * (x.dim() - 2)
        mean, deviation = (torch.tensor(of).view(-1, *spatial) for of in (dataset.mean, dataset.deviation))
        with torch.no_grad():
            expected = module(x if dtype == torch.int64 else (x - mean) / deviation)
            traced = torch.jit.load(str(tmp_path / "m.ts"))(x)
        session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
        found = torch.from_numpy(session.run(["logits"], {"x": x.numpy()})[0])
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(traced, expected, rtol=1e-4, atol=1e-5)
    about = {entry.key: entry.value for entry in onnx.load(str(tmp_path / "m.onnx")).metadata_props}
    assert about["round"] == "3"


def test_a_run_leaves_in_every_format_with_a_card(tmp_path: Path) -> None:
    result = covey.run(SMALL, out=tmp_path / "run")
    for ending, kind in ((".safetensors", "safetensors"), (".pt", "state-dict"), (".ts", "torchscript")):
        found = result.export(tmp_path / f"model{ending}")
        assert (found["format"], found["round"]) == (kind, 2)
        card = tmp_path / f"model{ending}.md"
        assert (tmp_path / f"model{ending}").stat().st_mode == card.stat().st_mode
    with safe_open(str(tmp_path / "model.safetensors"), "pt") as file:
        named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert json.loads(file.metadata()["shape"]) == [1, 8, 8]
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert all(torch.equal(state[name], tensor) for name, tensor in named.items()) and state.keys() == named.keys()
    text = (tmp_path / "model.pt.md").read_text(encoding="utf-8")
    accuracy = result.metrics[-1]["accuracy"]
    assert f"after round 2: {accuracy:.1%}" in text
    assert "| 9 |" in text and "digits" in text and "No differential privacy" in text


def test_a_card_states_epsilon(tmp_path: Path) -> None:
    private = covey.run({**SMALL, "trainer": {"name": "dp-sgd", "noise": 2.0}}, out=tmp_path / "run")
    private.export(tmp_path / "model.safetensors")
    text = (tmp_path / "model.safetensors.md").read_text(encoding="utf-8")
    epsilon = private.metrics[-1]["figures"]["epsilon"]
    assert f"ε = {epsilon:.3g}" in text and "each sample" in text


@pytest.mark.parametrize("name", ["m.bin", "m", "m.h5"])
def test_other_endings_are_refused(name: str) -> None:
    with pytest.raises(Refusal, match="safetensors, onnx, torchscript, state-dict"):
        format_of(Path(name))


def test_an_ending_and_a_format_that_disagree_are_refused() -> None:
    assert format_of(Path("model"), "onnx") == "onnx"
    with pytest.raises(Refusal, match="make them agree"):
        format_of(Path("model.onnx"), "state-dict")
    with pytest.raises(Refusal, match="not as 'tflite'"):
        format_of(Path("model.onnx"), "tflite")


@pytest.mark.slow
def test_the_command_writes_the_command_on_the_card(tmp_path: Path, covey_command: Callable[..., Answer]) -> None:
    folder = tmp_path / "run"
    flags = ["--clients", 6, "--cohort", 2, "--rounds", 1, "--set", "local.epochs=1", "--out", folder]
    process = start_covey("run", *flags)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    exported = covey_command("export", folder, "--to", tmp_path / "m.onnx")
    assert exported.code == 0, exported.err
    assert f"covey run --clients 6 --cohort 2 --rounds 1 --set local.epochs=1 --out {folder}" in (
        tmp_path / "m.onnx.md"
    ).read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:.*the task is regression")
def test_a_regression_model_leaves_in_the_unit_of_its_targets(tmp_path: Path) -> None:
    federation = regression(6)
    run = covey.run(SMALL, federation=federation, out=tmp_path / "run")
    data, last = federation.dataset, run.metrics[-1]
    run.export(tmp_path / "m.ts")
    run.export(tmp_path / "m.onnx")
    with torch.no_grad():
        traced = torch.jit.load(str(tmp_path / "m.ts"))(data.test_x)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(["targets"], {"x": data.test_x.numpy()})
    right = data.learns.original(data.test_y)
    for given in (traced.double(), torch.from_numpy(found).double()):
        assert float((given - right).square().mean().sqrt()) == pytest.approx(last["score"], rel=1e-4)
    program, tensors = (run.export(tmp_path / name)["card"] for name in ("m.ts", "m.safetensors"))
    text = Path(str(program)).read_text(encoding="utf-8")
    assert f"RMSE on the test set after round 2: {last['score']:.4g}" in text
    assert f"R² {last['metrics']['r2']:.4g}" in text
    assert "| output | each target in its own unit |" in text and "logit" not in text
    unit = data.learns.as_mapping()
    assert f"times {unit['scale'][0]:.9g}, plus {unit['centre'][0]:.9g}" in Path(str(tensors)).read_text(
        encoding="utf-8"
    )


def test_a_program_of_many_targets_gives_each_in_its_own_unit(tmp_path: Path) -> None:
    data = exercise().dataset
    module = build_model("mlp", {"hidden": (4,)}, data.shape, data.outputs, seed=3).eval()
    write_model(tmp_path / "m.ts", "torchscript", module, {}, data, {})
    with torch.no_grad():
        given = torch.jit.load(str(tmp_path / "m.ts"))(data.x)
        mean, deviation = torch.tensor(data.mean), torch.tensor(data.deviation)
        expected = data.learns.original(module((data.x - mean) / deviation))
    torch.testing.assert_close(given.double(), expected, rtol=1e-5, atol=1e-4)
