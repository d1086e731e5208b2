"""Which runtime `auto` is on this machine, and whether a device that is asked for can be had."""

from importlib import import_module

from covey.errors import require

AUTO = "auto"
"""The runtime that is chosen by the machine; a resolved configuration holds the one chosen."""

STORED = "local"
"""The runtime of folders and plans that name none: the only default before there was a choice."""

ON_GPU = "stacked"
"""The runtime that `auto` is where there is a GPU."""


def runtime_on(runtime: str, device: str, *, gpu: bool) -> str:
    """Return the runtime that a name stands for on a machine with or without a GPU."""
    if runtime != AUTO:
        return runtime
    return ON_GPU if device == "cuda" or (gpu and device == "auto") else "local"


def runtime_here(runtime: str, device: str) -> str:
    """Return the runtime that a name stands for on this machine."""
    return runtime_on(runtime, device, gpu=runtime == AUTO and device == "auto" and gpu_here())


def gpu_here() -> bool:
    """True if PyTorch has a CUDA GPU here."""
    # Imported late: a command that builds nothing starts without torch.
    return bool(import_module("torch").cuda.is_available())


def require_device(runtime: str, device: str, *, gpu: bool, uses_device: bool) -> None:
    """Refuse a GPU that is asked for and cannot be had."""
    require(device != "cuda" or gpu, no_gpu())
    require(
        device != "cuda" or uses_device,
        f"device=cuda is for the runtime '{ON_GPU}', and '{runtime}' computes on the CPU: give runtime={ON_GPU} with "
        "it.",
    )


def no_gpu() -> str:
    """Return the sentence for a GPU that is asked for where there is none."""
    version = import_module("torch").version
    built = version.cuda is not None or version.hip is not None
    why = "" if built else " (this PyTorch is built without CUDA)"
    return (
        f"device=cuda was asked for, and there is no GPU here that PyTorch can use{why}: leave the device out to "
        "compute on the CPU."
    )
