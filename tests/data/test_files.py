import contextlib
import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import threading
import time
import zlib
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from covey.data import Dataset, cifar, cifar10, cifar100, download, fashion_mnist, files, idx, mnist
from covey.data.dataset import load_dataset
from covey.data.files import SOURCES
from covey.errors import Refusal

IDX_FILES = SOURCES["mnist"].files
CIFAR10_FILES = SOURCES["cifar10"].files
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]

REAL = Path(os.environ.get("COVEY_DATA", "no data folder"))
needs_real_files = pytest.mark.skipif(
    "COVEY_DATA" not in os.environ, reason="COVEY_DATA names no folder with the real data sets"
)


# Small files in the official formats.


def idx_file(values: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
    return head + values.astype(np.uint8).tobytes()


def write_idx(folder: Path, packed: bool = False) -> dict[str, np.ndarray]:
    """Thirty training and ten test images that differ in every pixel, with every label."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    arrays = {
        "train-images-idx3-ubyte": rng.integers(256, size=(30, 28, 28), dtype=np.uint8),
        "train-labels-idx1-ubyte": np.arange(30, dtype=np.uint8) % 10,
        "t10k-images-idx3-ubyte": rng.integers(256, size=(10, 28, 28), dtype=np.uint8),
        "t10k-labels-idx1-ubyte": np.arange(10, dtype=np.uint8)[::-1].copy(),
    }
    for name, array in arrays.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx_file(array)))
        else:
            (folder / name).write_bytes(idx_file(array))
    return arrays


def python2_pickle(value: Any) -> bytes:
    """`value` as Python 2 wrote it, in protocol 2: text as byte strings, arrays through `_reconstruct`."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value: Any) -> bytes:
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, (bytes, str)):
        raw = value if isinstance(value, bytes) else value.encode()
        return b"T" + struct.pack("<i", len(raw)) + raw
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_python2, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(_python2, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_python2(part) for pair in value.items() for part in pair) + b"u"
    assert isinstance(value, np.ndarray)
    kind = b"cnumpy\ndtype\n" + _python2((value.dtype.str[1:], 0, 1)) + b"R"
    kind += _python2((3, value.dtype.str[0], None, None, None, -1, -1, 0)) + b"b"
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _python2((0,)) + _python2("b") + b"tR"
    by_column = value.flags.f_contiguous and not value.flags.c_contiguous
    state = b"(" + _python2(1) + _python2(value.shape) + kind + _python2(by_column)
    return made + state + _python2(value.tobytes("F" if by_column else "C")) + b"tb"


def batch(count: int = 4, seed: int = 0, **changes: Any) -> dict[str, Any]:
    images = np.random.default_rng(seed).integers(256, size=(count, 3072), dtype=np.uint8)
    labels = [(seed + index) % 10 for index in range(count)]
    files_of = [f"image_{index}.png" for index in range(count)]
    return {"batch_label": "a batch", "labels": labels, "data": images, "filenames": files_of} | changes


def write_cifar10(folder: Path, dump=python2_pickle) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    batches = [batch(seed=number) for number in range(6)]
    for name, content in zip(CIFAR10_FILES, batches, strict=False):
        (folder / name).write_bytes(dump(content))
    (folder / "batches.meta").write_bytes(dump({"label_names": NAMES, "num_vis": 3072}))
    return batches


