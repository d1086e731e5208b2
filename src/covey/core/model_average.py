"""Averages of the models of many rounds, batch-norm statistics included."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from covey.arrays import State
from covey.config.server_sections import Averaging
from covey.errors import require
from covey.model.layout import Layout, Slot


class ModelAverage:
    """An average of a run's models `[d]`: of all rounds, recent ones counting more, or of the last ones.

    ema: e = Σ_i ema^(t-i)·w_i / Σ_i ema^(t-i) over the rounds i so far, t the last. The initial model does not count.
    swa: the plain mean of the last `swa` rounds' models, or of as many as there are.

    Batch norm's running variances are pooled with the running means μ of the same layer, as mean(var + μ²) - mean(μ)²,
    which is mean(var) + mean((μ - mean(μ))²) and cannot become negative. All other entries are averaged.

    The state is a mapping that is replaced and never changed in place.
    """

    def __init__(self, rule: Averaging, layout: Layout) -> None:
        self.rule = rule
        self.pairs = _statistics(layout)

    def with_model(self, state: State, model: Tensor) -> State:
        """Return the state after another round's model."""
        if self.rule.swa:
            kept = [*_in_order(state), model][-self.rule.swa :]
            return {"models": {str(place): one for place, one in enumerate(kept)}}
        model = model.to(torch.promote_types(model.dtype, torch.float32))
        if not state:
            return {"mean": model.clone(), "weight": 1.0}
        weight = self.rule.ema * state["weight"] + 1.0
        share, mean = 1 / weight, state["mean"].to(model)
        average = mean + share * (model - mean)
        for middle, variance in self.pairs:
            gap = middle.of(model) - middle.of(mean)
            variance.of(average).add_(share * (1 - share) * gap.square())
        return {"mean": average, "weight": weight}

    def served(self, state: State, model: Tensor) -> Tensor:
        """Return the average `[d]` in the precision and on the device of the model; that itself before any round."""
        if not state:
            return model
        if self.rule.ema:
            mean: Tensor = state["mean"]
            return mean.to(model)
        kept = _in_order(state)
        average = torch.zeros_like(model, dtype=torch.float64)
        for one in kept:
            average += one.to(average)
        average /= len(kept)
        for middle, variance in self.pairs:
            for one in kept:
                gap = middle.of(one).to(average) - middle.of(average)
                variance.of(average).add_(gap.square() / len(kept))
        return average.to(model)

    def require_of_its_kind(self, state: State) -> None:
        """Refuse a state that is not of this kind of average."""
        if self.rule.swa:
            sound = set(state) == {"models"} and len(state["models"]) <= self.rule.swa
        else:
            sound = set(state) == {"mean", "weight"} and isinstance(state["weight"], float) and state["weight"] >= 1
        require(not state or sound, "the average over rounds is of another kind")

    def tensors(self, state: State) -> Sequence[Tensor]:
        """Return the tensors `[d]` of a state."""
        return _in_order(state) if self.rule.swa else [state["mean"]] if state else []


def _in_order(state: State) -> list[Tensor]:
    """Return the models of a window, the oldest first."""
    models: Mapping[str, Tensor] = state.get("models", {})
    return [models[place] for place in sorted(models, key=int)]


def _statistics(layout: Layout) -> list[tuple[Slot, Slot]]:
    """Return the running mean and variance of every batch norm."""
    named = {slot.name: slot for slot in layout.buffers}
    found = []
    for name, variance in named.items():
        middle = named.get(f"{name.removesuffix('running_var')}running_mean")
        if name.endswith("running_var") and middle is not None and middle.shape == variance.shape:
            found.append((middle, variance))
    return found
