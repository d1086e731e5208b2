"""Compiled steps kept on disk: a later process loads a step in place of tracing and compiling it again.

A step is kept if it is one graph that reads known tensors only: those of its arguments, and its constants. The file
holds that graph, compiled, and the place of each of its inputs among these tensors. There is nothing else to keep: a
GPU replays the operations on tensors, and nothing else that a step does.

Files lie in `~/.cache/covey/steps` (or `$XDG_CACHE_HOME/covey/steps`), for their owner alone, and are named by a digest
of all that a graph depends on (`step_key`). They hold code, so a file or folder that is somebody else's, or that others
may write to, is ignored, as is one that is damaged. Off, unless the variable COVEY_KEPT_STEPS is 1: it has been tried
on CPUs only.
"""

import contextlib
import hashlib
import os
import pickle
import stat
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule

from covey.runtime.stacked.autotune import cache_file
from covey.runtime.stacked.lane_step import Lanes, Step

SETTING = "COVEY_KEPT_STEPS"
"""Environment variable: with 1, compiled steps are kept and loaded."""

MOST_FILES = 64
"""Steps that are kept; the oldest make room."""

_MAGIC = b"covey step 1\n"

_SAVEABLE = {"bundled_autograd_cache": True, "force_autograd_cache": True, "bypass_autograd_cache_key": True}
"""Settings of PyTorch's compiler under which what it returns can be saved."""

Graph = Callable[..., Any]
"""A compiled graph, called with its inputs; it changes some of them in place."""


class Kept(NamedTuple):
    """What is known of a compiled graph from a file."""

    graph: Graph
    places: list[int]
    """Where each input is among the tensors of a step."""


class KeptStep:
    """A step that is loaded when it is first called if it was kept, and else compiled and kept."""

    def __init__(self, step: Step, constants: Sequence[Tensor], key: str) -> None:
        self._constants = list(constants)
        self._key = key
        self._plain = step
        self._whole: Step = torch.compile(step, dynamic=False, fullgraph=True, backend=self._compile)
        """Compiled as one graph, which is kept."""
        self._in_parts: Step | None = None
        """Compiled in as many graphs as it takes, once it turned out not to be one."""
        self._loaded: dict[str, Step | None] = {}
        """By the kinds of the step's tensors; None if there is no such file, or it did not work."""
        self._made: list[_NotedGraph] = []

    def __call__(self, lanes: Lanes, samples: Tensor, **row: Tensor) -> None:
        given = self._given(lanes, samples, row)
        kinds = f"{sorted(row)} {_kinds(given)}"
        if kinds not in self._loaded:
            kept = read_step(self._file(kinds))
            self._loaded[kinds] = None if kept is None else self._with_places(kept)
        loaded = self._loaded[kinds]
        if loaded is not None:
            try:
                return loaded(lanes, samples, **row)
            except torch.OutOfMemoryError:
                raise
            except Exception:
                # It may be of a driver that is no more; compiling says what is wrong, if anything still is.
                self._loaded[kinds] = None
        return self._compiled(lanes, samples, row, kinds)

    def _given(self, lanes: Lanes, samples: Tensor, row: dict[str, Tensor]) -> list[Tensor]:
        """Return all tensors that the step may read or change, in an order that is the same in every process."""
        return [*lanes.tensors(), samples, *(row[name] for name in sorted(row)), *self._constants]

    def _with_places(self, kept: Kept) -> Step:
        def run(lanes: Lanes, samples: Tensor, **row: Tensor) -> None:
            given = self._given(lanes, samples, row)
            kept.graph(*(given[place] for place in kept.places))

        return run

    def _file(self, kinds: str) -> Path:
        return step_file(f"{self._key} {kinds}")

    def _compile(self, module: GraphModule, inputs: Sequence[Any]) -> Graph:
        """Compile a graph so that it can be saved: the compiler that `torch.compile` is given."""
        inductor = import_module("torch._dynamo.backends.registry").lookup_backend("inductor")
        # Values that are part of a graph, and not among its inputs, may be other ones in another process.
        own = any(node.op == "get_attr" for node in module.graph.nodes)
        with import_module("torch._functorch.config").patch(_SAVEABLE):
            compiled = inductor(module, inputs)
        self._made.append(_NotedGraph(compiled, can_be_saved=not own and hasattr(compiled, "serialize")))
        return self._made[-1]

    def _compiled(self, lanes: Lanes, samples: Tensor, row: dict[str, Tensor], kinds: str) -> None:
        """Take a step, compiled; keep what was compiled for it."""
        if self._in_parts is None:
            try:
                self._whole(lanes, samples, **row)
            except torch.OutOfMemoryError:
                raise
            except Exception:
                self._in_parts = torch.compile(self._plain, dynamic=False)
        if self._in_parts is not None:
            self._in_parts(lanes, samples, **row)
        elif len(self._made) == 1:
            position = {id(tensor): place for place, tensor in enumerate(self._given(lanes, samples, row))}
            places = [position.get(one) for one in self._made[0].inputs]
            if self._made[0].can_be_saved and None not in places:
                write_step(self._file(kinds), self._made[0].graph, [place for place in places if place is not None])
        self._made.clear()


