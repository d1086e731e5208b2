"""The Triton kernel of `linear_update`: gradient, update and working copy of a tile of a weight at once."""

from dataclasses import dataclass
from typing import no_type_check

import torch
from torch import Tensor

from covey.runtime.stacked.triton_support import on_device, power, tl, triton

LEAST = 16
"""Sides of a tile that tensor cores take at least."""

MOST_SAMPLES = 64
"""Samples that are added up at once."""


@dataclass(frozen=True)
class UpdateTuning:
    """How the work is cut up."""

    outputs: int = 32
    inputs: int = 128
    """Rows and columns of a tile."""
    warps: int = 4
    products: bool = True
    """True to multiply tiles on tensor cores; False to add up samples one after another in float32."""


TUNED = {"update": UpdateTuning()}
"""What is used; the benchmark tries others."""


@dataclass(frozen=True)
class UpdatePlan:
    """Sizes of a layer and of its tiles."""

    outputs: int
    inputs: int
    tile_outputs: int
    tile_inputs: int
    tile_samples: int
    input_tiles: int
    even: bool
    """True if tiles cover the weight exactly."""
    products: bool
    decays: bool
    precision: str
    """Products of float32: "tf32", or "ieee" for full precision."""

    @classmethod
    def of(cls, gradient: Tensor, x: Tensor, decays: bool) -> "UpdatePlan":
        """Plan for gradients `[lanes, b, o]` and inputs `[lanes, b, i]`."""
        batch, outputs, inputs, tuning = x.shape[1], gradient.shape[2], x.shape[2], TUNED["update"]
        rows, columns = (
            max(min(power(size), most), LEAST) for size, most in ((outputs, tuning.outputs), (inputs, tuning.inputs))
        )
        in_full = x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
        return cls(
            outputs=outputs,
            inputs=inputs,
            tile_outputs=rows,
            tile_inputs=columns,
            tile_samples=max(min(power(batch), MOST_SAMPLES), LEAST),
            input_tiles=-(-inputs // columns),
            even=outputs % rows == 0 and inputs % columns == 0,
            products=tuning.products,
            decays=decays,
            precision="ieee" if in_full else "tf32",
        )


if triton is not None:

    @triton.jit
    @no_type_check
    def _gradient_tile(gradients, inputs, row, column, batch, plan: tl.constexpr):
        """Return ∂yᵀx of a tile, `[rows, columns]`, in float32."""
        total = tl.full((plan.tile_outputs, plan.tile_inputs), 0.0, tl.float32)
        if plan.products:
            for first in range(0, batch, plan.tile_samples):
                sample = first + tl.arange(0, plan.tile_samples)
                known = sample < batch
                upper = known[None, :] & (row < plan.outputs)[:, None]
                lower = known[:, None] & (column < plan.inputs)[None, :]
                above = tl.load(gradients + (sample[None, :] * plan.outputs + row[:, None]), upper, 0.0)
                below = tl.load(inputs + (sample[:, None] * plan.inputs + column[None, :]), lower, 0.0)
                total = tl.dot(above, below, total, input_precision=plan.precision)
        else:
            for sample in range(batch):
                above = tl.load(gradients + (sample * plan.outputs + row), row < plan.outputs, 0.0)
                below = tl.load(inputs + (sample * plan.inputs + column), column < plan.inputs, 0.0)
                total += above.to(tl.float32)[:, None] * below.to(tl.float32)[None, :]
        return total

    @triton.jit(do_not_specialize=["batch"])
    @no_type_check
    def _update_kernel(
        gradients, inputs, rates, settings, received, weights, working, velocities, batch, plan: tl.constexpr
    ):
        """Move a tile of one lane's weight. Grid: (tiles, lanes)."""
        lane = tl.program_id(1).to(tl.int64)
        rate = tl.load(rates + lane)
        # Without a velocity, a step of rate 0 changes nothing.
        if (rate == 0) & (velocities is None):
            return
        row = tl.program_id(0) // plan.input_tiles * plan.tile_outputs + tl.arange(0, plan.tile_outputs)
        column = tl.program_id(0) % plan.input_tiles * plan.tile_inputs + tl.arange(0, plan.tile_inputs)
        place = row[:, None] * plan.inputs + column[None, :]
        known = None if plan.even else (row < plan.outputs)[:, None] & (column < plan.inputs)[None, :]
        first = lane * (plan.outputs * plan.inputs)
        # Loaded before it is needed.
        weight = tl.load(weights + first + place, known)
        if velocities is not None:
            velocity = tl.load(velocities + first + place, known)
        gradients += lane * (batch * plan.outputs)
        inputs += lane * (batch * plan.inputs)
        step = _gradient_tile(gradients, inputs, row, column, batch, plan)
        if plan.decays:
            step += tl.load(settings + lane * 4 + 1) * weight
        if received is not None:
            step += tl.load(settings + lane * 4 + 2) * (weight - tl.load(received + first + place, known))
        if velocities is not None:
            step = tl.load(settings + lane * 4) * velocity + step
            tl.store(velocities + first + place, step, known)
        weight -= rate * step
        tl.store(weights + first + place, weight, known)
        if working is not None:
            # Four by four, as the weight: wider pieces would be laid out over threads otherwise, and exchanged first.
            place = row[:, None] * plan.inputs + (column // 4 * 4)[None, :] + (column % 4)[None, :]
            tl.store(working + first + place, weight.to(working.dtype.element_ty), known)


def fits(x: Tensor, weight: Tensor) -> bool:
    """True if the kernel takes inputs `[lanes, b, i]` and weights `[lanes, o, i]`: offsets in a lane have 32 bits."""
    largest = max(weight.shape[1] * weight.shape[2], x.shape[1] * max(weight.shape[1:]))
    return weight.is_contiguous() and largest < 1 << 31 and x.shape[0] < 1 << 16


def update_by_triton(
    gradient: Tensor,
    x: Tensor,
    rate: Tensor,
    settings: Tensor,
    received: Tensor | None,
    weight: Tensor,
    working: Tensor | None,
    velocity: Tensor | None,
    decays: bool,
) -> None:
    """Change weights, working copies and velocities in place, as `linear_update` says."""
    plan = UpdatePlan.of(gradient, x, decays)
    tiles = -(-plan.outputs // plan.tile_outputs) * plan.input_tiles
    with on_device(x):
        _update_kernel[(tiles, len(x))](
            gradient.to(x.dtype).contiguous(),
            x.contiguous(),
            rate.contiguous(),
            settings.contiguous(),
            received,
            weight,
            working,
            velocity,
            x.shape[1],
            plan=plan,
            num_warps=TUNED["update"].warps,
            num_stages=1 if x.shape[1] <= plan.tile_samples else 3,
        )
