"""Whether the lanes of a stack agree: all are given the same to do, and must come to much the same.

A compiler or a library that errs on a GPU (threads that do not wait for each other, blocks that nobody computes) often
errs in some lanes and not in others. It has happened twice: to the gradient of batch norm as PyTorch 2.11 compiles it,
and to two networks in processes that MPS had limited to a part of an H200's processors.
"""

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from covey.runtime.stacked.sgd_step import Lanes

TRIALS = 3
"""Steps that are tried: threads that do not wait err now and then."""

TIMES = 10.0
"""How many times larger or smaller than in other lanes the change of a parameter may be. Rounding alone can turn a
gradient of a deep network with batch norm round, but does not change its size by much: weights of MobileNetV2 that were
off by 1 in 256 changed that of a few small parameters up to four times."""

NOISE = 3e-3
"""What does not count, as a share of the change of all parameters: what should be zero is rounding alone."""

LOSS = 0.2
"""How far a loss may be from that of other lanes, as a share of it."""

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""How much of a GPU's processors MPS leaves to a process, in percent."""


class Odd(NamedTuple):
    """What does not agree."""

    lanes: list[int]
    """Those that come to something else than most, or to nothing finite where others do."""
    places: list[str]
    """Where: names of parameters and buffers, and the loss."""


@torch.no_grad()
def odd_lanes(lanes: Lanes, schedule: Mapping[str, Tensor], module: nn.Module, step: Callable[[], None]) -> Odd:
    """Lanes that differ from the others after a step from the module's state, tried some times.

    `step` takes the first step of the `schedule`, in which all lanes get what the first has to do. Nothing has changed
    afterwards.
    """
    first = [values[0] for values in schedule.values()]
    named = [lanes.parameters, lanes.working, lanes.velocity, lanes.received, lanes.buffers]
    held = [*first, *(value for values in named for value in values.values()), lanes.settings, lanes.loss]
    # Where there is no working copy, it is the parameters themselves.
    touched = list({id(value): value for value in held}.values())
    before = [value.clone() for value in touched]
    state = {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}
    found: dict[str, Tensor] = {}
    try:
        for value in first:
            value.copy_(value[:1].clone().expand_as(value))
        for _ in range(TRIALS):
            _begin(lanes, state)
            step()
            for place, odd in _odd(lanes, state).items():
                found[place] = found[place] | odd if place in found else odd
    finally:
        for value, was in zip(touched, before, strict=True):
            value.copy_(was)
    places = [place for place, odd in found.items() if bool(odd.any())]
    which = torch.stack(list(found.values())).any(dim=0)
    return Odd(torch.nonzero(which).flatten().tolist(), places)


def _begin(lanes: Lanes, state: Mapping[str, Tensor]) -> None:
    """All lanes at the same model, without momentum."""
    for values in (lanes.parameters, lanes.working, lanes.received, lanes.buffers):
        for name, value in values.items():
            value.copy_(state[name].to(value.device).expand_as(value))
    for value in (*lanes.velocity.values(), lanes.settings, lanes.loss):
        value.zero_()


def _odd(lanes: Lanes, begin: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Place → `[lanes]`, whether a lane is odd there."""
    found: dict[str, Tensor] = {}
    for values in (lanes.parameters, lanes.buffers):
        if not values:
            continue
        changes = torch.stack([_norms(value - begin[name].to(value)) for name, value in values.items()])
        usual = _usual(changes)
        noise = NOISE * usual.norm()
        off = (changes > TIMES * usual + noise) | (changes < usual / TIMES - noise)
        found |= dict(zip(values, _unlike_others(changes, off), strict=True))
    for name, copy in lanes.working.items():
        if copy is not lanes.parameters[name]:
            # A copy is a copy: this is exact, and NaN is a copy of NaN.
            same = torch.isclose(copy, lanes.parameters[name].to(copy.dtype), rtol=0, atol=0, equal_nan=True)
            found[name] = found[name] | ~same.reshape(len(copy), -1).all(dim=1)
    usual = _usual(lanes.loss[None])
    off = (lanes.loss[None] - usual).abs() > LOSS * usual.abs() + NOISE
    found["loss"] = _unlike_others(lanes.loss[None], off)[0]
    return found


def _norms(values: Tensor) -> Tensor:
    """`[lanes, ...]` → `[lanes]`."""
    norms: Tensor = values.reshape(len(values), -1).norm(dim=1)
    return norms.double()


def _usual(values: Tensor) -> Tensor:
    """`[places, lanes]` → `[places, 1]`: the median over lanes with something finite, 0 where there are none."""
    finite = values.masked_fill(~torch.isfinite(values), torch.nan)
    middle: Tensor = finite.nanmedian(dim=1, keepdim=True).values
    return middle.nan_to_num(0.0)


def _unlike_others(values: Tensor, off: Tensor) -> Tensor:
    """Where a lane's value is finite and `off`, or not finite where another's is.

    If no lane's is, the model has no finite step here, or the rate is absurd, which is not for this to judge.
    """
    finite = torch.isfinite(values)
    return torch.where(finite, off, finite.any(dim=1, keepdim=True))


def verdict(odd: Odd, lanes: int, name: str) -> str:
    """What to say of a stack whose lanes do not agree."""
    share = os.environ.get(SHARE, "")
    likely = f" {SHARE} is {share}: unset it, as models have come out as NaN under it." if share else ""
    return (
        f"On this GPU {len(odd.lanes)} of {lanes} models of {name} come to something else with the same data (numbers "
        f"{_some(odd.lanes)}; in {_some(odd.places)}), so results would be wrong: PyTorch {torch.__version__}, the "
        f"driver or the device errs.{likely} The runtime 'local' does without a GPU (--runtime local)."
    )


def _some(values: list[int] | list[str]) -> str:
    return ", ".join(map(str, values[:6])) + (", …" if len(values) > 6 else "")