class _NotedGraph:
    """A compiled graph that notes which objects it was first called with."""

    def __init__(self, graph: Graph, *, can_be_saved: bool) -> None:
        self.graph = graph
        self.can_be_saved = can_be_saved
        self.inputs: list[int] = []

    def __call__(self, *inputs: Any) -> Any:
        self.inputs = self.inputs or [id(one) for one in inputs]
        return self.graph(*inputs)


def can_be_kept() -> bool:
    """True if steps are to be kept, and can be."""
    return os.environ.get(SETTING) == "1" and is_possible()


def is_possible() -> bool:
    """True if this PyTorch and this system have what keeping steps takes."""
    if not hasattr(os, "getuid"):
        return False
    try:
        settings = import_module("torch._functorch.config")
        import_module("torch._dynamo.backends.registry")
        return _bundles() is not None and all(hasattr(settings, name) for name in _SAVEABLE)
    except (ImportError, AttributeError):
        return False


def step_file(key: str) -> Path:
    """Return the file of the step with this key."""
    return cache_file("steps").with_suffix("") / f"{hashlib.sha256(key.encode()).hexdigest()}.step"


def read_step(file: Path) -> Kept | None:
    """Return a kept step; None if there is none, or none that can be trusted and works."""
    if not _is_ours(file.parent, stat.S_ISDIR):
        return None
    try:
        # The file that is looked at is the one that is read.
        with os.fdopen(os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode) or not _is_own(found):
                return None
            magic, digest, content = opened.read(len(_MAGIC)), opened.read(32), opened.read()
        if magic != _MAGIC or digest != hashlib.sha256(content).digest():
            return None
        places, graph = pickle.loads(content)
        return Kept(_bundles().deserialize_compile_artifacts(graph), places)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return None


def write_step(file: Path, graph: Graph, places: Sequence[int]) -> None:
    """Keep a compiled graph with the places of its inputs; one that cannot be saved or written is not kept."""
    with contextlib.suppress(Exception):
        bundles = _bundles()
        content = pickle.dumps((list(places), bundles.serialize_compile_artifacts(bundles(graph))))
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_ours(file.parent, stat.S_ISDIR):
            return
        beside = file.with_suffix(f".{os.getpid()}")
        beside.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                opened.write(_MAGIC + hashlib.sha256(content).digest() + content)
            beside.replace(file)
        finally:
            beside.unlink(missing_ok=True)
        _forget_oldest(file.parent)


def _forget_oldest(folder: Path) -> None:
    kept = sorted(folder.glob("*.step"), key=lambda file: file.stat().st_mtime)
    for file in kept[:-MOST_FILES]:
        file.unlink(missing_ok=True)


def _bundles() -> Any:
    """Return PyTorch's class of compiled graphs that can be saved."""
    return import_module("torch._dynamo.aot_compile_types").BundledAOTAutogradSerializableCallable


def _is_ours(path: Path, kind: Callable[[int], bool]) -> bool:
    """True if there is a file or folder of this kind, no link, that we own and nobody else may write to."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return kind(found.st_mode) and _is_own(found)


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _kinds(tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """Return all of tensors that compiled code depends on but their values, and which of them share memory."""
    first: dict[int, int] = {}
    found: list[tuple[Any, ...]] = []
    for place, tensor in enumerate(tensors):
        memory = tensor.untyped_storage().data_ptr() if tensor.numel() else -1 - place
        kind = str(tensor.dtype), str(tensor.device), tuple(tensor.shape), tensor.stride(), tensor.requires_grad
        found.append((*kind, first.setdefault(memory, place)))
    return found
