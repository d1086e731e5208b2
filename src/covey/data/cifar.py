"""CIFAR-10 and CIFAR-100: 60,000 colour images of 32 x 32 pixels, in the Python version's pickles.

A pickle can run any code when it is loaded. From these files only dictionaries, lists, bytes, numbers and arrays of
bytes are read: stand-ins that check their arguments replace the three NumPy names that an array needs, and any other
name is refused.
"""

import math
import pickle
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from covey.data.dataset import Dataset
from covey.data.files import choose, locate, reason, unusable
from covey.registries import datasets

Bytes = npt.NDArray[np.uint8]
Statistics = tuple[tuple[float, ...], tuple[float, ...]]

_SHAPE = (3, 32, 32)
_PIXELS = math.prod(_SHAPE)
_UNIT: Statistics = ((0.0,) * 3, (255.0,) * 3)


def _per_byte(mean: tuple[float, ...], deviation: tuple[float, ...]) -> Statistics:
    return tuple(255 * value for value in mean), tuple(255 * value for value in deviation)


_CIFAR10 = _per_byte((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_CIFAR100 = _per_byte((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


@datasets.add("cifar10")
def cifar10(data_dir: Path | None, /, *, normalise: Literal["own", "none"] = "own") -> Dataset:
    """CIFAR-10: photographs, 3 x 32 x 32, 10 classes, 50,000 + 10,000; `normalise=none` only scales to [0, 1]."""
    statistics = choose("normalise", normalise, {"own": _CIFAR10, "none": _UNIT})
    files = locate("cifar10", data_dir)
    class_names = _names(files["batches.meta"], "label_names", 10)
    x, y = _samples([files[f"data_batch_{number}"] for number in range(1, 6)], "labels", 10)
    test_x, test_y = _samples([files["test_batch"]], "labels", 10)
    return Dataset("cifar10", x, y, test_x, test_y, class_names, *statistics)


@datasets.add("cifar100")
def cifar100(
    data_dir: Path | None,
    /,
    *,
    labels: Literal["fine", "coarse"] = "fine",
    normalise: Literal["own", "none"] = "own",
) -> Dataset:
    """CIFAR-100: photographs, 3 x 32 x 32, 100 classes or 20 (`labels=coarse`), 50,000 + 10,000.

    `normalise=none` only scales to [0, 1].
    """
    classes = choose("labels", labels, {"fine": 100, "coarse": 20})
    statistics = choose("normalise", normalise, {"own": _CIFAR100, "none": _UNIT})
    files = locate("cifar100", data_dir)
    class_names = _names(files["meta"], f"{labels}_label_names", classes)
    x, y = _samples([files["train"]], f"{labels}_labels", classes)
    test_x, test_y = _samples([files["test"]], f"{labels}_labels", classes)
    return Dataset("cifar100", x, y, test_x, test_y, class_names, *statistics)


def _names(path: Path, key: str, classes: int) -> tuple[str, ...]:
    names = read_pickle(path).get(key)
    if not isinstance(names, list) or len(names) != classes:
        raise unusable(path, f"its '{key}' is not a list of {classes} names")
    texts = tuple(map(_text, names))
    if not all(texts):
        raise unusable(path, f"its '{key}' holds something that is not a name")
    return texts


def _samples(paths: list[Path], label_key: str, classes: int) -> tuple[Tensor, Tensor]:
    """Read images uint8 `[n, 3, 32, 32]` and labels int64 `[n]` from the batch files, in their order."""
    images: list[Bytes] = []
    labels: list[int] = []
    for path in paths:
        batch = read_pickle(path)
        images.append(_images(batch, path))
        labels += _labels(batch, path, label_key, len(images[-1]), classes)
    x = np.concatenate(images).reshape(-1, *_SHAPE)
    return torch.from_numpy(x), torch.tensor(labels, dtype=torch.int64)


def _images(batch: dict[str, Any], path: Path) -> Bytes:
    array = batch.get("data")
    if not isinstance(array, _Array) or array.values is None:
        raise unusable(path, "it has no array 'data'")
    values = array.values
    if values.ndim != 2 or values.shape[1] != _PIXELS or len(values) == 0:
        shape = " x ".join(map(str, values.shape))
        raise unusable(path, f"its array 'data' is {shape}, not images x {_PIXELS} (3 x 32 x 32 values)")
    return values


def _labels(batch: dict[str, Any], path: Path, key: str, count: int, classes: int) -> list[int]:
    labels = batch.get(key)
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise unusable(path, f"it has no list of whole numbers '{key}'")
    if len(labels) != count:
        raise unusable(path, f"it holds {len(labels)} '{key}' for {count} images")
    wrong = next((label for label in labels if not 0 <= label < classes), None)
    if wrong is not None:
        shown = wrong if abs(wrong) < 10_000 else "an enormous number"
        raise unusable(path, f"its '{key}' hold {shown}, and labels run from 0 to {classes - 1}")
    return labels


def read_pickle(path: Path) -> dict[str, Any]:
    """Read the dictionary in a CIFAR file, keys as text and arrays as `_Array`, without running code from the file."""
    try:
        with path.open("rb") as stream:
            content = _Unpickler(stream, encoding="bytes").load()
            trailing = bool(stream.read(1))
    except OSError as error:
        raise unusable(path, f"it cannot be read ({reason(error)})") from error
    except Exception as error:
        # Damaged pickles end in errors of every kind: stack, encoding, end of file, unknown instruction, ...
        raise unusable(path, f"it is not a CIFAR pickle ({_plain(error)})") from error
    if not isinstance(content, dict) or trailing:
        raise unusable(path, "it continues after its end" if trailing else "it does not hold a dictionary")
    return {_text(key): value for key, value in content.items()}


def _text(value: object) -> str:
    """Return a name written by Python 2 (bytes) or 3 (text); empty for anything else."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    return value if isinstance(value, str) and value.isprintable() else ""


def _plain(error: Exception) -> str:
    """Return the error as printable text of limited length: a damaged file may put anything into it."""
    if isinstance(error, EOFError):
        return "it ends too early"
    kind = "" if isinstance(error, pickle.UnpicklingError) else f"it makes no sense: {type(error).__name__} "
    text = f"{kind}{error}".strip()
    return "".join(character if character.isprintable() else "?" for character in text)[:160]


class _Type:
    """Stand-in for `numpy.dtype` that admits only the unsigned byte."""

    def __init__(self, code: object, *_: object) -> None:
        if code not in (b"u1", "u1", b"|u1", "|u1"):
            raise pickle.UnpicklingError(f"an array of {code!r} instead of unsigned bytes")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and fields, which mean nothing for single bytes."""


class _Array:
    """Stand-in for `numpy.ndarray` and `_reconstruct`: created empty, then given its values as state."""

    values: Bytes | None = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        match state:
            case (_, tuple() as shape, _Type(), bool() as by_column, bytes() as raw):
                if all(type(size) is int and size >= 0 for size in shape) and math.prod(shape) == len(raw):
                    flat = np.frombuffer(raw, dtype=np.uint8)
                    self.values = flat.reshape(shape, order="F" if by_column else "C")
                    return
        raise pickle.UnpicklingError("an array whose values do not fit its shape")


_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
}


class _Unpickler(pickle._Unpickler):
    """Unpickler that admits only the three names that arrays of bytes need.

    It extends the unpickler written in Python, which is as fast here. The one in C allocates as much memory as a
    damaged index in the file asks for, tens of gigabytes. Byte arrays of announced size are left out for that reason.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not admitted; nothing of it was run")
        return _ADMITTED[module, name]
