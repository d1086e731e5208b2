"""How far a client's steps reach: the sum of its learning rates, with momentum as it adds up."""

from functools import lru_cache

from covey.config.sections import Local


@lru_cache(maxsize=4096)
def length_of_steps(work: Local, t: int, steps: int) -> float:
    """Return A = Σ_s rate_s·(1 - μ^s)/(1 - μ), s = 1, 2, …: a constant gradient g moves SGD by -A·g.

    steps: of one epoch; `work` has the number of epochs.
    """
    total, taken = 0.0, 0
    for epoch in range(work.epochs):
        rate = work.rate_at(t, epoch)
        for _ in range(steps):
            taken += 1
            total += rate * ((1 - work.momentum**taken) / (1 - work.momentum))
    return total
