"""One step of local SGD for every lane of a stack at once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from covey.client.learner import crop_and_flip
from covey.model.dropout import dropout_layers
from covey.model.layout import Layout
from covey.runtime.stacked.batch_norm import masking

Named = dict[str, Tensor]


@dataclass(frozen=True)
class Terms:
    """Which terms the step has; those it has not cost nothing."""

    momentum: bool
    weight_decay: bool
    proximal: bool
    crop: int
    flip: bool


@dataclass(eq=False)
class Lanes:
    """Everything that a step changes or reads per lane; first dimension: lanes."""

    parameters: Named
    working: Named
    """The parameters in the arithmetic of the forward pass (bf16): a copy, or the parameters themselves."""
    velocity: Named
    received: Named
    buffers: Named
    settings: Tensor
    """`[lanes, 3]`: momentum, weight decay, proximal term."""
    loss: Tensor
    """`[lanes]`, float64: summed over the samples of the present segment."""

    @classmethod
    def of(
        cls,
        layout: Layout,
        count: int,
        terms: Terms,
        dtype: torch.dtype,
        compute: torch.dtype,
        device: torch.device,
    ) -> "Lanes":
        def zeros(wanted: bool) -> Named:
            return {
                slot.name: torch.zeros(count, *slot.shape, dtype=dtype, device=device)
                for slot in layout.parameters
                if wanted
            }

        buffers = {slot.name: torch.zeros(count, *slot.shape, dtype=dtype, device=device) for slot in layout.buffers}
        parameters = zeros(True)
        return cls(
            parameters=parameters,
            working={name: value.to(compute) for name, value in parameters.items()},
            velocity=zeros(terms.momentum),
            received=zeros(terms.proximal),
            buffers=buffers,
            settings=torch.zeros(count, 3, dtype=dtype, device=device),
            loss=torch.zeros(count, dtype=torch.float64, device=device),
        )


def make_step(
    module: nn.Module,
    terms: Terms,
    scale: Tensor,
    shift: Tensor,
    dtype: torch.dtype,
    compute: torch.dtype,
) -> Callable[..., None]:
    """`step(lanes, gallery, **what the schedule says for one step)`, changing `lanes` in place.

    g = ∇loss + weight_decay·w + proximal·(w - w⁰);  v ← momentum·v + g;  w ← w - rate·v, lane by lane. The
    gradient of a lane is that of its own batch only: padding has weight 0, and an idle lane has rate 0.
    """
    drops = [f"{name}.key" for name in dropout_layers(module)]

    def loss_of(
        parameters: Named, buffers: Named, x: Tensor, y: Tensor, weight: Tensor, key: Tensor
    ) -> tuple[Tensor, Named]:
        """One lane: weighted mean loss of its batch, and its batch-norm statistics afterwards."""
        fresh = {name: buffer.clone() for name, buffer in buffers.items()}
        with masking(module, weight):
            logits = functional_call(module, (parameters, fresh, dict.fromkeys(drops, key)), (x,))
        losses = F.cross_entropy(logits.to(dtype), y, reduction="none")
        return (losses * weight).sum(), fresh

    differentiate = vmap(grad_and_value(loss_of, has_aux=True), randomness="error")

    def step(
        lanes: Lanes,
        gallery: Tensor,
        sample: Tensor,
        label: Tensor,
        weight: Tensor,
        count: Tensor,
        rate: Tensor,
        key: Tensor,
        crops: Tensor | None = None,
        flips: Tensor | None = None,
    ) -> None:
        x = gallery[sample]
        if crops is not None and flips is not None:
            flat = crop_and_flip(x.flatten(0, 1), terms.crop, crops.flatten(0, 1), flips.flatten(0, 1))
            x = flat.view(*sample.shape, *flat.shape[1:])
        if x.dtype == torch.uint8 or x.is_floating_point():
            x = torch.addcmul(shift, x.to(dtype), scale).to(compute)
        gradients, (loss, statistics) = differentiate(lanes.working, lanes.buffers, x, label, weight, key)
        momentum, weight_decay, proximal = lanes.settings.unbind(dim=1)
        for name, parameter in lanes.parameters.items():
            gradient = gradients[name].to(dtype)
            if terms.weight_decay:
                gradient = gradient + _broad(weight_decay, parameter) * parameter
            if terms.proximal:
                gradient = gradient + _broad(proximal, parameter) * (parameter - lanes.received[name])
            if terms.momentum:
                gradient = _broad(momentum, parameter) * lanes.velocity[name] + gradient
                lanes.velocity[name].copy_(gradient)
            parameter.sub_(_broad(rate, parameter) * gradient)
            if compute != dtype:
                lanes.working[name].copy_(parameter)
        working = rate > 0
        for name, buffer in lanes.buffers.items():
            buffer.copy_(torch.where(_broad(working, buffer), statistics[name].to(dtype), buffer))
        lanes.loss.add_(loss.double() * count)

    return step


def _broad(values: Tensor, like: Tensor) -> Tensor:
    """`[lanes]` shaped to go with `[lanes, ...]`."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))
