"""Confidence that a class mix differs: a bound by Hoeffding's inequality, and the models for which it holds."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from covey.arrays import FloatArray, IntArray
from covey.data.dataset import Dataset
from covey.model.layout import Layout, Slot

_RANGE = 2.0
"""b - a of eq. 9: a sample's gradient for a bias of the last layer lies between -1 and 1."""


@dataclass(frozen=True, eq=False)
class Confidence:
    """Confidence that a client's class mix differs from that of all clients. All arrays are `[clients]`.

    Where a model adds the bias of its last layer to its logits, a sample's gradient for the bias of class c is
    softmax_c - 1[y = c], between -1 and 1 whatever the sample and the model: the range b - a of eq. 9 is 2 by
    construction (times γ, which is divided out here). Suppose that the M samples of a client are drawn like everyone's
    N, its own among them. Then d_c = (Δb_i - mean Δb)_c/γ (eq. 12) is how far a mean of M numbers lies from that of the
    pool they are drawn from, and by Hoeffding's inequality for draws without replacement (Serfling 1974)

        E exp(λ·d_c) ≤ exp(λ²·v/8),   v = (b - a)²·(1 - (M - 1)/N)/M.

    So estimating the mean from the same clients (eq. 27) does no harm. Nor does it matter how the others differ among
    themselves: with independent samples and the client's expectation equal to the others' together,
    d_c = (1 - M/N)·(own mean - the others' mean), and Hoeffding's lemma has v = (b - a)²·(1/M - 1/N), smaller still.
    Because exp is convex, a mean of d_c over rounds has the same bound, however the rounds depend on each other, with
    N the samples of all clients that answered in any of them. Hence

        P(|d_c| ≥ t) ≤ 2·exp(-2t²/v),

    times the number of classes for the largest of them (Bonferroni), and times the number of clients for all of them.
    The models must not depend on the samples, which those that are freshly initialised do not.
    """

    deviation: FloatArray
    """max_c |d_c|: about the difference in share of the class in which the client differs most."""
    limit: FloatArray
    """Bound that `deviation` exceeds, for any client, with at most probability `level` if all have the same mix."""
    p_values: FloatArray
    """Bound on the probability of such a deviation in a client like the others; not yet corrected over clients."""
    log_product: FloatArray
    """ln P_i of eqs. 30-32 over the K classes, with the logarithm that eq. 33 omits: K·ln 2 - 2M·Σd²/(b - a)²."""

    @classmethod
    def of(cls, deviations: FloatArray, samples: IntArray, level: float) -> "Confidence":
        """Compute from d `[clients, classes]`, numbers of samples `[clients]`, and the chance of any false alarm."""
        clients, classes = deviations.shape
        largest = np.abs(deviations).max(axis=1)
        spread = _RANGE**2 * (1 - (samples - 1) / samples.sum()) / samples
        chances = 2 * classes * np.exp(-2 * largest**2 / spread)
        return cls(
            deviation=largest,
            limit=np.sqrt(spread * np.log(2 * classes * clients / level) / 2),
            p_values=np.minimum(1.0, chances),
            log_product=classes * np.log(2) - 2 * samples * np.square(deviations).sum(axis=1) / _RANGE**2,
        )

    @property
    def sureness(self) -> FloatArray:
        """1 - the bound corrected over all clients: the confidence at which a client would just be called odd."""
        sure: FloatArray = 1 - np.minimum(1.0, len(self.p_values) * self.p_values)
        return sure

    @property
    def product(self) -> FloatArray:
        """P_i, cut off at 1.

        A product of one bound per class, each at most 2: it lies between 0 and 2^K and is no probability, since classes
        are not independent. It orders clients of equal size, the lowest being the most skewed; values above 1 carry no
        information. Use `p_values` as probabilities.
        """
        product: FloatArray = np.exp(np.minimum(0.0, self.log_product))
        return product


def bias_slot(module: nn.Module, layout: Layout, dataset: Dataset) -> Slot | None:
    """Return the last layer's bias if it is added to the logits unchanged, so that the range of eq. 9 is known."""
    if not layout.head:
        return None
    slot = layout.head[-1]
    if not dataset.class_count:
        return None
    if slot.shape != (dataset.classes,):
        return None
    floating = dataset.x.is_floating_point() or dataset.x.dtype == torch.uint8
    sample = torch.zeros(1, *dataset.shape, dtype=torch.float32 if floating else dataset.x.dtype)
    step = torch.arange(1.0, dataset.classes + 1)
    bias = dict(module.named_parameters())[slot.name].detach()
    with torch.no_grad():
        module.eval()
        before: Tensor = torch.func.functional_call(module, {slot.name: bias}, (sample,))
        after: Tensor = torch.func.functional_call(module, {slot.name: bias + step}, (sample,))
    return slot if torch.allclose(after - before, step.expand_as(after), atol=1e-3) else None
