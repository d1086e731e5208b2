"""How the demo's sentences put numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covey.arrays import FloatArray
from covey.job.comparison.statistics import Estimate


@dataclass(frozen=True)
class Difference:
    """A difference in accuracy over federations, and what a sentence may say about it."""

    what: str
    estimate: Estimate

    @classmethod
    def of(cls, what: str, own: FloatArray, other: FloatArray) -> "Difference":
        """Estimate `own` less `other`, federation by federation; both `[federations]`."""
        return cls(what, Estimate.of((own - other).tolist()))

    @property
    def sign(self) -> int:
        """1 or -1 if the 95 % interval lies on one side of zero, 0 if the difference is within the noise."""
        if not self.estimate.clear_of_zero:
            return 0
        return 1 if self.estimate.mean > 0 else -1

    @property
    def size(self) -> str:
        """The difference without its sign, in points, such as "4.2 ± 1.0"."""
        return f"{abs(100 * self.estimate.mean):.1f} ± {self.half}"

    @property
    def signed(self) -> str:
        """The difference with its sign, in points, such as "+4.2 ± 1.0"."""
        return f"{100 * self.estimate.mean:+.1f} ± {self.half}"

    @property
    def half(self) -> str:
        """Half of the 95 % interval, in points, such as "1.0"."""
        assert self.estimate.low is not None
        return f"{100 * (self.estimate.mean - self.estimate.low):.1f}"

    def as_mapping(self) -> dict[str, Any]:
        """Return the difference for JSON, as fractions; `claimed` is 1, -1, or 0 for within the noise."""
        found = self.estimate
        return {"what": self.what, "mean": found.mean, "low": found.low, "high": found.high, "claimed": self.sign}


def listed(items: Sequence[object]) -> str:
    """Return "4, 9 and 17"."""
    texts = [str(item) for item in items]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def counted(number: int, noun: str) -> str:
    """Return "1 client" or "6 clients"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
