"""MNIST and Fashion-MNIST: 70,000 grey images of 28 x 28 pixels, in LeCun's idx files."""

import gzip
import io
import math
import struct
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from covey.data.dataset import Dataset
from covey.data.files import choose, locate, reason, unusable
from covey.errors import Refusal, require
from covey.registries import datasets

Bytes = npt.NDArray[np.uint8]

_SIDE = 28
_UNSIGNED_BYTE = 8
_DEFLATE_LIMIT = 1032
"""No gzip file holds more than this many times its own size."""

_MNIST = ((0.1307 * 255,), (0.3081 * 255,))
_FASHION = ((0.2860 * 255,), (0.3530 * 255,))
_UNIT = ((0.0,), (255.0,))

_TRAINING_LABELS = {"mnist": 0xBA07E8EF, "fashion-mnist": 0x2ED6E46A}
"""The CRC-32 of the official training labels: the two sets have the same file names and are easily confused."""

_GARMENTS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@datasets.add("mnist")
def mnist(data_dir: Path | None, /, *, normalise: Literal["own", "none"] = "own") -> Dataset:
    """MNIST: handwritten digits, 28 x 28, 10 classes, 60,000 + 10,000; `normalise=none` only scales to [0, 1]."""
    statistics = choose("normalise", normalise, {"own": _MNIST, "none": _UNIT})
    return _load("mnist", data_dir, tuple(map(str, range(10))), statistics)


@datasets.add("fashion-mnist")
def fashion_mnist(data_dir: Path | None, /, *, normalise: Literal["own", "mnist", "none"] = "own") -> Dataset:
    """Fashion-MNIST: garments, 28 x 28, 10 classes, 60,000 + 10,000; `normalise=none` only scales to [0, 1].

    `normalise=mnist` takes the mean and deviation of MNIST, as FedDRL's experiments do; On-Demand FL's
    only scale.
    """
    statistics = choose("normalise", normalise, {"own": _FASHION, "mnist": _MNIST, "none": _UNIT})
    return _load("fashion-mnist", data_dir, _GARMENTS, statistics)


def _load(
    name: str,
    data_dir: Path | None,
    class_names: tuple[str, ...],
    statistics: tuple[tuple[float, ...], tuple[float, ...]],
) -> Dataset:
    files = locate(name, data_dir)
    x, y = _samples(files, "train", len(class_names))
    _refuse_the_other(name, files["train-labels-idx1-ubyte"], y)
    test_x, test_y = _samples(files, "t10k", len(class_names))
    return Dataset(name, x, y, test_x, test_y, class_names, *statistics)


def _samples(files: dict[str, Path], part: str, classes: int) -> tuple[Tensor, Tensor]:
    """Read images uint8 `[n, 1, 28, 28]` and labels int64 `[n]` of the training (`train`) or test (`t10k`) part."""
    image_file, label_file = files[f"{part}-images-idx3-ubyte"], files[f"{part}-labels-idx1-ubyte"]
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if images.shape[1:] != (_SIDE, _SIDE):
        height, width = images.shape[1:]
        raise unusable(image_file, f"its images have {height} x {width} pixels, not {_SIDE} x {_SIDE}")
    if len(images) != len(labels):
        raise unusable(label_file, f"it holds {len(labels)} labels for the {len(images)} images of {image_file.name}")
    if labels.max() >= classes:
        raise unusable(label_file, f"it holds the label {labels.max()}, and labels run from 0 to {classes - 1}")
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))


def _refuse_the_other(name: str, path: Path, labels: Tensor) -> None:
    found = zlib.crc32(labels.to(torch.uint8).numpy().tobytes())
    other = next((known for known, crc in _TRAINING_LABELS.items() if crc == found and known != name), None)
    require(other is None, f"{path.parent} holds the dataset '{other}', not '{name}'; give the folder that holds that.")


def read_idx(path: Path, dimensions: int) -> Bytes:
    """Read the array of unsigned bytes in an idx file, plain or gzip.

    An idx file holds two zero bytes, the type of value (8: unsigned byte), the number of dimensions, each dimension as
    a big-endian 32-bit number, and the values.
    """
    try:
        size = path.stat().st_size
        if path.suffix == ".gz":
            with gzip.open(path) as unpacked:
                return _read_values(unpacked, path, dimensions, size * _DEFLATE_LIMIT)
        with path.open("rb") as stream:
            return _read_values(stream, path, dimensions, size)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise unusable(path, f"its gzip data are damaged ({reason(error)})") from error
    except (OSError, MemoryError) as error:
        raise unusable(path, f"it cannot be read ({reason(error)})") from error


def _read_values(stream: io.BufferedIOBase, path: Path, dimensions: int, ceiling: int) -> Bytes:
    """Read the values after the header; `ceiling` is the most bytes that the file can hold."""
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    head = stream.read(4 + 4 * dimensions)
    if head[:4] != magic:
        raise unusable(path, f"it starts with the bytes '{head[:4].hex(' ')}', not with '{magic.hex(' ')}'")
    if len(head) < 4 + 4 * dimensions:
        raise unusable(path, "it ends within its header")
    shape = struct.unpack(f">{dimensions}I", head[4:])
    size = math.prod(shape)
    if size == 0:
        raise unusable(path, f"its header says {' x '.join(map(str, shape))} values, so it is empty")
    if size > ceiling:
        raise _short(path, shape)
    values = np.empty(size, dtype=np.uint8)
    if stream.readinto(values.data) < size:
        raise _short(path, shape)
    if stream.read(1):
        raise unusable(path, f"it continues after the {' x '.join(map(str, shape))} values that its header promises")
    return values.reshape(shape)


def _short(path: Path, shape: tuple[int, ...]) -> Refusal:
    return unusable(path, f"it ends before the {' x '.join(map(str, shape))} values that its header promises")