def write_cifar100(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    meta = {
        "fine_label_names": [f"fine {n}" for n in range(100)],
        "coarse_label_names": [f"coarse {n}" for n in range(20)],
    }
    (folder / "meta").write_bytes(python2_pickle(meta))
    for seed, name in enumerate(("train", "test")):
        content = batch(seed=seed) | {"fine_labels": [99, 0, 50, 7], "coarse_labels": [19, 0, 10, 3]}
        (folder / name).write_bytes(python2_pickle(content))


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    """Return the sentence that `call` refuses with."""
    with pytest.raises(Refusal) as caught:
        call(*arguments, **options)
    return str(caught.value)


# MNIST and Fashion-MNIST.


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_mnist_holds_the_images_and_labels_of_its_files(tmp_path, packed):
    arrays = write_idx(tmp_path / "MNIST" / "raw", packed)
    data = mnist(tmp_path)
    assert (data.x.shape, data.x.dtype, data.y.dtype) == ((30, 1, 28, 28), torch.uint8, torch.int64)
    assert np.array_equal(data.x[:, 0].numpy(), arrays["train-images-idx3-ubyte"])
    assert np.array_equal(data.test_x[:, 0].numpy(), arrays["t10k-images-idx3-ubyte"])
    assert data.y.tolist() == list(range(10)) * 3
    assert data.test_y.tolist() == list(range(9, -1, -1))
    assert data.class_names == tuple("0123456789")


@pytest.mark.parametrize("given", [".", "FashionMNIST", "FashionMNIST/raw"])
def test_the_data_folder_may_be_the_inner_folder(tmp_path, given):
    write_idx(tmp_path / "FashionMNIST" / "raw")
    assert len(fashion_mnist(tmp_path / given).x) == 30


def test_fashion_mnist_is_found_where_debian_puts_it(tmp_path, monkeypatch):
    source = replace(SOURCES["fashion-mnist"], elsewhere=(tmp_path / "usr",))
    monkeypatch.setitem(SOURCES, "fashion-mnist", source)
    write_idx(tmp_path / "usr", packed=True)
    assert fashion_mnist(None).class_names[9] == "Ankle boot"
    assert len(fashion_mnist(tmp_path / "empty").x) == 30


def test_each_normalisation_maps_pixels_as_it_says(tmp_path):
    write_idx(tmp_path / "FashionMNIST" / "raw")

    def white(data: Dataset) -> float:
        return (255 - data.mean[0]) / data.deviation[0]

    assert white(fashion_mnist(tmp_path)) == pytest.approx((1 - 0.2860) / 0.3530)
    assert white(fashion_mnist(tmp_path, normalise="mnist")) == pytest.approx((1 - 0.1307) / 0.3081)
    assert white(fashion_mnist(tmp_path, normalise="none")) == 1
    assert fashion_mnist(tmp_path, normalise="none").mean == (0.0,)
    assert "own, mnist, none" in refusal(load_dataset, "fashion-mnist", tmp_path, {"normalise": "cifar"})
    assert "own, none" in refusal(mnist, tmp_path, normalise="mnist")


def test_mnist_is_not_taken_for_fashion_mnist(tmp_path, monkeypatch):
    arrays = write_idx(tmp_path)
    crc = zlib.crc32(arrays["train-labels-idx1-ubyte"].tobytes())
    monkeypatch.setitem(idx._TRAINING_LABELS, "mnist", crc)
    assert len(mnist(tmp_path).x) == 30
    assert "holds the dataset 'mnist', not 'fashion-mnist'" in refusal(fashion_mnist, tmp_path)


def test_missing_files_are_refused_with_every_place_and_the_command(tmp_path):
    given = tmp_path / "my data"
    said = refusal(mnist, given)
    for part in (*IDX_FILES, str(given / "MNIST" / "raw"), f" {given};", f"covey download mnist --data-dir '{given}'"):
        assert part in said
    assert "\n" not in said


def test_without_a_data_folder_the_refusal_says_how_to_give_one():
    said = refusal(cifar10, None)
    for part in ("no data folder is given", "covey download cifar10 --data-dir DIR", "--data-dir or COVEY_DATA"):
        assert part in said


def test_fashion_mnist_names_debians_place_and_package(tmp_path, monkeypatch):
    nowhere = tmp_path / "usr" / "fashion-mnist"
    monkeypatch.setitem(SOURCES, "fashion-mnist", replace(SOURCES["fashion-mnist"], elsewhere=(nowhere,)))
    for data_dir in (None, tmp_path):
        said = refusal(fashion_mnist, data_dir)
        assert str(nowhere) in said and "dataset-fashion-mnist" in said


def test_an_incomplete_folder_is_refused_with_what_it_lacks(tmp_path):
    write_idx(tmp_path / "MNIST" / "raw", packed=True)
    (tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz").unlink()
    assert f"{tmp_path / 'MNIST' / 'raw'} (which lacks t10k-images-idx3-ubyte)" in refusal(mnist, tmp_path)


IMAGES = idx_file(np.zeros((10, 28, 28)))
LABELS = idx_file(np.arange(10))
IDX_DAMAGE = {
    "another magic number": ("t10k-images-idx3-ubyte", b"\x00\x00\x0d\x03" + IMAGES[4:], "00 00 0d 03"),
    "labels where images should be": ("t10k-images-idx3-ubyte", LABELS, "00 00 08 01"),
    "nothing in it": ("t10k-labels-idx1-ubyte", b"", "starts with the bytes ''"),
    "half a header": ("t10k-images-idx3-ubyte", IMAGES[:9], "within its header"),
    "a pixel too few": ("t10k-images-idx3-ubyte", IMAGES[:-1], "ends before the 10 x 28 x 28 values"),
    "a byte too many": ("t10k-labels-idx1-ubyte", LABELS + b"\x00", "continues after"),
    "a header that promises terabytes": (
        "t10k-images-idx3-ubyte",
        IMAGES[:4] + b"\xff" * 12 + IMAGES[16:],
        "ends before",
    ),
    "no images": ("t10k-images-idx3-ubyte", idx_file(np.zeros((0, 28, 28))), "empty"),
    "images of another size": ("t10k-images-idx3-ubyte", idx_file(np.zeros((10, 32, 32))), "32 x 32 pixels"),
    "fewer labels than images": ("t10k-labels-idx1-ubyte", idx_file(np.arange(9)), "9 labels for the 10 images"),
    "a label too high": ("t10k-labels-idx1-ubyte", idx_file(np.arange(10) + 1), "the label 10"),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("case", IDX_DAMAGE)
def test_a_damaged_idx_file_is_refused_by_name(tmp_path, case, packed):
    name, content, fault = IDX_DAMAGE[case]
    write_idx(tmp_path, packed)
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
    said = refusal(mnist, tmp_path)
    assert said.startswith(f"{path} cannot be used: ") and fault in said


@pytest.mark.parametrize("damage", ["cut", "flipped", "no gzip", "wrong sum"])
def test_damaged_gzip_data_are_refused_by_name(tmp_path, damage):
    write_idx(tmp_path, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    good = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(good[: len(good) // 2])
    elif damage == "no gzip":
        path.write_bytes(b"<html>404</html>")
    else:
        good[-6 if damage == "wrong sum" else len(good) // 2] ^= 0xFF
        path.write_bytes(good)
    said = refusal(mnist, tmp_path)
    assert said.startswith(f"{path} cannot be used: its gzip data are damaged")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True), packed=st.booleans())
def test_an_idx_file_cut_anywhere_is_refused(tmp_path, share, packed):
    path = tmp_path / ("labels.gz" if packed else "labels")
    content = gzip.compress(LABELS) if packed else LABELS
    path.write_bytes(content[: int(share * len(content))])
    assert str(path) in refusal(idx.read_idx, path, 1)


# CIFAR-10 and CIFAR-100.


def python3_pickle(value: Any) -> bytes:
    return pickle.dumps(value, protocol=4)


@pytest.mark.parametrize("dump", [python2_pickle, python3_pickle])
def test_cifar10_holds_its_batches_in_order(tmp_path, dump):
    batches = write_cifar10(tmp_path / "cifar-10-batches-py", dump)
    for folder in (tmp_path, tmp_path / "cifar-10-batches-py"):
        data = cifar10(folder)
        expected = np.concatenate([content["data"] for content in batches[:5]]).reshape(-1, 3, 32, 32)
        assert (data.x.dtype, data.y.dtype, data.shape) == (torch.uint8, torch.int64, (3, 32, 32))
        assert np.array_equal(data.x.numpy(), expected)
        assert np.array_equal(data.test_x.flatten(1).numpy(), batches[5]["data"])
        assert data.y.tolist() == [label for content in batches[:5] for label in content["labels"]]
        assert data.class_names == tuple(NAMES)


def test_arrays_stored_by_column_are_read_in_their_own_order(tmp_path):
    batches = write_cifar10(tmp_path)
    by_column = np.asfortranarray(batches[5]["data"])
    (tmp_path / "test_batch").write_bytes(python2_pickle(batch(seed=5, data=by_column)))
    assert np.array_equal(cifar10(tmp_path).test_x.flatten(1).numpy(), batches[5]["data"])


def test_cifar100_has_fine_or_coarse_labels(tmp_path):
    write_cifar100(tmp_path / "cifar-100-python")
    fine, coarse = cifar100(tmp_path), cifar100(tmp_path, labels="coarse", normalise="none")
    assert (fine.classes, fine.class_names[99], fine.y.tolist()) == (100, "fine 99", [99, 0, 50, 7])
    assert (coarse.classes, coarse.class_names[19], coarse.y.tolist()) == (20, "coarse 19", [19, 0, 10, 3])
    assert torch.equal(fine.x, coarse.x)
    assert (coarse.mean, coarse.deviation) == ((0.0, 0.0, 0.0), (255.0, 255.0, 255.0))
    assert "fine, coarse" in refusal(load_dataset, "cifar100", tmp_path, {"labels": "medium"})


class Calls:
    """An object whose pickle calls `function` when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _huge_memo_index() -> bytes:
    return b"\x80\x02}r" + struct.pack("<I", 1 << 31) + b"."


GOOD = python2_pickle(batch())
CIFAR_DAMAGE = {
    "not a pickle": (b"<html>not found</html>", "not a CIFAR pickle"),
    "empty": (b"", "it ends too early"),
    "truncated in the pixels": (GOOD[: len(GOOD) // 2], "it ends too early"),
    "something after the end": (GOOD + b"x", "continues after its end"),
    "a list": (python2_pickle([1, 2]), "does not hold a dictionary"),
    "no pixels": (python2_pickle({"labels": [1]}), "no array 'data'"),
    "pixels as a list": (python2_pickle(batch(data=[0] * 3072)), "no array 'data'"),
    "no labels": (python2_pickle(batch(labels=None)), "no list of whole numbers 'labels'"),
    "labels that are text": (python2_pickle(batch(labels=["1", "2", "3", "4"])), "no list of whole numbers"),
    "too few labels": (python2_pickle(batch(labels=[1, 2, 3])), "3 'labels' for 4 images"),
    "a label too high": (python2_pickle(batch(labels=[1, 2, 10, 3])), "hold 10, and labels run from 0 to 9"),
    "a negative label": (python2_pickle(batch(labels=[1, 2, -1, 3])), "hold -1"),
    "an enormous label": (python3_pickle(batch(labels=[1, 2, 10**5000, 3])), "an enormous number, and labels"),
    "grey pixels": (python2_pickle(batch(data=np.zeros((4, 1024), np.uint8))), "4 x 1024, not images x 3072"),
    "no images": (python2_pickle(batch(count=0)), "0 x 3072"),
    "another type of pixel": (python2_pickle(batch(data=np.zeros((4, 3072), np.float32))), "instead of unsigned bytes"),
    "objects as pixels": (python3_pickle(batch(data=np.zeros((4, 3072), object))), "instead of unsigned bytes"),
    "fewer pixels than the shape says": (
        GOOD.replace(struct.pack("<i", 4) + b"J" + struct.pack("<i", 3072), struct.pack("<ici", 5, b"J", 3072)),
        "do not fit its shape",
    ),
    "an array without values": (b"\x80\x02}U\x04datacnumpy\nndarray\n)\x81s.", "no array 'data'"),
    "values given to a name": (b"\x80\x02cnumpy\nndarray\n}b.", "not a CIFAR pickle"),
    "an index that asks for gigabytes": (_huge_memo_index(), "no array 'data'"),
    "a byte array that asks for gigabytes": (b"\x80\x05\x96" + struct.pack("<Q", 1 << 36) + b".", "not a CIFAR pickle"),
    "bytes that ask for gigabytes": (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b".", "not a CIFAR pickle"),
}


@pytest.mark.parametrize("case", CIFAR_DAMAGE)
def test_a_damaged_cifar_file_is_refused_by_name(tmp_path, case):
    content, fault = CIFAR_DAMAGE[case]
    write_cifar10(tmp_path)
    path = tmp_path / "data_batch_3"
    path.write_bytes(content)
    said = refusal(cifar10, tmp_path)
    assert said.startswith(f"{path} cannot be used: ") and fault in said
    assert said.isprintable() and len(said) < 400


@pytest.mark.parametrize(
    "names",
    [None, NAMES[:9], [*NAMES[:9], 3], [*NAMES[:9], b"\x1b[31mred"]],
    ids=["none", "nine", "a number", "escape"],
)
def test_damaged_class_names_are_refused_by_name(tmp_path, names):
    write_cifar10(tmp_path)
    (tmp_path / "batches.meta").write_bytes(python2_pickle({"label_names": names}))
    assert refusal(cifar10, tmp_path).startswith(f"{tmp_path / 'batches.meta'} cannot be used: its 'label_names'")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (os.system, ("touch {}",)),
        (eval, ("open('{}', 'w')",)),
        (exec, ("open('{}', 'w')",)),
        (open, ("{}", "w")),
        (np.save, ("{}", b"x")),
        (np.memmap, ("{}", "u1", "w+", 0, (1,))),
        (getattr, (np.ndarray, "tofile")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_malicious_pickle_is_refused_and_runs_nothing(tmp_path, function, arguments, protocol):
    mark = tmp_path / "executed"
    arguments = [part.format(mark) if isinstance(part, str) else part for part in arguments]
    write_cifar10(tmp_path)
    for content in (Calls(function, *arguments), batch(labels=Calls(function, *arguments))):
        (tmp_path / "data_batch_1").write_bytes(pickle.dumps(content, protocol=protocol))
        said = refusal(cifar10, tmp_path)
        assert str(tmp_path / "data_batch_1") in said and "is not admitted" in said
        assert not list(tmp_path.glob("executed*"))


def test_names_below_the_admitted_ones_are_refused():
    for module, name in [
        ("numpy", "ndarray.tofile"),
        ("numpy", "dtype.type"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.multiarray", "fromfile"),
        ("numpy.core", "multiarray._reconstruct"),
        ("_codecs", "encode"),
        ("builtins", "getattr"),
    ]:
        with pytest.raises(pickle.UnpicklingError, match="not admitted"):
            cifar._Unpickler(io.BytesIO()).find_class(module, name)


def test_what_a_file_says_never_reaches_the_terminal_raw(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "test_batch").write_bytes(b"\x80\x02c\x1b]0;title\x07os\n" + b"x" * 5000 + b"\n.")
    said = refusal(cifar10, tmp_path)
    assert said.isprintable() and len(said) < 400


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_cifar_file_with_any_bytes_changed_is_read_or_refused(tmp_path, changes):
    content = bytearray(python3_pickle(batch(count=1)) if changes[0][1] % 2 else python2_pickle(batch(count=1)))
    outside = [at for at in range(len(content)) if not 200 < at < len(content) - 200]
    for share, value in changes:
        content[outside[int(share * len(outside))]] = value
    path = tmp_path / "batch"
    path.write_bytes(content)
    with contextlib.suppress(Refusal):
        images, labels = cifar._samples([path], "labels", 10)
        assert images.shape[1:] == (3, 32, 32) and len(images) == len(labels)


# Downloads, from a real server.


class Server(ThreadingHTTPServer):
    """Offers `content` by path; `ranges` and `sent` say what it was asked for and what it gave."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content: dict[str, bytes] = {}
        self.offers_ranges = True
        self.cut_after: int | None = None
        self.requests: list[tuple[str, str | None]] = []
        self.sent = 0

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.requests.append((self.path, asked))
        content = self.server.content.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.offers_ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:][: self.server.cut_after]
        self.server.sent += len(body)
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    """A web server on this machine."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def official_mnist(server, monkeypatch, tmp_path):
    write_idx(tmp_path / "official", packed=True)
    downloads = []
    for item in SOURCES["mnist"].downloads:
        content = (tmp_path / "official" / item.file).read_bytes()
        server.content[f"/mnist/{item.file}"] = content
        downloads.append(replace(item, urls=(f"{server.base}/mnist/{item.file}",), sha256=_digest(content)))
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], downloads=tuple(downloads)))
    return server


def tar_of(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return out.getvalue()


@pytest.fixture
def offer_cifar10(server: Server, monkeypatch):
    def offer(archive: bytes) -> Server:
        item = SOURCES["cifar10"].downloads[0]
        server.content["/cifar-10-python.tar.gz"] = archive
        item = replace(item, urls=(f"{server.base}/cifar-10-python.tar.gz",), sha256=_digest(archive))
        monkeypatch.setitem(SOURCES, "cifar10", replace(SOURCES["cifar10"], downloads=(item,)))
        return server

    return offer


def cifar10_members(tmp_path: Path) -> dict[str, bytes]:
    write_cifar10(tmp_path / "made")
    return {f"cifar-10-batches-py/{name}": (tmp_path / "made" / name).read_bytes() for name in CIFAR10_FILES}


def test_a_download_gives_the_folder_that_the_loader_reads(official_mnist, tmp_path):
    heard = []
    folder = download("mnist", tmp_path / "new" / "data", progress=lambda *what: heard.append(what))
    assert folder == tmp_path / "new" / "data" / "MNIST" / "raw"
    assert len(mnist(tmp_path / "new" / "data").x) == 30
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.gz" for name in IDX_FILES)
    size = len(official_mnist.content["/mnist/t10k-images-idx3-ubyte.gz"])
    assert ("t10k-images-idx3-ubyte.gz", size, size) in heard


def test_files_that_are_there_are_not_fetched_again(official_mnist, tmp_path):
    download("mnist", tmp_path)
    (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    official_mnist.requests.clear()
    download("mnist", tmp_path)
    assert official_mnist.requests == [("/mnist/t10k-labels-idx1-ubyte.gz", None)]


def test_a_half_downloaded_file_is_continued_where_it_stopped(official_mnist, tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    content = official_mnist.content["/mnist/train-images-idx3-ubyte.gz"]
    half = len(content) // 2
    official_mnist.cut_after = half
    said = refusal(download, "mnist", tmp_path)
    assert f"the connection ended after {half:,} of {len(content):,} bytes" in said
    assert "the same command continues it" in said
    assert [path.name for path in folder.iterdir()] == ["train-images-idx3-ubyte.gz.part"]

    official_mnist.cut_after, official_mnist.sent = None, 0
    download("mnist", tmp_path)
    assert ("/mnist/train-images-idx3-ubyte.gz", f"bytes={half}-") in official_mnist.requests
    assert official_mnist.sent == sum(map(len, official_mnist.content.values())) - half
    assert (folder / "train-images-idx3-ubyte.gz").read_bytes() == content
    assert not list(folder.glob("*.part"))


def test_a_server_without_ranges_is_asked_for_the_whole_file(official_mnist, tmp_path):
    official_mnist.cut_after = 1000
    refusal(download, "mnist", tmp_path)
    official_mnist.cut_after, official_mnist.offers_ranges = None, False
    download("mnist", tmp_path)
    assert len(mnist(tmp_path).x) == 30


@pytest.mark.parametrize("left", ["the whole file", "more than the file", "another file's beginning"])
def test_whatever_an_earlier_attempt_left_the_download_ends_well(official_mnist, tmp_path, left):
    content = official_mnist.content["/mnist/train-images-idx3-ubyte.gz"]
    part = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes({"the whole file": content, "more than the file": content + b"x"}.get(left, b"another file"))
    official_mnist.sent = 0
    download("mnist", tmp_path)
    assert len(mnist(tmp_path).x) == 30
    if left == "the whole file":
        assert official_mnist.sent == sum(map(len, official_mnist.content.values())) - len(content)


def test_everything_is_fetched_over_tls_and_checked():
    downloads = [item for source in SOURCES.values() for item in source.downloads]
    assert all(url.startswith("https://") for item in downloads for url in item.urls)
    assert all(len(bytes.fromhex(item.sha256)) == 32 for item in downloads)


def test_a_file_with_another_checksum_is_refused_and_not_kept(official_mnist, tmp_path):
    address = "/mnist/train-labels-idx1-ubyte.gz"
    right = _digest(official_mnist.content[address])
    official_mnist.content[address] = b"<html>Please log in to this network</html>"
    said = refusal(download, "mnist", tmp_path)
    for part in (address, right, _digest(official_mnist.content[address]), "SHA-256"):
        assert part in said
    assert not list((tmp_path / "MNIST" / "raw").glob("train-labels*"))


def test_the_next_address_is_asked_when_the_first_fails(official_mnist, tmp_path, monkeypatch):
    source = SOURCES["mnist"]
    mirrored = tuple(
        replace(item, urls=(f"{official_mnist.base}/gone/{item.file}", *item.urls)) for item in source.downloads
    )
    monkeypatch.setitem(SOURCES, "mnist", replace(source, downloads=mirrored))
    download("mnist", tmp_path)
    assert len(mnist(tmp_path).x) == 30
    official_mnist.content.clear()
    said = refusal(download, "mnist", tmp_path / "again")
    assert said.count("404") == 2 and "/gone/" in said and "/mnist/" in said


def test_without_a_connection_the_download_is_refused_with_what_to_do(official_mnist, tmp_path):
    def offline(url: str, part: Path, progress: Any) -> None:
        files.fetch_file("http://127.0.0.1:9/nothing-listens-here", part, progress)

    said = refusal(download, "mnist", tmp_path, fetch=offline)
    assert "refused" in said and f"into {tmp_path / 'MNIST' / 'raw'} by hand" in said


def test_a_folder_that_cannot_be_written_is_refused(official_mnist, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert str(tmp_path / "file") in refusal(download, "mnist", tmp_path / "file")


def test_only_sets_with_files_can_be_downloaded(tmp_path):
    said = refusal(download, "digits", tmp_path)
    assert "'digits'" in said and "cifar10, cifar100, fashion-mnist, mnist" in said


def test_an_archive_is_unpacked_and_removed(offer_cifar10, tmp_path):
    server = offer_cifar10(tar_of(cifar10_members(tmp_path)))
    data_dir = tmp_path / "data"
    assert download("cifar10", data_dir) == data_dir / "cifar-10-batches-py"
    assert len(cifar10(data_dir).x) == 20
    assert [path.name for path in data_dir.iterdir()] == ["cifar-10-batches-py"]
    server.requests.clear()
    download("cifar10", data_dir)
    assert server.requests == []


def test_an_archive_that_the_user_put_there_is_used_and_kept(offer_cifar10, tmp_path):
    archive = tar_of(cifar10_members(tmp_path))
    server = offer_cifar10(archive)
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    (data_dir / "cifar-10-python.tar.gz").write_bytes(archive)
    download("cifar10", data_dir)
    assert len(cifar10(data_dir).x) == 20
    assert server.requests == []
    assert (data_dir / "cifar-10-python.tar.gz").read_bytes() == archive


def test_nothing_but_the_sets_own_files_leaves_an_archive(offer_cifar10, tmp_path):
    evil = {
        "../escaped": b"",
        "/escaped": b"",
        "cifar-10-batches-py/../../escaped": b"",
        "cifar-10-batches-py/x": b"",
    }
    offer_cifar10(tar_of(evil | cifar10_members(tmp_path)))
    download("cifar10", tmp_path / "data")
    assert not list(tmp_path.rglob("*escaped*"))
    assert sorted(path.name for path in (tmp_path / "data" / "cifar-10-batches-py").iterdir()) == sorted(CIFAR10_FILES)


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret", "batches.meta"])
def test_an_archive_with_a_link_for_a_file_is_refused(offer_cifar10, tmp_path, target):
    members = cifar10_members(tmp_path)
    del members["cifar-10-batches-py/test_batch"]
    offer_cifar10(tar_of(members, {"cifar-10-batches-py/test_batch": target}))
    assert "cannot be unpacked" in refusal(download, "cifar10", tmp_path / "data")
    assert not (tmp_path / "data" / "cifar-10-batches-py").exists()


@pytest.mark.parametrize("damage", ["incomplete", "cut", "no archive"])
def test_an_archive_that_does_not_hold_the_set_leaves_nothing_behind(offer_cifar10, tmp_path, damage):
    members = cifar10_members(tmp_path)
    if damage == "incomplete":
        del members["cifar-10-batches-py/data_batch_5"]
    archive = b"not an archive" if damage == "no archive" else tar_of(members)
    offer_cifar10(archive[: len(archive) // 2] if damage == "cut" else archive)
    said = refusal(download, "cifar10", tmp_path / "data")
    assert "cifar-10-python.tar.gz cannot be unpacked" in said
    if damage == "incomplete":
        assert "data_batch_5" in said
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-10-python.tar.gz"]


# The real files.


@needs_real_files
@pytest.mark.parametrize(
    ("name", "train", "shape", "classes", "some_names"),
    [
        ("mnist", 60_000, (1, 28, 28), 10, ("0", "9")),
        ("fashion-mnist", 60_000, (1, 28, 28), 10, ("T-shirt/top", "Ankle boot")),
        ("cifar10", 50_000, (3, 32, 32), 10, ("airplane", "truck")),
        ("cifar100", 50_000, (3, 32, 32), 100, ("apple", "worm")),
    ],
)
def test_the_real_sets_have_their_published_counts_and_statistics(name, train, shape, classes, some_names):
    load_dataset(name, REAL, {})  # the first reading may wait for the disk
    started = time.process_time()
    data = load_dataset(name, REAL, {})
    seconds = time.process_time() - started
    assert (len(data.x), len(data.test_x), data.shape) == (train, 10_000, shape)
    assert (data.classes, data.class_names[0], data.class_names[-1]) == (classes, *some_names)
    if name != "mnist":  # the one set that is not balanced
        assert torch.bincount(data.y).tolist() == [train // classes] * classes
        assert torch.bincount(data.test_y).tolist() == [10_000 // classes] * classes
    else:
        assert torch.bincount(data.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    for channel, (mean, deviation) in enumerate(zip(data.mean, data.deviation, strict=True)):
        share = torch.bincount(data.x[:, channel].flatten(), minlength=256).double() / data.x[:, channel].numel()
        values = torch.arange(256, dtype=torch.float64) / 255
        true_mean = float(share @ values)
        assert mean / 255 == pytest.approx(true_mean, abs=6e-5)
        assert deviation / 255 == pytest.approx(float(share @ (values - true_mean) ** 2) ** 0.5, abs=6e-5)
    assert seconds < 5


@needs_real_files
def test_the_stated_sums_are_those_of_the_real_mnist_files():
    for item in SOURCES["mnist"].downloads:
        assert _digest((REAL / "MNIST" / "raw" / item.file).read_bytes()) == item.sha256


@needs_real_files
def test_the_real_coarse_classes_hold_five_fine_classes_each():
    fine, coarse = cifar100(REAL), cifar100(REAL, labels="coarse")
    pairs = {(int(a), int(b)) for a, b in zip(fine.y, coarse.y, strict=True)}
    assert len(pairs) == 100
    assert np.bincount([b for _, b in pairs]).tolist() == [5] * 20


@needs_real_files
def test_the_real_mnist_is_not_taken_for_fashion_mnist_nor_the_other_way_round():
    assert "holds the dataset 'mnist'" in refusal(fashion_mnist, REAL / "MNIST" / "raw")
    assert "holds the dataset 'fashion-mnist'" in refusal(mnist, REAL / "FashionMNIST" / "raw")
