"""Which linear layers a GPU may move by one operator, and a check of its kernel there, on made-up numbers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from covey.runtime.stacked.lane_step import COMPUTE_DTYPES, StepTerms
from covey.runtime.stacked.linear_update import update_plainly, update_weights
from covey.runtime.stacked.pooled_check import TOLERANCES
from covey.runtime.stacked.split_linear import splittable, wanted

if TYPE_CHECKING:
    from covey.runtime.stacked.engine import Engine

_LANES, _SAMPLES = 3, 4


def movable_layers(engine: "Engine", terms: StepTerms) -> list[str]:
    """Return the linear layers whose weights may be moved by one operator.

    None in float32, which serves comparisons, nor with another optimizer than SGD, nor that of a traced parameter.
    """
    if not (wanted() and engine.has_kernels and engine.precision in ("tf32", "bf16") and terms.plain_sgd):
        return []
    x = engine.learner.inputs(engine.data.x[:_SAMPLES])
    return [name for name in splittable(engine.module, x) if f"{name}.weight" != terms.traced]


def updates_agree(engine: "Engine", names: Sequence[str], terms: StepTerms, batch: int) -> bool:
    """True if the steps of these layers' weights are right on this device, for batches of this size.

    With the batch and the terms of the steps that follow, these use the kernels that are compiled for the check.
    """
    layers = [engine.module.get_submodule(name) for name in names]
    given = batch, COMPUTE_DTYPES[engine.precision], engine.device, terms
    try:
        errors = (worst_update_error(layer, *given) for layer in layers if isinstance(layer, nn.Linear))
        return all(error <= TOLERANCES[torch.float32] for error in errors)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        # A kernel that does not compile for this device is not right for it.
        return False


def worst_update_error(
    layer: nn.Linear, batch: int, dtype: torch.dtype, device: torch.device, terms: StepTerms
) -> float:
    """Return the largest error of weights and velocities against float64, relative to the largest value.

    One of three lanes is idle, and half of another's batch is empty. Copies in `dtype`, that of the forward pass, must
    be exact.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    shape = _LANES, *layer.weight.shape
    by_output, x = drawn(_LANES, batch, shape[1]).to(dtype), drawn(_LANES, batch, shape[2]).to(dtype)
    by_output[1, batch // 2 :] = 0.0
    rate = torch.tensor([1.0, 0.5, 0.0], device=device)
    settings = torch.tensor([[0.9, 0.3, 0.7, 0.0]], device=device).repeat(_LANES, 1)
    weight, velocity, received = drawn(*shape), drawn(*shape), drawn(*shape)
    working = None if dtype == weight.dtype else weight.to(dtype)
    exact, exact_velocity = weight.double(), velocity.double()
    update_plainly(
        by_output.double(),
        x.double(),
        rate.double(),
        settings.double(),
        received.double() if terms.proximal else None,
        exact,
        None,
        exact_velocity if terms.momentum else None,
        terms.weight_decay,
    )
    held = received if terms.proximal else None, weight, working, velocity if terms.momentum else None
    update_weights(by_output, x, rate, settings, *held, decays=terms.weight_decay)
    if working is not None and not torch.equal(working, weight.to(dtype)):
        return float("inf")
    pairs = (weight, exact), (velocity, exact_velocity)
    errors = torch.stack([(one.double() - other).abs().max() / other.abs().max() for one, other in pairs])
    # What is not a number is wrong.
    return float(errors.nan_to_num(torch.inf).max())
