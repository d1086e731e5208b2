"""The server's optimisers: a step from the model towards what the aggregator returned.

Momentum (Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019), and FedAdagrad, FedYogi and FedAdam (Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
algorithm 2).
"""

import torch
from torch import Tensor

from covey.config.server_sections import ServerStep

Moments = dict[str, Tensor]
"""An optimiser's state, tensors `[parameters]` by name; empty before its first step."""


def server_step(rule: ServerStep, moments: Moments, model: Tensor, target: Tensor) -> tuple[Tensor, Moments]:
    """Return the next parameters `[p]` and moments, from the parameters `model` and the aggregator's `target`.

    With Δ = target - model, the round's pseudo-gradient, and ρ the rate:

        momentum    v ← β·v + Δ, at first v = Δ;    w ← w + ρ·v.

    The others are the server's lines of Reddi et al.'s algorithm 2, in their order: m_t, then s (their v_t, which
    begins at τ²), then x_{t+1}. As there, m begins at zero and is not corrected for it.

                    m ← β₁·m + (1 - β₁)·Δ
        adagrad     s ← s + Δ²
        yogi        s ← s - (1 - β₂)·Δ²·sign(s - Δ²)
        adam        s ← β₂·s + (1 - β₂)·Δ²
                    w ← w + ρ·m/(√s + τ).

    Nothing is changed in place. Moments are float32 at least, on the target's device.
    """
    dtype = torch.promote_types(target.dtype, torch.float32)
    before = model.to(target.device, dtype)
    change = target.to(dtype) - before
    past = {name: moment.to(change) for name, moment in moments.items()}
    assert rule.rate is not None
    assert rule.beta is not None
    if rule.optimizer == "momentum":
        velocity = change + rule.beta * past["velocity"] if past else change
        return (before + rule.rate * velocity).to(target.dtype), {"velocity": velocity}
    assert rule.tau is not None
    square = change.square()
    mean = (1 - rule.beta) * change + (rule.beta * past["mean"] if past else 0.0)
    spread = past["square"] if past else torch.full_like(change, rule.tau**2)
    if rule.optimizer == "adagrad":
        spread = spread + square
    else:
        assert rule.beta2 is not None
        if rule.optimizer == "yogi":
            spread = spread - (1 - rule.beta2) * square * torch.sign(spread - square)
        else:
            spread = rule.beta2 * spread + (1 - rule.beta2) * square
    after = before + rule.rate * mean / (spread.sqrt() + rule.tau)
    return after.to(target.dtype), {"mean": mean, "square": spread}
