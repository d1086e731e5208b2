"""Builds models by name, and prepares their dropout and batch norm for federated training."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from covey.errors import Refusal, require
from covey.model.dropout import adopt_dropout
from covey.model.normalisation import adopt_batch_norm
from covey.randomness import torch_seed
from covey.registries import models

ModelBuilder = Callable[..., nn.Module]
"""`build(shape, classes, *, option=default, ...) -> nn.Module` with an attribute `head`."""


def build_model(name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Build the model called `name`, initialised from the seed alone.

    Torch's dropout is replaced by a reproducible one, and its batch norm by one that takes batches of any size.
    """
    build = models[name].part
    given = models.options(name, options)
    try:
        inspect.signature(build).bind(shape, classes, **given)
    except TypeError as error:
        raise Refusal(
            f"The model '{name}' is not called as name(shape, classes, *, option=default, ...), with the shape of a "
            f"sample and the number of classes: {error}."
        ) from error
    with torch_seed(seed, "initialisation"):
        module = build(shape, classes, **given)
    require(isinstance(module, nn.Module), f"The model '{name}' built a {type(module).__name__}, not an nn.Module.")
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    require(
        not frozen,
        f"The model '{name}' has frozen parameters ({', '.join(frozen[:3])}{', …' if len(frozen) > 3 else ''}), and "
        "all parameters are trained here. Make a tensor that does not change a buffer: register_buffer.",
    )
    adopt_dropout(module)
    adopt_batch_norm(module)
    return module


def image_shape(model: str, shape: tuple[int, ...], at_least: int) -> tuple[int, int, int]:
    """Return `shape` as (channels, height, width); refuse shapes that are no images, or too small for the model."""
    if len(shape) != 3 or min(shape[1:]) < at_least:
        raise Refusal(
            f"The model '{model}' needs images of at least {at_least} x {at_least} pixels, and samples here have the "
            f"shape {' x '.join(map(str, shape))}; choose another model (mlp takes any shape), or another dataset "
            "(digits becomes 32 x 32 with dataset.upscale=4)."
        )
    return shape[0], shape[1], shape[2]
