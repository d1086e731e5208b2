"""A paper's claims with a verdict on each: the table that its page begins with.

A claim of a gain holds if the difference is clear of zero and its interval reaches the printed one. It holds in part
if it is clear of zero and smaller, or holds in some places only. It is open if the interval contains both zero and the
printed gain: these seeds cannot tell. It does not hold if no place shows a gain and some place excludes the printed
one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from covey.job.comparison.statistics import Estimate
from papers.page import Part, Table
from papers.wording import joined, spread

Verdict = Literal["holds", "holds in part", "does not hold", "open", "not tested"]

NOT_TESTED: Verdict = "not tested"


@dataclass(frozen=True)
class Claim:
    """What a paper says, what was found, and whether it holds."""

    text: str
    verdict: Verdict
    found: str = ""
    """The numbers behind the verdict."""


@dataclass(frozen=True)
class Gain:
    """A difference that a paper claims in one place, and the difference that was measured."""

    place: str
    found: Estimate | None
    """Measured; None if it was not."""
    claimed: float | None = None
    """Printed in the paper, above zero, as it is shown; None if the paper says "more" without a number."""
    form: str = "{:+.2f}"
    """Format of the difference as it is shown."""
    unit: str = ""
    """Added to the difference."""
    factor: float = 100.0
    """A measured difference times this is shown: fractions as points."""

    @property
    def verdict(self) -> Verdict:
        found = self.found
        if found is None or found.low is None or found.high is None:
            return NOT_TESTED
        claimed = (self.claimed or 0.0) / self.factor
        if found.low > 0:
            return "holds" if found.high >= claimed else "holds in part"
        return "open" if found.high > 0 and found.high >= claimed else "does not hold"

    @property
    def text(self) -> str:
        """The difference, and the printed one."""
        assert self.found is not None
        paper = "" if self.claimed is None else f" (paper {self.form.format(self.claimed)})"
        return f"{self.place} {spread(self.found, self.form, self.factor)}{self.unit}{paper}"


def gain_claim(text: str, gains: Sequence[Gain]) -> Claim:
    """Return the claim that something is greater in several places, judged over those where it was tested."""
    tested = [gain for gain in gains if gain.verdict != NOT_TESTED]
    if not tested:
        return Claim(text, NOT_TESTED, _untested(gains))
    verdicts = {gain.verdict for gain in tested}
    overall: Verdict = next(iter(verdicts)) if len(verdicts) == 1 else "holds in part"
    if len(verdicts) > 1 and not verdicts & {"holds", "holds in part"}:
        overall = "does not hold"
    left = [gain.place.split(":")[0] for gain in gains if gain not in tested]
    found = "; ".join(gain.text for gain in tested) + (f"; not tested: {joined(left)}" if left else "")
    return Claim(text, overall, found)


def _untested(gains: Sequence[Gain]) -> str:
    """Say what one seed came to, where there is one."""
    return "; ".join(f"{gain.text}, one seed" for gain in gains if gain.found is not None)


_MEANINGS: Mapping[Verdict, str] = {
    "holds in part": "holds in part: clear of zero but smaller than printed, or not in all places",
    "open": "open: these seeds exclude neither zero nor the printed gain",
    "does not hold": "does not hold: no gain is clear of zero, and in some place the printed one is excluded",
    "not tested": "not tested: not run, or with one seed only",
}


def claims_table(
    claims: Sequence[Claim], of: str = "claim of the paper", meanings: Mapping[Verdict, str] | None = None
) -> list[Part]:
    """Return the section with a verdict on each claim; `of` says what they are, `meanings` what verdicts mean here."""
    rows = [[claim.text, f"**{claim.verdict}**", claim.found or "-"] for claim in claims]
    return ["## Claims", Table((of, "verdict", "measured here"), rows), _legend(claims, meanings or _MEANINGS)]


def _legend(claims: Sequence[Claim], meanings: Mapping[Verdict, str]) -> str:
    """Explain the verdicts that occur and are not plain."""
    used = {claim.verdict for claim in claims}
    words = [meaning for verdict, meaning in meanings.items() if verdict in used]
    sentence = "Intervals are 95 %, over seeds, of differences seed by seed."
    return f"{sentence} {'; '.join(words).capitalize()}." if words else sentence
