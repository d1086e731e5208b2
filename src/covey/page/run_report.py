"""Reports: one HTML page about runs and comparisons, and event files for TensorBoard."""

from collections.abc import Sequence
from pathlib import Path

from covey.errors import Refusal
from covey.job.federation_summary import Description, describe
from covey.page import curves, federation_page, impact_panel, standings, summary_text, tables
from covey.page.figures import Figure
from covey.page.html_page import HtmlPage, Markup, Section, escape, folded, write_page
from covey.page.run_data import FederationGroup, ReportData, read_report_data
from covey.page.tensorboard import tensorboard

__all__ = ["report", "tensorboard"]

_REBUILT = 3
"""Seeds of each federation that are rebuilt to show the clients' data and skew."""

_SHOWN_SENTENCES = 6
"""Up to this many sentences about results are shown; more are folded away."""


def report(folders: Sequence[Path | str] | Path | str, out: Path | str | None = None) -> Path:
    """Write one self-contained page about run folders and comparisons, or about one of them, and return its path.

    `out` is a file or a folder. By default the page is `report.html`: in the folder reported on if there is only one,
    else in the current folder.
    """
    given = [Path(folder) for folder in ([folders] if isinstance(folders, Path | str) else folders)]
    data = read_report_data(given)
    place = (given[0] if len(given) == 1 else Path()) if out is None else Path(out)
    path = place / "report.html" if place.is_dir() else place
    return write_page(page_of(data), path)


def page_of(report: ReportData) -> HtmlPage:
    """Return the page about a report's data, without the figures that have none."""
    described, notices = _rebuild(report)
    names = {group: next(iter(seeds.values())).class_names for group, seeds in described.items()}
    mixes = [(group.title, next(iter(seeds.values()))) for group, seeds in described.items()]
    results: list[Markup | Figure | None] = [_verdicts(report)]
    results += [tables.results_table(group, report.bare) for group in report.groups]
    results.append(standings.terminal_figure(report))
    sections = [
        Section("results", "Results", _present(results)),
        Section(
            "learning",
            "Learning",
            _present(
                [
                    *curves.score_figures(report),
                    curves.own_accuracy_figure(report),
                    curves.loss_figure(report),
                    curves.training_loss_figure(report),
                ]
            ),
        ),
        Section("by-class", "Classes", _present([standings.classes_figure(report, names)])),
        Section(
            "fairness",
            "Fairness",
            _present(
                [
                    *curves.worst_clients_figures(report),
                    *impact_panel.client_loss_figures(report),
                    impact_panel.impact_figure(report),
                ]
            ),
        ),
        Section(
            "cost",
            "Cost",
            _present([*curves.cost_figures(report), standings.seconds_figure(report)]),
        ),
        Section(
            "clients",
            "Clients",
            _present(
                [
                    federation_page.mix_figure(mixes) if mixes else None,
                    federation_page.participation_figure(report, described),
                    curves.cohort_skew_figure(report),
                    federation_page.dropped_figure(report),
                    tables.dropped_table(report),
                    tables.absence_table(report),
                    tables.refused_table(report),
                ]
            ),
        ),
        Section("runs", "Runs", [tables.runs_table(report)]),
        Section("configuration", "Configuration", tables.configuration(report)),
        Section("origin", "Origin", _present([tables.commands(report), tables.machines(report)])),
    ]
    return HtmlPage(
        title=summary_text.title(report),
        headline=summary_text.headline(report),
        lead=summary_text.lead(report),
        sections=sections,
        notices=(*report.notices, *notices),
        footer="Made by Covey from " + ", ".join(map(str, report.folders)) + ".",
    )


def _verdicts(report: ReportData) -> Markup | None:
    """Return the results in words: one answer per federation if there are several, then a sentence per line."""
    answers = [f"{group.title}: {summary_text.answer(group)}" for group in report.groups if group.title]
    by_group = {group.title: summary_text.sentences(group) for group in report.groups}
    if not any(by_group.values()) and not answers:
        return None
    each = "".join(
        (f"<h3>{escape(title)}</h3>" if title else "") + _bullets(sentences) for title, sentences in by_group.items()
    )
    if sum(map(len, by_group.values())) > _SHOWN_SENTENCES:
        each = folded("Every line in words", Markup(each)).text
    return Markup(f"<div>{_bullets(answers)}{each}</div>")


def _bullets(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="verdicts">{items}</ul>' if items else ""


def _rebuild(report: ReportData) -> tuple[dict[FederationGroup, dict[int, Description]], list[str]]:
    """Rebuild the federations of the first seeds; return a sentence for those that cannot be rebuilt here."""
    described: dict[FederationGroup, dict[int, Description]] = {}
    notices = []
    for group in report.groups:
        configs = {run.config.seed: run.config for line in group.lines for run in line.runs}
        try:
            described[group] = {seed: describe(configs[seed]) for seed in sorted(configs)[:_REBUILT]}
        except Refusal as refusal:
            notices.append(f"The clients' data could not be rebuilt here, so it is not shown: {refusal}")
    return described, list(dict.fromkeys(notices))


def _present(parts: Sequence[Markup | Figure | None]) -> list[Markup | Figure]:
    return [part for part in parts if part is not None]
