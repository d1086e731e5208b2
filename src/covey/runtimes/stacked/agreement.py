"""Whether the lanes of a stack agree: all are given the same to do, and must come to the same.

A compiler or a library that errs on a GPU (threads that do not wait for each other, blocks that nobody computes) errs
in some lanes and not in others. Both has happened: the gradient of batch norm as PyTorch 2.11 compiles it, and batched
products of a process that MPS had limited to a part of an H200's processors.
"""

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from covey.runtimes.stacked.step import Lanes

FAR = 0.2
"""How far the change of a parameter may be from that in the first lane, as a share of it; rounding is far below."""

NOISE = 1e-3
"""And as a share of the change of the whole model: what should be zero is rounding alone, and differs by all of it."""

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""How much of a GPU's processors MPS leaves to a process, in percent."""


class Odd(NamedTuple):
    """What does not agree."""

    lanes: list[int]
    """Those that come to something else than the first one, or to nothing finite."""
    places: list[str]
    """Where: names of parameters and buffers, and the loss."""


@torch.no_grad()
def odd_lanes(lanes: Lanes, schedule: Mapping[str, Tensor], module: nn.Module, step: Callable[[], None]) -> Odd:
    """Lanes that differ from the first one after a step from the module's state.

    `step` takes the first step of the `schedule`, in which all lanes get what the first has to do. Nothing has changed
    afterwards.
    """
    first = [values[0] for values in schedule.values()]
    named = [lanes.parameters, lanes.working, lanes.velocity, lanes.received, lanes.buffers]
    touched = [*first, *(value for values in named for value in values.values()), lanes.settings, lanes.loss]
    before = [value.clone() for value in touched]
    try:
        for value in first:
            value.copy_(value[:1].clone().expand_as(value))
        state = dict([*module.named_parameters(), *module.named_buffers()])
        for values in (lanes.parameters, lanes.working, lanes.received, lanes.buffers):
            for name, value in values.items():
                value.copy_(state[name].detach().to(value.device).expand_as(value))
        for value in (*lanes.velocity.values(), lanes.settings, lanes.loss):
            value.zero_()
        step()
        return _odd(lanes, state)
    finally:
        for value, was in zip(touched, before, strict=True):
            value.copy_(was)


def _odd(lanes: Lanes, begin: Mapping[str, Tensor]) -> Odd:
    places = {**lanes.parameters, **lanes.buffers}
    sizes = torch.stack([value.flatten(1).norm(dim=1) for value in places.values()])
    if not torch.isfinite(sizes).all(dim=0).any():
        # The model itself has no finite gradient here, or the rate is absurd, which is not for this to judge.
        return Odd([], [])
    each = torch.stack([(value[0] - begin[name].detach().to(value)).double().norm() for name, value in places.items()])
    apart = torch.stack([(value - value[:1]).flatten(1).norm(dim=1).double() for value in places.values()])
    far = ~(apart <= FAR * each[:, None] + NOISE * each.norm())
    far = torch.cat([far, ~torch.isfinite(lanes.loss)[None]])
    where = torch.nonzero(far.any(dim=1)).flatten().tolist()
    return Odd(torch.nonzero(far.any(dim=0)).flatten().tolist(), [[*places, "loss"][at] for at in where])


def verdict(odd: Odd, lanes: int, name: str) -> str:
    """What to say of a stack whose lanes do not agree."""
    share = os.environ.get(SHARE, "")
    likely = f" {SHARE} is {share}: unset it, as some batched products are wrong under it." if share else ""
    return (
        f"On this GPU {len(odd.lanes)} of {lanes} models of {name} come to something else with the same data (numbers "
        f"{_some(odd.lanes)}; in {_some(odd.places)}), so results would be wrong: PyTorch {torch.__version__}, the "
        f"driver or the device errs.{likely} The local runtime does without a GPU: --runtime local."
    )


def _some(values: list[int] | list[str]) -> str:
    return ", ".join(map(str, values[:6])) + (", …" if len(values) > 6 else "")
