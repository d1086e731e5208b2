"""FedACS's environments of α-dominance clients (Definitions 1, 3)."""

import numpy as np

from covey.environments.dealing import ClassDecks, Deal, FloatArray, IntArray, environments, samples_per_client


def dominance_counts(alpha: float, dominant: int, samples: int, classes: int) -> IntArray:
    """Samples per class of an α-dominance client (FedACS Definition 1): `[classes]`, summing to `samples`.

    ⌊M(1-α)/C⌋ of every class, the rest of the dominant class.
    """
    common = int(samples * (1 - alpha) / classes + 1e-9)
    counts = np.full(classes, common, dtype=np.int64)
    counts[dominant] += samples - common * classes
    return counts


def deal_dominance(
    alphas: FloatArray, labels: IntArray, classes: int, samples: int, rng: np.random.Generator
) -> list[IntArray]:
    """Samples of α-dominance clients; the dominant class of the next client is the one dealt least so far."""
    decks = ClassDecks(labels, classes, rng)
    parts = []
    for alpha in alphas:
        dominant = int(np.argmin(decks.dealt))
        counts = dominance_counts(float(alpha), dominant, samples, classes)
        parts.append(np.concatenate([decks.deal(label, int(count)) for label, count in enumerate(counts)]))
    return parts


@environments.add("uniform")
def uniform(
    labels: IntArray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    samples: int | None = None,
    reuse: float = 8.0,
) -> Deal:
    """FedACS Definition 3: α-dominance clients with α uniform in [0, 1]; clients share samples.

    Each client holds `samples`, or as many as use every training sample `reuse` times (the paper's
    200 clients of 2,000 use each of 50,000 images 8 times).
    """
    count = samples_per_client(labels, clients, samples, reuse)
    alphas = rng.uniform(0.0, 1.0, size=clients)
    return Deal(deal_dominance(alphas, labels, classes, count, rng), shared=True, skew=alphas)
