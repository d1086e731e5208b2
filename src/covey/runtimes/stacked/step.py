"""One step of local SGD for every lane of a stack at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from covey.client import crop_and_flip
from covey.layout import Layout
from covey.models.dropout import dropout_layers

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


class masking:  # noqa: N801 (reads as a verb)
    """Within, layers that average over the batch know the weights of its samples."""

    def __init__(self, module: nn.Module, weight: Tensor) -> None:
        self.layers: Sequence[MaskedBatchNorm] = [
            layer for layer in module.modules() if isinstance(layer, MaskedBatchNorm)
        ]
        self.weight = weight

    def __enter__(self) -> None:
        for layer in self.layers:
            layer.sample_weight = self.weight

    def __exit__(self, *details: object) -> None:
        for layer in self.layers:
            layer.sample_weight = None


class MaskedBatchNorm(nn.Module):
    """Batch norm whose statistics are those of the samples with a weight; padding has none."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.momentum = norm.momentum
        self.weight, self.bias = norm.weight, norm.bias
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)
        self.sample_weight: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        rest = [0, *range(2, x.dim())]
        shape = (1, -1, *(1,) * (x.dim() - 2))
        wide = x.to(self.running_mean.dtype)
        assert self.sample_weight is not None
        places = x[0, 0].numel() if x.dim() > 2 else 1
        weight = self.sample_weight.view(-1, *(1,) * (x.dim() - 1)).to(wide.dtype)
        mean = (wide * weight).sum(rest) / places
        variance = ((wide - mean.view(shape)) ** 2 * weight).sum(rest) / places
        # Torch's running variance is the unbiased one: n/(n-1), n values of the channel; weights are 1/b each.
        values = places / self.sample_weight.amax().clamp_min(1e-12).to(wide.dtype)
        unbiased = variance * values / (values - 1).clamp_min(1)
        # One value has no variance; such a batch is normalised by what was seen before.
        single = values < 1.5
        mean = torch.where(single, self.running_mean, mean)
        variance = torch.where(single, self.running_var, variance)
        rate = 0.1 if self.momentum is None else self.momentum
        fresh = torch.where(single, 0.0, rate)
        self.running_mean.add_(fresh * (mean.detach() - self.running_mean))
        self.running_var.add_(fresh * (unbiased.detach() - self.running_var))
        normal = (wide - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        weight_, bias = self.weight, self.bias
        if weight_ is not None:
            normal = normal * weight_.view(shape).to(wide.dtype) + bias.view(shape).to(wide.dtype)
        return normal.to(x.dtype)
