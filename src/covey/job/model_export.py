"""Writes a trained model as a file: its tensors (safetensors, a state dict), or a program (ONNX, TorchScript)."""

import copy
import io
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor, nn

from covey.data.dataset import Dataset
from covey.errors import Refusal, install, require
from covey.storage import replacing
from covey.task.regression import Regression

FORMATS = {
    "safetensors": ".safetensors",
    "onnx": ".onnx",
    "torchscript": ".ts",
    "state-dict": ".pt",
}
"""Format → ending of its files."""

_ENDINGS = {**{ending: name for name, ending in FORMATS.items()}, ".pth": "state-dict", ".torchscript": "torchscript"}

PROGRAMS = ("onnx", "torchscript")
"""Formats that hold the model as a program: it takes samples as they are stored and answers in the labels' unit."""


def format_of(path: Path, given: str | None = None) -> str:
    """Return the format of a file: the one given, or that of its ending; refuse any other."""
    name = given or _ENDINGS.get(path.suffix.lower())
    require(
        name in FORMATS,
        f"A model is written as {', '.join(FORMATS)}, not as '{given or path.suffix or path.name}'; the ending of the "
        f"file ({', '.join(_ENDINGS)}) or --format says which.",
    )
    assert name is not None
    ending = _ENDINGS.get(path.suffix.lower())
    require(ending in (None, name), f"The ending of {path} says {ending}, and the format is {name}; make them agree.")
    return name


class InOwnUnits(nn.Module):
    """A model that takes samples as they are stored, and answers in the labels' unit.

    It normalises samples itself, and turns the standardised targets of a regression back: `[b, targets]`.
    """

    mean: Tensor
    deviation: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, module: nn.Module, dataset: Dataset) -> None:
        super().__init__()
        self.module = module
        self.normalised = dataset.x.dtype == torch.uint8 or dataset.x.is_floating_point()
        spatial = (1,) * (len(dataset.shape) - 1)
        self.register_buffer("mean", torch.tensor(dataset.mean).view(-1, *spatial), persistent=False)
        self.register_buffer("deviation", torch.tensor(dataset.deviation).view(-1, *spatial), persistent=False)
        centre, scale = unit_of(dataset)
        self.register_buffer("centre", torch.tensor(centre), persistent=False)
        self.register_buffer("scale", torch.tensor(scale), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.normalised:
            x = (x - self.mean) / self.deviation
        output: Tensor = self.module(x)
        # Number of targets: known when the program is written, none for other tasks.
        targets = len(self.scale)
        return output.reshape(-1, targets) * self.scale + self.centre if targets else output


def unit_of(dataset: Dataset) -> tuple[Sequence[float], Sequence[float]]:
    """Return centre and scale of each target that a regression is trained on; nothing for other tasks."""
    task = dataset.learns
    return (task.centre, task.scale) if isinstance(task, Regression) else ((), ())


def with_plain_layers(module: nn.Module) -> nn.Module:
    """Return a copy whose layers are of torch's own operations: those that have a method `plain` are replaced."""
    copied = copy.deepcopy(module)
    for parent in list(copied.modules()):
        for name, child in list(parent.named_children()):
            plain = getattr(child, "plain", None)
            if callable(plain):
                setattr(parent, name, plain())
    return copied


def example_of(dataset: Dataset, count: int) -> Tensor:
    """Return inputs of an exported program: stored samples, as float32 unless they are tokens."""
    x = dataset.x[:count]
    return x.to(torch.float32) if x.dtype == torch.uint8 or x.is_floating_point() else x


def about_model(model: Mapping[str, Any], dataset: Dataset, done: int) -> dict[str, str]:
    """Return a file's metadata: the model, the samples that it takes and how they are normalised, and its answers."""
    found = {
        "model": model,
        "shape": dataset.shape,
        "class_names": dataset.class_names,
        "mean": dataset.mean,
        "deviation": dataset.deviation,
        "task": dataset.learns.as_mapping(),
        "round": done,
    }
    if dataset.columns:
        found["columns"] = [column.as_mapping() for column in dataset.columns]
    return {name: json.dumps(value) for name, value in found.items()}


def write_model(
    path: Path, kind: str, module: nn.Module, tensors: Mapping[str, Tensor], dataset: Dataset, about: Mapping[str, str]
) -> None:
    """Write a model, whose state the module holds, in one of `FORMATS`."""
    program = InOwnUnits(with_plain_layers(module).float(), dataset).eval() if kind in PROGRAMS else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            if kind == "safetensors":
                # `save_file` would make a file that its owner alone may read.
                beside.write_bytes(save(dict(tensors), dict(about)))
            elif kind == "state-dict":
                torch.save(dict(tensors), beside)
            elif kind == "torchscript":
                assert program is not None
                _write_torchscript(beside, program, dataset, about)
            else:
                assert program is not None
                _write_onnx(beside, program, dataset, about)
    except (OSError, SafetensorError) as error:
        raise Refusal(f"The file {path} cannot be written: {error}.") from error


def _write_torchscript(path: Path, program: nn.Module, dataset: Dataset, about: Mapping[str, str]) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        # Torch names TorchScript deprecated at every call; runtimes of phones and C++ still load it.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(program, (example_of(dataset, 2),), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(path), _extra_files={"about.json": json.dumps(dict(about)).encode()})


def _write_onnx(path: Path, program: nn.Module, dataset: Dataset, about: Mapping[str, str]) -> None:
    for library in ("onnx", "onnxscript"):
        _require_library(library)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        # The exporter prints its progress.
        stack.enter_context(redirect_stdout(io.StringIO()))
        loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
        for logger in loggers:
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        made = torch.onnx.export(
            program,
            (example_of(dataset, 2),),
            dynamo=True,
            input_names=["x"],
            output_names=["targets" if unit_of(dataset)[0] else "logits"],
            dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}},
            verbose=False,
        )
        assert made is not None
        for name, value in about.items():
            made.model.metadata_props[name] = value
        made.save(str(path))


def _require_library(name: str) -> None:
    try:
        import_module(name)
    except ImportError as error:
        raise Refusal(f"Writing ONNX needs the library {name}: {install('onnx')}.") from error
