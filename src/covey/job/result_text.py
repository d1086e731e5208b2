"""Results as text: the numbers, columns and sentences that the terminal and the pages share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from covey.job.analysis.analysis_result import Analysis
from covey.job.comparison.compared_runs import Comparison, final_privacy
from covey.job.comparison.row_figures import best_of, terminal_of
from covey.job.comparison.row_text import ONE_SEED, certainty, difference, interval
from covey.job.runs import Run
from covey.job.score_text import metric_columns
from covey.task.learning_task import ACCURACY, Metric
from covey.task.run_metric import main_score, metric_of

BEFORE_AVERAGING, OWN_MIX, EPSILON = "before averaging", "on clients' own mix", "ε of its models"
"""Names of a run's figures in the terminal and on pages."""

CLIENT_FIGURES: Mapping[str, str] = {
    "name": "client",
    "samples": "samples",
    "skew": "skew",
    "score": "score Q",
    "score_rank": "rank by Q",
    "confidence": "sure of odd mix",
    "deviation": "difference",
    "limit": "limit",
    "p_value": "p",
    "log_product": "ln P",
    "strangeness": "stands out by",
    "true_skew": "true skew",
    "finding": "finding",
}
"""Names of a client's figures in an analysis, in the terminal and on pages."""

RowText = Callable[[Mapping[str, Any]], str]
"""Formats one figure of a comparison's row."""


def or_dash(value: float | None, form: str) -> str:
    """Format a value, or return a dash for None."""
    return "-" if value is None else form.format(value)


def percent(value: float | None) -> str:
    """Format a fraction as a percentage with one decimal."""
    return or_dash(value, "{:.1%}")


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


def comparison_columns(
    rows: Sequence[Mapping[str, Any]], target: float, against: str, metric: Metric = ACCURACY, *, live: bool = False
) -> dict[str, RowText]:
    """Return name and format of the figures that compare methods, without those that no row has.

    `against` says what differences are against; `live` says that time was measured, not simulated.
    """
    goal, unit = metric.text(target), "points" if metric.share else metric.label
    always = (f"terminal {metric.label}", f"rounds to {goal}")
    columns: dict[str, RowText] = {
        always[0]: lambda row: metric.text(terminal_of(row)),
        "95 % interval": lambda row: interval(row["terminal_low"], row["terminal_high"], metric),
        "median": lambda row: metric.text(row["terminal_median"]),
        f"best {metric.label}": lambda row: metric.text(best_of(row)),
        **metric_columns(rows),
        EPSILON: lambda row: privacy_text(row) or "-",
        f"{unit} against {against}": lambda row: difference(row, metric),
        # A target that no method reached is worth a row of dashes.
        always[1]: lambda row: count(row["rounds_to_target"]),
        f"bytes to {goal}": lambda row: size(row["bytes_to_target"]),
        f"{'time' if live else 'simulated time'} to {goal}": lambda row: seconds(row["seconds_to_target"]),
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


def level(gap: float, reached: float, metric: Metric = ACCURACY) -> bool:
    """True if a difference is too small to be shown; `reached` is the score that it is a difference from."""
    return abs(gap) < 5e-4 * (1.0 if metric.share else abs(reached))


def verdicts(result: Comparison) -> list[str]:
    """Compare each method with the first, at the same settings where they vary, a sentence each."""
    named, metric = {row["name"]: row for row in result.rows}, result.metric
    sentences = []
    for row in result.rows:
        if row["against"] is None:
            continue
        first = named[row["against"]]
        gap = row["difference"]
        direction = "above" if gap >= 0 else "below"
        certain = certainty(row)
        sentence = f"{row['name']} ends {metric.gap(gap)} {direction} {first['name']}"
        if not metric.share:
            sentence = f"{row['name']} ends with {metric.label} {metric.gap(gap)} {direction} that of {first['name']}"
        sentence += "" if certain == ONE_SEED else f" ({certain})"
        if level(gap, terminal_of(first), metric):
            sentence = f"{row['name']} ends level with {first['name']}"
        own, others = row["rounds_to_target"], first["rounds_to_target"]
        if own and others:
            noun = "round" if own == 1 else "rounds"
            sentence += f", and reaches {metric.text(result.target)} after {count(own)} {noun} against {count(others)}"
        sentences.append(sentence + ".")
    return sentences


def comparison_summary(result: Comparison) -> dict[str, Any]:
    """Return a comparison's figures, for JSON."""
    notes = {"notes": list(result.notes)} if result.notes else {}
    return {"folder": str(result.folder), "target": result.target, "rows": result.rows, **notes}


def run_summary(run: Run) -> dict[str, Any]:
    """Return the figures that sum up a run, for JSON."""
    scored = [row for row in run.metrics if main_score(row) is not None]
    metric = metric_of(run.metrics)
    best = max((metric.sign * value for row in scored if (value := main_score(row)) is not None), default=None)
    dropped, unmeasured, unscored = (
        [{"round": row["round"], **fault} for row in run.metrics for fault in row.get(kind, ())]
        for kind in ("dropped", "unmeasured", "unscored")
    )
    last = scored[-1] if scored else {}
    return {
        "folder": str(run.folder),
        "method": run.config.method,
        "rounds": len(run.metrics),
        "finished": run.finished,
        **_scores_of(last, metric, None if best is None else metric.sign * best),
        **final_privacy(run),
        "bytes_up": sum(row["bytes_up"] for row in run.metrics),
        "bytes_down": sum(row["bytes_down"] for row in run.metrics),
        "seconds": sum(sum(row["seconds"].values()) for row in run.metrics),
        "dropped": dropped,
        "unmeasured": unmeasured,
        **({"unscored": unscored} if unscored else {}),
    }


def _scores_of(last: Mapping[str, Any], metric: Metric, best: float | None) -> dict[str, Any]:
    """Return the scores of a run's last evaluation, and its best main metric."""
    more = {name: last[name] for name in ("metrics", "client_score", "client_metrics") if name in last}
    if metric != ACCURACY:
        raw = {"raw_score": last["raw_score"]} if "raw_score" in last else {}
        named = {"metric": metric.name, "better": metric.better, "score": last.get("score")}
        return {**named, **raw, "loss": last.get("loss"), "best_score": best, **more}
    return {
        "accuracy": last.get("accuracy"),
        **({"raw_accuracy": last["raw_accuracy"]} if "raw_accuracy" in last else {}),
        "own_accuracy": last.get("own_accuracy"),
        "loss": last.get("loss"),
        "best_accuracy": best,
        **more,
    }


def privacy_text(summary: Mapping[str, Any]) -> str | None:
    """Return ε of a run's models; None if it has none."""
    if "epsilon" not in summary:
        return None
    unit = f", for one {summary['protects']}" if "protects" in summary else ""
    return f"{summary['epsilon']:.3g} at δ = {summary['delta']:g}{unit}"


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
