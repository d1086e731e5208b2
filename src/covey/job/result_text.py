"""Results as text: the numbers, columns and sentences that the terminal and the pages share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from covey.job.analysis.analysis_result import Analysis
from covey.job.comparison.statistics import Comparison
from covey.job.runs import Run

ONE_SEED, CLEAR = "one seed", "clear of zero"
"""Certainties of a difference that a sentence may leave out."""

_NO_WIDTH = 1e-9
"""Intervals narrower than this fraction have no width: seeds differ by rounding only."""

RowText = Callable[[Mapping[str, Any]], str]
"""Formats one figure of a comparison's row."""


def or_dash(value: float | None, form: str) -> str:
    """Format a value, or return a dash for None."""
    return "-" if value is None else form.format(value)


def percent(value: float | None) -> str:
    """Format a fraction as a percentage with one decimal."""
    return or_dash(value, "{:.1%}")


def interval(low: float | None, high: float | None) -> str:
    """Format the ends of an interval of fractions as percentages."""
    return "-" if low is None or high is None else f"{low:.1%} to {high:.1%}"


def count(mean: float | None) -> str:
    """Format a mean of counts: whole, or with one decimal."""
    return "-" if mean is None else f"{mean:.0f}" if mean == int(mean) else f"{mean:.1f}"


def size(count: float | None) -> str:
    """Format a number of bytes with its unit."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def seconds(value: float | None) -> str:
    """Format seconds; a dash where no time was simulated."""
    if not value:
        return "-"
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"


def difference(row: Mapping[str, Any]) -> str:
    """Format a paired difference in points, with the half-width of its interval if it has one."""
    if row["difference"] is None:
        return "-"
    text = f"{100 * row['difference']:+.1f}"
    width = 0.0 if row["difference_low"] is None else row["difference_high"] - row["difference_low"]
    return text if width < _NO_WIDTH else f"{text} ± {50 * width:.1f}"


def certainty(row: Mapping[str, Any]) -> str:
    """Say how certain a paired difference is.

    An interval without width shows how coarse accuracy is, not how certain the difference is.
    """
    low, high = row["difference_low"], row["difference_high"]
    if low is None or high is None:
        return ONE_SEED
    if high - low < _NO_WIDTH:
        return "the same in every seed, which gives no interval"
    return CLEAR if low > 0 or high < 0 else "within the noise of these seeds"


def comparison_columns(
    rows: Sequence[Mapping[str, Any]], target: float, against: str, *, live: bool = False
) -> dict[str, RowText]:
    """Return name and format of the figures that compare methods, without those that no row has.

    `against` names the first method; `live` says that time was measured, not simulated.
    """
    always = ("terminal accuracy", f"rounds to {target:.1%}")
    columns: dict[str, RowText] = {
        always[0]: lambda row: percent(row["terminal_accuracy"]),
        "95 % interval": lambda row: interval(row["terminal_low"], row["terminal_high"]),
        "median": lambda row: percent(row["terminal_median"]),
        "best accuracy": lambda row: percent(row["best_accuracy"]),
        f"points against {against}": difference,
        # A target that no method reached is worth a row of dashes.
        always[1]: lambda row: count(row["rounds_to_target"]),
        f"bytes to {target:.1%}": lambda row: size(row["bytes_to_target"]),
        f"{'time' if live else 'simulated time'} to {target:.1%}": lambda row: seconds(row["seconds_to_target"]),
        "speed-up": lambda row: or_dash(row["speed_up"], "{:.2f}×"),
        "gap to IID closed": lambda row: or_dash(row["gap_recovered"], "{:.0%}"),
    }
    if all(row["seeds"] == 1 for row in rows):
        del columns["median"]
    return {
        name: figure for name, figure in columns.items() if name in always or any(figure(row) != "-" for row in rows)
    }


def client_loss_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, RowText]:
    """Return name and format of the figures about clients' losses, where the first method has them."""
    # Some methods always measure them; without those of the first there is nothing to compare with.
    if rows[0]["client_loss_mean"] is None:
        return {}
    return {
        "clients' mean loss": lambda row: or_dash(row["client_loss_mean"], "{:.3f}"),
        "clients' loss variance": lambda row: or_dash(row["client_loss_variance"], "{:.3g}"),
        "clients' loss gap": lambda row: or_dash(row["client_loss_gap"], "{:.3f}"),
    }


