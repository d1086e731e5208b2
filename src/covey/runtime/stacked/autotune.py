"""Autotuning: candidates are timed on the device at hand, and the fastest is cached for later runs.

The cache is one JSON file per kind of decision in `~/.cache/covey` (or `$XDG_CACHE_HOME/covey`): `ways.json` for
convolution algorithms, `fused.json` for those where fused layers were tried too, `tiles.json` where kernels for many
channels were, `updates.json` for linear layers moved by an operator of their own, `lanes.json` for numbers of lanes.
Keys name the GPU, PyTorch's version, the model, the batch, the precision and the number of lanes.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from covey.errors import Refusal

TIMED_STEPS = 10
"""Steps over which a candidate is timed."""

FEW_LANES = 64
"""Stacks of at most this many lanes are not split; for larger ones it is timed whether parts are faster."""

Signature = Callable[[int], str]
"""The cache key for a number of lanes."""


class Replayable(Protocol):
    """A recorded CUDA graph."""

    def replay(self) -> None: ...


Candidate = TypeVar("Candidate")
Recorded = TypeVar("Recorded", bound=Replayable)


def fastest_graph(
    candidates: Sequence[Candidate],
    record: Callable[[Candidate], Recorded],
    wins: Callable[[Candidate], bool] = lambda candidate: False,
) -> tuple[Candidate, Recorded]:
    """Record and time every candidate; return the fastest with its recording.

    A candidate that does not compile, or that `record` refuses, is skipped; running out of memory is not caught. After
    the first that works, no more are tried if it is known that it `wins`.
    """
    best: tuple[float, Candidate, Recorded] | None = None
    failed: Exception | None = None
    for candidate in candidates:
        try:
            recorded = record(candidate)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            failed = error
            continue
        if best is None and wins(candidate):
            return candidate, recorded
        seconds = replay_seconds(recorded, TIMED_STEPS)
        if best is None or seconds < best[0]:
            best = seconds, candidate, recorded
    if isinstance(failed, Refusal) and best is None:
        raise failed
    if best is None:
        raise RuntimeError("No way to compute this model's convolutions works on this device.") from failed
    return best[1:]


def fastest_lanes(most: int, signature: Signature, seconds: Callable[[int], float]) -> int:
    """Return the fastest of `most` lanes, a half, a quarter, …: halved for as long as the whole launch gets faster.

    `seconds` times a launch with a number of lanes.
    """
    known = nearest(read_cache("lanes"), signature, most)
    if known is not None:
        number, lanes = known
        parts = max(1, round(number / int(lanes)))
        return -(-most // parts)
    lanes, best = most, seconds(most)
    while lanes > FEW_LANES:
        fewer = -(-lanes // 2)
        taken = seconds(fewer)
        if taken > 0.97 * best:
            break
        lanes, best = fewer, taken
    write_cache("lanes", {**read_cache("lanes"), signature(most): lanes})
    return lanes


def replay_seconds(graph: Replayable, repeats: int) -> float:
    """Return the mean seconds of one replay, after one that is not timed."""
    graph.replay()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats


def cache_file(kind: str) -> Path:
    """Return the cache file of one kind of decision."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "covey" / f"{kind}.json"


def read_cache(kind: str) -> dict[str, Any]:
    """Return the decisions of earlier runs on this machine; none if the file cannot be read."""
    try:
        known = json.loads(cache_file(kind).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def write_cache(kind: str, known: Mapping[str, Any]) -> None:
    """Keep decisions for later runs; a cache that cannot be written is skipped."""
    file = cache_file(kind)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(known, indent=1), encoding="utf-8")
        beside.replace(file)


def nearest(known: Mapping[str, Any], signature: Signature, count: int) -> tuple[int, Any] | None:
    """Return the decision for `count` lanes, or for the nearest number from half to twice as many, with that number."""
    near = sorted(range(-(-count // 2), 2 * count + 1), key=lambda other: (abs(other - count), other))
    return next(((other, known[key]) for other in near if (key := signature(other)) in known), None)
