"""Result of an analysis: skewed, odd and outlying clients, in figures, in words, and as files."""

import csv
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey.arrays import FloatArray, IntArray
from covey.config.schema import Config
from covey.core.messages import Fault
from covey.errors import Refusal
from covey.job.analysis.confidence import Confidence
from covey.job.analysis.outliers import CLEAR, STANDS_OUT, chance_of_any
from covey.job.analysis.ranks import places, rank_correlation
from covey.job.notebook_table import notebook_table
from covey.job.page_link import write_page_about
from covey.storage import replace_file

BoolArray = NDArray[np.bool_]

_NAMED = 20
"""Largest number of outliers that a sentence names."""


@dataclass(frozen=True, eq=False, repr=False)
class Analysis:
    """Result of an analysis. Arrays are over the clients that answered, ascending."""

    config: Config
    insight: str
    rounds: int
    level: float
    """Probability that any client is called odd if all have the same class mix."""
    model_of: str | None
    """The run whose model was used; None for freshly initialised models."""
    measure: Literal["class mix", "distance"]
    """Meaning of `skew`: distance of class mixes, 0 to 1, or distance of insights, without a unit."""
    clients: IntArray
    samples: IntArray
    skew: FloatArray
    score: FloatArray
    """Q_i, mean over rounds."""
    score_rank: IntArray
    """1 is the highest Q_i, by the mean over rounds of the rank within a round."""
    confidence: Confidence | None
    strangeness: FloatArray | None
    """Distance above the median of what the class mix does not explain (or of Q_i), in median absolute deviations."""
    agreement: float | None
    """Mean rank correlation between the skew estimates of two rounds."""
    truth: FloatArray | None
    """True skew, where it is known; the analysis does not use it."""
    poisoned: BoolArray | None = None
    """True for clients whose labels are all wrong, where that is known; the analysis does not use it."""
    names: tuple[str, ...] = ()
    """Names of all clients of the federation, if the data has any."""
    missing: tuple[int, ...] = ()
    """Clients that were asked and never gave a usable answer."""
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    """Results that are missing, and why."""
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    """Wall-clock time."""
    clock: float = 0.0
    """Simulated time on the clients' devices."""

    def __repr__(self) -> str:
        return f"Analysis({len(self.clients):,} clients; {self.verdict})"

    def _repr_html_(self) -> str:
        each = self.findings_first()[:_NAMED]
        rows = [(one["name"], one["samples"], f"{one['skew']:.3f}", one["odd"], one["outlier"]) for one in each]
        header = ("client", "samples", "skew", "odd class mix", "outlier")
        return notebook_table(f"{len(self.clients):,} clients. {self.verdict}", header, rows)

    @cached_property
    def order(self) -> IntArray:
        """Positions, the most skewed first."""
        return np.argsort(-self.skew, kind="stable")

    @cached_property
    def rank(self) -> IntArray:
        """1 is the most skewed."""
        return places(-self.skew)

    @cached_property
    def odd(self) -> BoolArray:
        """True for clients whose class mix differs; a false alarm among all clients has at most probability `level`."""
        if self.confidence is None:
            return np.zeros(len(self.clients), dtype=np.bool_)
        return np.asarray(self.confidence.p_values * len(self.clients) <= self.level)

    @cached_property
    def outlier(self) -> BoolArray:
        """True for clients whose insight differs beyond their class mix. A rule of thumb, without a guarantee."""
        if self.strangeness is None:
            return np.zeros(len(self.clients), dtype=np.bool_)
        return np.asarray(self.strangeness > STANDS_OUT)

    @property
    def spearman(self) -> float | None:
        """Rank correlation of `skew` with true skew."""
        return None if self.truth is None else rank_correlation(self.skew, self.truth)

    @property
    def spearman_score(self) -> float | None:
        """Rank correlation of Q_i with true skew."""
        return None if self.truth is None else rank_correlation(-self.score_rank, self.truth)

    def name(self, position: int) -> str:
        """Return the client's name, or else its number."""
        client = int(self.clients[position])
        return self.names[client] if self.names else str(client)

    @property
    def verdict(self) -> str:
        """Odd clients and outliers, in a few sentences."""
        count, sentences = len(self.clients), []
        if self.confidence is not None:
            number, odd = int(self.odd.sum()), self._named(self.odd, self.skew)
            sentences.append(
                f"{number} of {count} clients {'has an odd class mix' if number == 1 else 'have an odd class mix'} "
                f"(chance of any false alarm at most {self.level:.2g}){f': {odd}' if odd else ''}."
            )
            sentences.append(self._nearly_odd())
        if self.strangeness is not None:
            apart = self._named(self.outlier, self.strangeness)
            why = "labels or inputs unlike the others'" if self.confidence is not None else "in the score"
            sentences.append(f"Outliers, {why}: {apart}." if apart else f"There are no outliers, {why}.")
            sentences += [self._maybe_by_chance(), self._against_poisoned()]
        return " ".join(filter(None, sentences)) or "The clients are ranked; nothing more can be said about them."

    @property
    def finding(self) -> str:
        """What was found, in a line."""
        count, found = len(self.clients), []
        if self.strangeness is not None:
            number = int(self.outlier.sum())
            found.append(
                "no outliers" if not number else f"{number} outlier{'' if number == 1 else 's'}{self._how_true()}"
            )
        if self.confidence is not None:
            number = int(self.odd.sum())
            found.append(f"{number} of {count} clients with an odd class mix")
        text = "; ".join(found) or f"{count} clients ranked by skew"
        return f"{text[0].upper()}{text[1:]}"

    def _named(self, chosen: BoolArray, by: FloatArray) -> str:
        """Return the names of some clients, the first of them if they are many, the highest value first."""
        places = [at for at in np.argsort(-by, kind="stable").tolist() if chosen[at]]
        more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
        return ", ".join(self.name(at) for at in places[:_NAMED]) + more

    def _nearly_odd(self) -> str:
        """Say who is likeliest to have an odd class mix where nobody is sure enough."""
        if self.confidence is None or self.odd.any():
            return ""
        sure = self.confidence.sureness
        at = int(sure.argmax())
        if sure[at] < 0.5:
            return ""
        return f"The nearest is {self.name(at)}: {sure[at]:.1%} sure, and {100 * (1 - self.level):.4g}% counts as odd."

    def _maybe_by_chance(self) -> str:
        """Say which outliers are not clear ones, and how often chance makes such."""
        if self.strangeness is None:
            return ""
        some = self._named(self.outlier & (self.strangeness < CLEAR), self.strangeness)
        often, count = chance_of_any(len(self.clients)), len(self.clients)
        return some and (
            f"Less sure, below {CLEAR:g} deviations: {some}; of {count} clients that are alike, chance makes one an "
            f"outlier in about 1 of {often} analyses."
            + ("" if self.model_of else " A trained model tells more: covey analyze --from RUN.")
        )

    def _how_true(self) -> str:
        """Say in brackets how many of the outliers are poisoned, where it is known and there are such."""
        if self.poisoned is None or not self.poisoned.any():
            return ""
        right, apart, all_ = (
            int((self.poisoned & self.outlier).sum()),
            int(self.outlier.sum()),
            int(self.poisoned.sum()),
        )
        if right == apart == all_:
            return " (exactly the poisoned clients)" if all_ > 1 else " (the poisoned client)"
        return f" ({right} of the {all_} poisoned client{'' if all_ == 1 else 's'})"

    def _against_poisoned(self) -> str:
        """Compare the outliers with the clients whose labels are wrong, where there are such and it is known."""
        if self.poisoned is None or not self.poisoned.any():
            return ""
        right, apart, all_ = (
            int((self.poisoned & self.outlier).sum()),
            int(self.outlier.sum()),
            int(self.poisoned.sum()),
        )
        noun = "client" if all_ == 1 else "clients"
        if right == apart == all_:
            return f"They are exactly the {all_} poisoned {noun}." if all_ > 1 else "It is the one poisoned client."
        wrong = apart - right
        more = f"; {wrong} of them {'is' if wrong == 1 else 'are'} not poisoned" if wrong else ""
        return (
            f"Of the {all_} poisoned {noun}, {right or 'none'} {'is' if right < 2 else 'are'} among the outliers{more}."
        )

    def findings_first(self) -> list[dict[str, Any]]:
        """Return the figures of each client: outliers by how far they stand out, odd ones, and others by skew."""
        return sorted(self.each(), key=lambda one: (-one["strangeness"] if one["outlier"] else 0.0, not one["odd"]))

    def each(self) -> list[dict[str, Any]]:
        """Return the figures of each client, the most skewed first; None for results that are missing."""
        sure, strange, truth = self.confidence, self.strangeness, self.truth
        return [
            {
                "client": int(self.clients[at]),
                "name": self.name(at),
                "samples": int(self.samples[at]),
                "rank": int(self.rank[at]),
                "skew": float(self.skew[at]),
                "score_rank": int(self.score_rank[at]),
                "score": float(self.score[at]),
                "odd": None if sure is None else bool(self.odd[at]),
                "confidence": None if sure is None else float(sure.sureness[at]),
                "p_value": None if sure is None else float(sure.p_values[at]),
                "deviation": None if sure is None else float(sure.deviation[at]),
                "limit": None if sure is None else float(sure.limit[at]),
                "product": None if sure is None else float(sure.product[at]),
                "log_product": None if sure is None else float(sure.log_product[at]),
                "outlier": None if strange is None else bool(self.outlier[at]),
                "strangeness": None if strange is None else float(strange[at]),
                "true_skew": None if truth is None else float(truth[at]),
            }
            for at in self.order.tolist()
        ]

    def as_mapping(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "dataset": self.config.dataset.as_mapping(),
            "environment": self.config.environment.as_mapping(),
            "model": self.config.model.as_mapping(),
            "seed": self.config.seed,
            "insight": self.insight,
            "rounds": self.rounds,
            "level": self.level,
            "model_of": self.model_of,
            "measure": self.measure,
            "clients": len(self.clients),
            "samples": int(self.samples.sum()),
            "odd": None if self.confidence is None else self.clients[self.odd].tolist(),
            "outliers": None if self.strangeness is None else self.clients[self.outlier].tolist(),
            "poisoned": None if self.poisoned is None else self.clients[self.poisoned].tolist(),
            "spearman": self.spearman,
            "spearman_score": self.spearman_score,
            "agreement": self.agreement,
            "missing": list(self.missing),
            "faults": [{"client": fault.client, "reason": fault.reason} for fault in self.faults],
            "notes": list(self.notes),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": self.seconds,
            "clock": self.clock,
            "each": self.each(),
        }

    def write_csv(self, path: Path) -> Path:
        """Write a CSV file with a line per client, the most skewed first."""
        rows = self.each()
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.getvalue().encode())
        except OSError as error:
            raise Refusal(f"The file {path} cannot be written: {error.strerror or error}.") from error
        return path

    def draw(self, path: Path) -> Path:
        """Write the result as a page that opens in a browser, offline."""
        return write_page_about(self, "analysis_page:analysis_page", path)