def verdicts(result: Comparison) -> list[str]:
    """Compare each method with the first, a sentence each."""
    first = result.rows[0]
    sentences = []
    for row in result.rows[1:]:
        points = 100 * row["difference"]
        direction = "above" if points >= 0 else "below"
        certain = certainty(row)
        sentence = f"{row['name']} ends {abs(points):.1f} points {direction} {first['name']}"
        sentence += "" if certain == ONE_SEED else f" ({certain})"
        if abs(points) < 0.05:
            sentence = f"{row['name']} ends level with {first['name']}"
        own, others = row["rounds_to_target"], first["rounds_to_target"]
        if own and others:
            noun = "round" if own == 1 else "rounds"
            sentence += f", and reaches {result.target:.1%} after {count(own)} {noun} against {count(others)}"
        sentences.append(sentence + ".")
    return sentences


def run_summary(run: Run) -> dict[str, Any]:
    """Return the figures that sum up a run, for JSON."""
    scored = [row for row in run.metrics if row.get("accuracy") is not None]
    dropped, unmeasured, unscored = (
        [{"round": row["round"], **fault} for row in run.metrics for fault in row.get(kind, ())]
        for kind in ("dropped", "unmeasured", "unscored")
    )
    figures = run.metrics[-1].get("figures", {}) if run.metrics else {}
    privacy = {name: figures[name] for name in ("epsilon", "delta") if name in figures}
    last = scored[-1] if scored else {}
    return {
        "folder": str(run.folder),
        "method": run.config.method,
        "rounds": len(run.metrics),
        "finished": run.finished,
        "accuracy": last.get("accuracy"),
        "own_accuracy": last.get("own_accuracy"),
        "loss": last.get("loss"),
        "best_accuracy": max((row["accuracy"] for row in scored), default=None),
        **privacy,
        "bytes_up": sum(row["bytes_up"] for row in run.metrics),
        "bytes_down": sum(row["bytes_down"] for row in run.metrics),
        "seconds": sum(sum(row["seconds"].values()) for row in run.metrics),
        "dropped": dropped,
        "unmeasured": unmeasured,
        **({"unscored": unscored} if unscored else {}),
    }


def privacy_text(summary: Mapping[str, Any]) -> str | None:
    """Return ε of a run's models; None if it has none."""
    return f"{summary['epsilon']:.3g} at δ = {summary['delta']:g}" if "epsilon" in summary else None


def analysis_rows(result: Analysis) -> list[tuple[str, str]]:
    """Return the summary of an analysis: name and figure."""
    config = result.config
    silent = f"; {len(result.missing):,} more gave no usable answer" if result.missing else ""
    rows = [
        ("data set", f"{config.dataset.name}, environment {config.environment.name}, seed {config.seed}"),
        ("clients", f"{len(result.clients):,}{silent}"),
        ("samples", f"{int(result.samples.sum()):,}"),
        ("insight", f"{result.insight}, {result.rounds} round{'s' if result.rounds > 1 else ''}"),
        ("model", f"{config.model.name}, {f'of {result.model_of}' if result.model_of else 'freshly initialised'}"),
        ("odd class mix", "-" if result.confidence is None else f"{int(result.odd.sum()):,} at level {result.level:g}"),
        ("outliers", "-" if result.strangeness is None else f"{int(result.outlier.sum()):,}"),
        ("rounds agree", or_dash(result.agreement, "{:.2f} (Spearman)")),
    ]
    if result.truth is not None:
        rows.append(("true skew agrees", or_dash(result.spearman, "{:.2f} (Spearman)")))
        rows.append(("  with score Q", or_dash(result.spearman_score, "{:.2f} (Spearman)")))
    return [
        *rows,
        ("sent up / down", f"{size(result.bytes_up)} / {size(result.bytes_down)}"),
        ("time", f"{result.seconds:.1f} s"),
    ]
