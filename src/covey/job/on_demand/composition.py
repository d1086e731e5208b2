"""Composition of a target class mix from clients (Jeong and Lee 2024, On-Demand FL, section 4.1).

Given class shares d̂_c of the clients and a target d, non-negative ratios r with Σ_c r_c·d̂_c ≈ d are found by
non-negative least squares (eqs. 7 and 8). One solution has at most as many clients as there are classes, so the problem
is solved again for the remaining clients until enough are chosen. The ratios are scaled to sum to one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy.optimize import nnls

from covey.arrays import FloatArray, IntArray
from covey.errors import Refusal, require

Pairing = Literal["unscaled", "scaled_r", "scaled_rn"]
"""Columns of the least-squares problem, and weights of the clients' models.

unscaled: columns d̂_c, weight r_c: eqs. 7 and 8 as printed; needs no numbers of samples.
scaled_rn: columns d̂_c·n_c/Σn, weight r_c·n_c: consistent too, with clients counted by their samples.
scaled_r: columns d̂_c·n_c/Σn, weight r_c: the authors' code. The weights do not match the columns, so the model's mix
    differs from the solution.
"""

FAR = 0.1
"""Total variation distance of a composed mix from its target beyond which users are warned."""

_NONE = 1e-6
"""Ratios below this fraction of the largest are rounding errors."""

_ABSENT = 1e-5
"""Shares below this are rounding errors."""


@dataclass(frozen=True, eq=False)
class Composition:
    """Clients whose weighted class mix is near a target."""

    target: FloatArray
    """`[classes]`, sums to one."""
    clients: IntArray
    """The chosen clients S, ascending."""
    ratios: FloatArray
    """`[S]`: weights of their models, which sum to one."""
    mix: FloatArray
    """`[classes]`: their weighted mix, by the estimated shares."""
    passes: int
    """Number of least-squares problems solved."""

    @property
    def distance(self) -> float:
        """n·MAE between the composed mix and the target: the sum of absolute differences over classes."""
        return float(np.abs(self.mix - self.target).sum())

    @cached_property
    def lacking(self) -> IntArray:
        """Classes of which the mix has less than half of what the target asks for."""
        return np.flatnonzero((self.target > 0) & (self.mix < 0.5 * self.target))

    @property
    def far(self) -> bool:
        """True if users are to be warned that the mix is not near the target."""
        return bool(self.distance / 2 > FAR or len(self.lacking))

    def warning(self, class_names: Sequence[str]) -> str | None:
        """Return a sentence if the mix is far from the target, else None."""
        if not self.far:
            return None
        text = f"The mix of these clients is {self.distance / 2:.0%} away from the target"
        if len(self.lacking):
            listed = ", ".join(
                f"{class_names[label]} ({self.mix[label]:.1%} instead of {self.target[label]:.1%})"
                for label in self.lacking[:5].tolist()
            )
            more = f" and {len(self.lacking) - 5} more" if len(self.lacking) > 5 else ""
            text += f"; there is too little of {listed}{more}"
        return text + "."

    def made_of(self, shares: FloatArray) -> FloatArray:
        """Return the clients' weighted mix `[classes]` for other shares `[all clients, classes]`."""
        mix: FloatArray = self.ratios @ shares[self.clients]
        return mix

    def as_mapping(self) -> dict[str, Any]:
        """Return the composition for JSON; `of` reads it."""
        return {
            "target": self.target.tolist(),
            "clients": self.clients.tolist(),
            "ratios": self.ratios.tolist(),
            "mix": self.mix.tolist(),
            "passes": self.passes,
        }

    @classmethod
    def of(cls, mapping: dict[str, Any]) -> "Composition":
        """Read a composition from `as_mapping`'s result."""
        return cls(
            target=np.array(mapping["target"], dtype=np.float64),
            clients=np.array(mapping["clients"], dtype=np.int64),
            ratios=np.array(mapping["ratios"], dtype=np.float64),
            mix=np.array(mapping["mix"], dtype=np.float64),
            passes=int(mapping["passes"]),
        )


def compose(
    shares: FloatArray,
    target: FloatArray,
    *,
    at_least: int,
    sizes: FloatArray | None = None,
    pairing: Pairing = "unscaled",
    without: Sequence[int] = (),
) -> Composition:
    """Choose at least `at_least` clients and their ratios; fewer if no other client has any class of the target.

    `shares` are the clients' class shares `[clients, classes]`, `target` is the mix `[classes]`, `sizes` are numbers of
    samples `[clients]`, which the scaled pairings need; unknown ones (NaN) are replaced by the mean of the others.
    Clients of `without` are never chosen.
    All clients of a solution are chosen, so their number is rarely exactly `at_least`. The first solution is the
    nearest mix by least squares; further ones add clients, and move the mix a little away from the target.
    """
    require(at_least >= 1, f"At least one client has to be chosen, not {at_least}.")
    columns = np.where(shares < _ABSENT, 0.0, shares).T.copy()
    weight = np.ones(len(shares))
    if pairing != "unscaled":
        sizes = _all_sizes(sizes, pairing)
        scale = sizes / sizes.sum()
        columns *= scale
        weight = scale if pairing == "scaled_rn" else weight
    columns[:, list(without)] = 0.0
    ratios = np.zeros(len(shares))
    chosen = np.zeros(len(shares), dtype=np.bool_)
    passes = 0
    while chosen.sum() < min(at_least, len(shares)):
        solution, _ = nnls(columns, target)
        new = (solution > _NONE * solution.max()) & ~chosen
        if not new.any():
            break
        passes += 1
        ratios[new] += solution[new]
        chosen |= new
        columns[:, new] = 0.0
    clients = np.flatnonzero(chosen)
    others = " but those left out" if without else ""
    require(len(clients) > 0, f"No client{others} holds any sample of the classes that the target asks for.")
    counted = ratios[clients] * weight[clients]
    counted /= counted.sum()
    return Composition(target, clients, counted, counted @ shares[clients], passes)


def sizes_note(sizes: FloatArray, pairing: Pairing, *, asked: bool) -> list[str]:
    """Return a note if a pairing needs numbers of samples `[clients]` that are unknown (NaN).

    `asked` says that all clients were already asked for them.
    """
    unknown = int((~np.isfinite(sizes)).sum())
    if pairing == "unscaled" or not unknown:
        return []
    mean = _all_sizes(sizes, pairing)[~np.isfinite(sizes)][0]
    hint = "" if asked else " To ask all clients: --survey, or --estimator analytic."
    return [
        f"The number of samples is unknown for {unknown} of {len(sizes)} clients; the pairing '{pairing}' uses the "
        f"mean of the others, {mean:,.0f}.{hint}"
    ]


def _all_sizes(sizes: FloatArray | None, pairing: Pairing) -> FloatArray:
    """Return numbers of samples `[clients]`, with the mean in place of unknown ones."""
    known = np.array([]) if sizes is None else sizes[np.isfinite(sizes)]
    if sizes is None or known.sum() <= 0:
        raise Refusal(
            f"The pairing '{pairing}' needs the clients' numbers of samples, and none is known: ask the clients with "
            "--survey or --estimator analytic, or use the pairing unscaled."
        )
    return np.where(np.isfinite(sizes), sizes, known.mean())
