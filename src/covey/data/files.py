"""Data sets in files: where they are searched, and how official ones are downloaded."""

import gzip
import hashlib
import shlex
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from covey.errors import Refusal, require

T = TypeVar("T")

Progress = Callable[[str, int, int | None], None]
"""`progress(file, bytes so far, bytes in all)`; the last is None if the server does not say."""

Fetch = Callable[[str, Path, Progress | None], None]
"""`fetch(url, part, progress)`: continue the file `part` from `url`; raises OSError or HTTPException on failure."""

_CHUNK = 1 << 18
_TIMEOUT = 60.0


@dataclass(frozen=True)
class Download:
    """One official file: its addresses, its SHA-256 sum, and the files of the data set that it contains."""

    urls: tuple[str, ...]
    sha256: str
    gives: tuple[str, ...]

    @property
    def file(self) -> str:
        return self.urls[0].rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """A data set's standard layout and its downloads."""

    folder: str
    """Folder under the user's data folder."""
    downloads: tuple[Download, ...]
    size: str
    """Size of the download, in words."""
    endings: tuple[str, ...] = ("",)
    """Endings that the files' names may have, the fastest to read first."""
    elsewhere: tuple[Path, ...] = ()
    """Folders outside the user's data folder that may hold the files."""
    note: str = ""
    """Another way to get the files."""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file for download in self.downloads for file in download.gives)

    def found(self, folder: Path) -> dict[str, Path]:
        """Return the files that are in `folder`, by their plain names."""
        pairs = ((file, folder / (file + ending)) for ending in reversed(self.endings) for file in self.files)
        return {file: path for file, path in pairs if path.is_file()}


def _idx(bases: tuple[str, ...], sums: Mapping[str, str]) -> tuple[Download, ...]:
    return tuple(
        Download(tuple(f"{base}/{file}.gz" for base in bases), sha256, (file,)) for file, sha256 in sums.items()
    )


def _cifar(archive: str, sha256: str, gives: tuple[str, ...]) -> tuple[Download, ...]:
    return (Download((f"https://www.cs.toronto.edu/~kriz/{archive}",), sha256, gives),)


SOURCES: dict[str, Source] = {
    "mnist": Source(
        "MNIST/raw",
        _idx(
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                "https://storage.googleapis.com/cvdf-datasets/mnist",
            ),
            {
                "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            },
        ),
        "12 MB",
        endings=("", ".gz"),
    ),
    "fashion-mnist": Source(
        "FashionMNIST/raw",
        _idx(
            (
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
                "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
            ),
            {
                "train-images-idx3-ubyte": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "train-labels-idx1-ubyte": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "t10k-images-idx3-ubyte": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "t10k-labels-idx1-ubyte": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            },
        ),
        "31 MB",
        endings=("", ".gz"),
        elsewhere=(Path("/usr/share/datasets/fashion-mnist"),),
        note="from Debian's package dataset-fashion-mnist",
    ),
    "cifar10": Source(
        "cifar-10-batches-py",
        _cifar(
            "cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"),
        ),
        "170 MB",
    ),
    "cifar100": Source(
        "cifar-100-python",
        _cifar(
            "cifar-100-python.tar.gz",
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ("train", "test", "meta"),
        ),
        "169 MB",
    ),
}


def locate(name: str, data_dir: Path | None) -> dict[str, Path]:
    """Return every file of the data set by its plain name, or refuse and say which folders were searched."""
    source = SOURCES[name]
    looked: list[str] = []
    for place in _places(source, data_dir):
        try:
            found = source.found(place)
        except OSError as error:
            looked.append(f"{place} (which cannot be read: {reason(error)})")
            continue
        missing = [file for file in source.files if file not in found]
        if not missing:
            return found
        looked.append(f"{place} (which lacks {', '.join(missing)})" if found else str(place))
    forms = " (each plain or as .gz)" if ".gz" in source.endings else ""
    where = f"looked for in {' and in '.join(looked)}" if looked else "but no data folder is given"
    folder = "DIR" if data_dir is None else shlex.quote(str(data_dir))
    ways = f"'covey download {name} --data-dir {folder}' ({source.size}){source.note and f' or {source.note}'}"
    give = ", and give DIR as --data-dir or COVEY_DATA" if data_dir is None else ""
    raise Refusal(
        f"The dataset '{name}' needs the files {', '.join(source.files)}{forms}, {where}; get them with {ways}{give}."
    )


def _places(source: Source, data_dir: Path | None) -> list[Path]:
    """Return the folders to search: the standard one, `data_dir` as an inner part of it, and those of the system."""
    places: list[Path] = []
    if data_dir is not None:
        outer, *inner = Path(source.folder).parts
        places.append(data_dir / source.folder)
        if data_dir.name == outer:
            places.append(data_dir.joinpath(*inner))
        places.append(data_dir)
    return list(dict.fromkeys((*places, *source.elsewhere)))


def unusable(path: Path, fault: str) -> Refusal:
    """Return the refusal of the file at `path`."""
    return Refusal(f"{path} cannot be used: {fault}; put the official file in its place.")


