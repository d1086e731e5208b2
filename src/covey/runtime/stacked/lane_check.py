"""A check that the lanes of a stack agree: given the same model and batch, all must change by about the same amount.

A compiler or library that errs on a GPU (a missing barrier between threads, blocks that are never computed) often errs
in some lanes and not in others. This has happened twice: to the gradient of batch norm as PyTorch 2.11 compiles it, and
to two networks in processes that MPS had limited to a part of an H200's processors.
"""

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from covey.runtime.stacked.lane_step import Lanes

TRIALS = 3
"""Steps that are tried: races do not err every time."""

SIZE_RATIO = 10.0
"""Allowed ratio between the size of a parameter's change in one lane and in the others. Rounding alone can reverse a
gradient of a deep network with batch norm, but hardly changes its size: weights of MobileNetV2 that were off by 1 in
256 changed that of a few small parameters up to four times."""

NOISE = 3e-3
"""Changes below this share of the change of all parameters are ignored: they are rounding around zero."""

LOSS = 0.2
"""Allowed relative difference of a lane's loss from that of the others."""

STEP = 0.1
"""Allowed difference of two ways to take a step, as a share of the step: both round, each in another place."""

COMPARED = 16
"""Lanes in which two ways are compared."""

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""Environment variable: the percentage of a GPU's processors that MPS leaves to a process."""


class LaneMismatch(NamedTuple):
    """Lanes that disagree with the majority, and where."""

    lanes: list[int]
    """Lanes whose values differ from most, or are not finite where others are."""
    places: list[str]
    """Names of parameters and buffers, and "loss"."""


@torch.no_grad()
def check_lanes(
    lanes: Lanes, schedule: Mapping[str, Tensor], module: nn.Module, step: Callable[[], None]
) -> LaneMismatch:
    """Return the lanes that differ from the others after a step from the module's state, over several trials.

    `step` takes the first step of the `schedule`, in which all lanes are given the first lane's batch. Lanes and
    schedule are left as they were.
    """
    first = [values[0] for values in schedule.values()]
    touched = [*first, *lanes.tensors()]
    before = [value.clone() for value in touched]
    state = {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}
    found: dict[str, Tensor] = {}
    try:
        for value in first:
            value.copy_(value[:1].clone().expand_as(value))
        for _ in range(TRIALS):
            _reset(lanes, state)
            step()
            for place, differs in _differences(lanes, state).items():
                found[place] = found[place] | differs if place in found else differs
    finally:
        for value, was in zip(touched, before, strict=True):
            value.copy_(was)
    places = [place for place, differs in found.items() if bool(differs.any())]
    which = torch.stack(list(found.values())).any(dim=0)
    return LaneMismatch(torch.nonzero(which).flatten().tolist(), places)


@torch.no_grad()
def same_step(lanes: Lanes, module: nn.Module, one: Callable[[], None], other: Callable[[], None]) -> bool:
    """True if two ways to take a step change the parameters by about the same, from the module's state.

    The first lanes are compared. Lanes are left as they were.
    """
    touched = lanes.tensors()
    before = [value.clone() for value in touched]
    state = {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}
    moved: list[dict[str, Tensor]] = []
    try:
        for step in (one, other):
            _reset(lanes, state)
            step()
            values = lanes.parameters.items()
            moved.append({name: value[:COMPARED] - state[name].to(value) for name, value in values})
    finally:
        for value, was in zip(touched, before, strict=True):
            value.copy_(was)
    size = torch.stack([change.norm() for change in moved[0].values()]).norm()
    apart = torch.stack([(moved[1][name] - change).norm() for name, change in moved[0].items()]).norm()
    # What is not a number is not the same.
    return bool(apart <= STEP * size)


def _reset(lanes: Lanes, state: Mapping[str, Tensor]) -> None:
    """Give all lanes the same model, without momentum or moments."""
    for values in (lanes.parameters, lanes.working, lanes.received, lanes.buffers):
        for name, value in values.items():
            value.copy_(state[name].to(value.device).expand_as(value))
    for values in (lanes.velocity, lanes.first_moment, lanes.second_moment):
        for value in values.values():
            value.zero_()
    for value in (lanes.taken, lanes.settings, lanes.loss):
        value.zero_()
    if lanes.trainer is not None:
        names = [slot.name for slot in lanes.trainer.layout.parameters]
        lanes.trainer.reset(torch.cat([state[name].reshape(-1) for name in names]).to(lanes.loss.device))


def _differences(lanes: Lanes, begin: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Place → `[lanes]`: True where a lane differs from the others."""
    found: dict[str, Tensor] = {}
    for values in (lanes.parameters, lanes.buffers):
        if not values:
            continue
        changes = torch.stack([_norms(value - begin[name].to(value)) for name, value in values.items()])
        usual = _usual(changes)
        noise = NOISE * usual.norm()
        off = (changes > SIZE_RATIO * usual + noise) | (changes < usual / SIZE_RATIO - noise)
        found |= dict(zip(values, _unlike_others(changes, off), strict=True))
    for name, copy in lanes.working.items():
        if copy is not lanes.parameters[name]:
            # A copy must be exact; NaN is a copy of NaN.
            same = torch.isclose(copy, lanes.parameters[name].to(copy.dtype), rtol=0, atol=0, equal_nan=True)
            found[name] = found[name] | ~same.reshape(len(copy), -1).all(dim=1)
    usual = _usual(lanes.loss[None])
    off = (lanes.loss[None] - usual).abs() > LOSS * usual.abs() + NOISE
    found["loss"] = _unlike_others(lanes.loss[None], off)[0]
    return found


def _norms(values: Tensor) -> Tensor:
    """`[lanes, ...]` → `[lanes]`: Euclidean norm."""
    norms: Tensor = values.reshape(len(values), -1).norm(dim=1)
    return norms.double()


def _usual(values: Tensor) -> Tensor:
    """`[places, lanes]` → `[places, 1]`: median over lanes with a finite value; 0 if there are none."""
    finite = values.masked_fill(~torch.isfinite(values), torch.nan)
    middle: Tensor = finite.nanmedian(dim=1, keepdim=True).values
    return middle.nan_to_num(0.0)


def _unlike_others(values: Tensor, off: Tensor) -> Tensor:
    """True where a lane's value is finite and `off`, or not finite while another lane's is.

    If no lane's value is finite, the model or the learning rate is at fault, not the device.
    """
    finite = torch.isfinite(values)
    return torch.where(finite, off, finite.any(dim=1, keepdim=True))


def mismatch_message(mismatch: LaneMismatch, lanes: int, name: str) -> str:
    """Return the sentence for users about a stack whose lanes disagree."""
    share = os.environ.get(SHARE, "")
    likely = f" {SHARE} is {share}: unset it, as models have come out as NaN under it." if share else ""
    return (
        f"On this GPU {len(mismatch.lanes)} of {lanes} models of {name} differ from the others after the same step on "
        f"the same data (numbers {_some(mismatch.lanes)}; in {_some(mismatch.places)}), so results would be wrong: "
        f"PyTorch {torch.__version__}, the driver or the device errs.{likely} The runtime 'local' does without a GPU "
        "(--runtime local)."
    )


def _some(values: list[int] | list[str]) -> str:
    return ", ".join(map(str, values[:6])) + (", …" if len(values) > 6 else "")
