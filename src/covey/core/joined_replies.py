"""Replies to an order that was executed in parts, such as a survey of a million clients."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from covey.core.messages import Fault
from covey.core.replies import Replies, Timing, Traffic

Fields = dict[str, Tensor]


def joined_replies(parts: Sequence[Replies]) -> Replies:
    """Join replies of different clients, none of which keeps its model, in the order of the parts."""
    measured: dict[str, Fields] = {}
    faults = [fault for part in parts for fault in part.faults]
    for probe in dict.fromkeys(name for part in parts for name in part.probes):
        measured[probe], more = _joined_probe(probe, parts)
        faults += more
    probe_bytes: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for part in parts:
        probe_bytes.update(part.probe_bytes)
        seconds.update(part.probe_seconds)
    kept = {
        probe: {client: fields for part in parts for client, fields in part.kept.get(probe, {}).items()}
        for probe in dict.fromkeys(name for part in parts for name in part.kept)
    }
    return replace(
        parts[0],
        clients=np.concatenate([part.clients for part in parts]),
        states=torch.cat([part.states for part in parts]),
        samples=torch.cat([part.samples for part in parts]),
        losses=torch.cat([part.losses for part in parts]),
        probes=measured,
        faults=tuple(faults),
        traffic=Traffic(sum(part.bytes_up for part in parts), dict(probe_bytes)),
        timing=Timing(probe_seconds=dict(seconds)),
        kept=kept,
    )


def _joined_probe(probe: str, parts: Sequence[Replies]) -> tuple[Fields, list[Fault]]:
    """Join a probe's fields; a part that lacks them, or has others than most clients, has rows of NaN and faults."""
    shapes = [_shapes(part.probes.get(probe, {})) for part in parts]
    found: Counter[tuple[tuple[str, tuple[int, ...]], ...]] = Counter()
    for part, shape in zip(parts, shapes, strict=True):
        found[shape] += len(part) if shape else 0
    right = found.most_common(1)[0][0]
    example = next(part for part, shape in zip(parts, shapes, strict=True) if shape == right).probes[probe]
    faults: list[Fault] = []
    rows: dict[str, list[Tensor]] = {name: [] for name in example}
    for part, shape in zip(parts, shapes, strict=True):
        if shape != right:
            known = {fault.client for fault in part.faults if fault.measurement == probe}
            what = f"its {probe} has another shape than the other clients'" if shape else f"its {probe} is missing"
            faults += [Fault(client, what, probe) for client in part.clients.tolist() if client not in known]
        for name, values in example.items():
            rows[name].append(part.probes[probe][name] if shape == right else _blank(values, len(part)))
    return {name: torch.cat(values) for name, values in rows.items()}, faults


def _shapes(fields: Mapping[str, Tensor]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted((name, tuple(values.shape[1:])) for name, values in fields.items()))


def _blank(values: Tensor, rows: int) -> Tensor:
    fill = float("nan") if values.is_floating_point() else 0
    return torch.full((rows, *values.shape[1:]), fill, dtype=values.dtype)