def choose(option: str, given: str, table: Mapping[str, T]) -> T:
    """Return the entry of `table` for an option's value, or refuse the value."""
    require(given in table, f"dataset.{option} must be one of {', '.join(table)}, not {given!r}.")
    return table[given]


def reason(error: BaseException) -> str:
    """Return the error's own words."""
    inner = error.reason if isinstance(error, URLError) and not isinstance(error, HTTPError) else error
    return str(inner) or type(error).__name__


def download(name: str, data_dir: Path, *, fetch: Fetch | None = None, progress: Progress | None = None) -> Path:
    """Download the official files of a data set into its folder under `data_dir`, and return that folder.

    Files that are there are kept. A download that was cut short is continued, and a file gets its final name only
    when its SHA-256 sum is the official one.
    """
    require(name in SOURCES, f"There is nothing to download for '{name}'. Downloads: {', '.join(sorted(SOURCES))}.")
    source = SOURCES[name]
    folder = data_dir / source.folder
    try:
        for item in source.downloads:
            if all(file in source.found(folder) for file in item.gives):
                continue
            if item.file.endswith(".tar.gz"):
                _obtain_archive(item, folder, fetch or fetch_file, progress)
            else:
                _obtain(item, folder, fetch or fetch_file, progress)
    except OSError as error:
        raise Refusal(f"The dataset '{name}' cannot be written to {folder}: {reason(error)}.") from error
    return folder


def fetch_file(url: str, part: Path, progress: Progress | None = None) -> None:
    """Continue `part` from `url`, by an HTTP range if the server supports it.

    If the server has no more bytes (status 416), `part` stays: it is complete, or another file, as its sum shows.
    """
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "covey"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        answer = urlopen(Request(url, headers=headers), timeout=_TIMEOUT)
    except HTTPError as error:
        if error.code == 416 and start:
            return
        raise
    with answer:
        continued = answer.status == 206
        arrived = start if continued else 0
        length = answer.headers.get("Content-Length", "")
        total = arrived + int(length) if length.isdecimal() else None
        with part.open("ab" if continued else "wb") as out:
            while chunk := answer.read(_CHUNK):
                out.write(chunk)
                arrived += len(chunk)
                if progress:
                    progress(part.name.removesuffix(".part"), arrived, total)
    if total is not None and arrived < total:
        raise ConnectionError(f"the connection ended after {arrived:,} of {total:,} bytes")


def _obtain(item: Download, folder: Path, fetch: Fetch, progress: Progress | None) -> Path:
    """Return the file `item` in `folder`, downloaded unless it is there, its SHA-256 sum checked."""
    folder.mkdir(parents=True, exist_ok=True)
    target, part = folder / item.file, folder / f"{item.file}.part"
    if target.is_file() and _sha256(target) == item.sha256:
        return target
    faults: list[str] = []
    for url in item.urls:
        continued = part.exists()
        try:
            fetch(url, part, progress)
            if continued and _sha256(part) != item.sha256:
                # The partial file was not the beginning of this one.
                part.unlink()
                fetch(url, part, progress)
            found = _sha256(part)
        except (OSError, HTTPException) as error:
            faults.append(f"{url} ({reason(error)})")
            continue
        if found == item.sha256:
            return part.replace(target)
        part.unlink()
        faults.append(f"{url} (the file sent has the SHA-256 sum {found}, the official one has {item.sha256})")
    kept = " What has arrived is kept, and the same command continues it." if part.exists() else ""
    raise Refusal(
        f"{item.file} could not be fetched from {', nor from '.join(faults)}.{kept} "
        f"Where there is no connection, put the official file into {folder} by hand."
    )


def _obtain_archive(item: Download, folder: Path, fetch: Fetch, progress: Progress | None) -> None:
    """Download an archive beside `folder` and extract the data set's files; an archive that was there stays."""
    kept = (folder.parent / item.file).is_file()
    archive = _obtain(item, folder.parent, fetch, progress)
    _unpack(archive, folder, item.gives)
    if not kept:
        archive.unlink()


def _unpack(archive: Path, folder: Path, files: tuple[str, ...]) -> None:
    """Extract `files` from the archive into `folder`, all or none, and nothing else."""
    require(hasattr(tarfile, "data_filter"), "Unpacking archives safely needs Python 3.11.4 or newer.")
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        unpacked = Path(scratch) / folder.name
        wanted = {f"{folder.name}/{file}" for file in files}
        try:
            with tarfile.open(archive, "r:gz") as tar:
                for member in tar:
                    if member.name in wanted:
                        tar.extract(member, scratch, filter="data")
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, KeyError) as error:
            raise Refusal(f"{archive} cannot be unpacked: {reason(error)}.") from error
        missing = [file for file in files if not (unpacked / file).is_file() or (unpacked / file).is_symlink()]
        require(not missing, f"{archive} cannot be unpacked: it holds no {', '.join(missing)} in {folder.name}.")
        folder.mkdir(exist_ok=True)
        for file in files:
            (unpacked / file).replace(folder / file)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, hashlib.sha256).hexdigest()
