"""The constants of a run's model in its folder: frozen parameters, and buffers of frozen parts.

They are written once, when the run begins, with a digest of the model's architecture. Folders of models that can be
built again from their settings, and have no frozen parts, do without.
"""

import shutil
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from covey.errors import Refusal, require
from covey.model.frozen import architecture, constants, set_constants
from covey.registry import is_held
from covey.storage import replacing

FILE = "constants.safetensors"


def write_constants(folder: Path, model: str, module: nn.Module) -> None:
    """Write a model's constants, if it has any, or if `model` names an object of this process."""
    tensors = constants(module)
    if not tensors and not is_held(model):
        return
    copied = {name: one.to("cpu").clone().contiguous() for name, one in tensors.items()}
    with replacing(folder / FILE) as beside:
        save_file(copied, str(beside), {"architecture": architecture(module)})


def read_constants(folder: Path, model: str, module: nn.Module) -> None:
    """Give a model the constants of a run; refuse a model of another architecture than the run's."""
    path = folder / FILE
    if not path.is_file():
        require(
            not is_held(model) and not constants(module),
            f"The run folder {folder} has lost {FILE}, which holds what its model has beside trained parameters.",
        )
        return
    try:
        with safe_open(str(path), "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError, ValueError) as error:
        raise Refusal(f"{path} is damaged: {error}.") from error
    require(
        about.get("architecture") == architecture(module),
        f"The model {type(module).__name__} is not the one that the run in {folder} was made with: names, shapes or "
        "frozen parts of its tensors differ.",
    )
    set_constants(module, tensors)


def copy_constants(folder: Path, to: Path) -> None:
    """Copy a run's constants to the folder of another run of the same model."""
    if (folder / FILE).is_file():
        shutil.copyfile(folder / FILE, to / FILE)
