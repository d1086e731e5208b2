"""Reports: one page of HTML about runs and comparisons, and event files for TensorBoard."""

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
"""Seeds of each federation that are built again to know the clients' skew."""

_SAID_OPENLY = 6
"""Sentences about results that stand openly; more are folded away."""


def report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write one self-contained page about run folders and comparisons, and return where it is.

    `out` is a file or a folder; by default it is `report.html`, in the folder reported on where there is
    only one.
    """
    folders = [Path(folder) for folder in folders]
    data = read_report_data(folders)
    if out is None:
        out = folders[0] if len(folders) == 1 else Path()
    path = out / "report.html" if out.is_dir() else out
    return write_page(page_of(data), path)


def page_of(report: ReportData) -> HtmlPage:
    """Everything that the page says and shows; what has no data is left out."""
    described, notices = _rebuild(report)
    names = {group: next(iter(seeds.values())).class_names for group, seeds in described.items()}
    mixes = [(group.title, next(iter(seeds.values()))) for group, seeds in described.items()]
    results: list[Markup | Figure | None] = [_verdicts(report)]
    results += [tables.results_table(group, report.bare) for group in report.groups]
    results.append(standings.terminal_figure(report))
    sections = [
        Section("results", "Results", _there(results)),
        Section(
            "learning",
            "Learning",
            _there(
                [
                    curves.accuracy_figure(report),
                    curves.own_accuracy_figure(report),
                    curves.loss_figure(report),
                    curves.training_loss_figure(report),
                ]
            ),
        ),
        Section("by-class", "Classes", _there([standings.classes_figure(report, names)])),
        Section(
            "fairness",
            "Fairness",
            _there([*impact_panel.client_loss_figures(report), impact_panel.impact_figure(report)]),
        ),
        Section(
            "cost",
            "Cost",
            _there([curves.bytes_figure(report), curves.clock_figure(report), standings.seconds_figure(report)]),
        ),
        Section(
            "clients",
            "Clients",
            _there(
                [
                    federation_page.mix_figure(mixes) if mixes else None,
                    federation_page.participation_figure(report, described),
                    curves.cohort_skew_figure(report),
                    federation_page.dropped_figure(report),
                    tables.dropped_table(report),
                    tables.absence_table(report),
                ]
            ),
        ),
        Section("runs", "Runs", [tables.runs_table(report)]),
        Section("configuration", "Configuration", tables.configuration(report)),
        Section("origin", "Where this comes from", _there([tables.commands(report), tables.machines(report)])),
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
    """The tables in words: an answer for each of several federations, then line by line; many are folded away."""
    answers = [f"{group.title}: {summary_text.answer(group)}" for group in report.groups if group.title]
    said = {group.title: summary_text.sentences(group) for group in report.groups}
    if not any(said.values()) and not answers:
        return None
    each = "".join(
        (f"<h3>{escape(title)}</h3>" if title else "") + _bullets(sentences) for title, sentences in said.items()
    )
    if sum(map(len, said.values())) > _SAID_OPENLY:
        each = folded("Every line in words", Markup(each)).text
    return Markup(f"<div>{_bullets(answers)}{each}</div>")


def _bullets(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="verdicts">{items}</ul>' if items else ""


def _rebuild(report: ReportData) -> tuple[dict[FederationGroup, dict[int, Description]], list[str]]:
    """The federations of the first seeds, built again; a sentence where that cannot be done here."""
    described: dict[FederationGroup, dict[int, Description]] = {}
    notices = []
    for group in report.groups:
        configs = {run.config.seed: run.config for line in group.lines for run in line.runs}
        try:
            described[group] = {seed: describe(configs[seed]) for seed in sorted(configs)[:_REBUILT]}
        except Refusal as refusal:
            notices.append(f"The clients' data could not be built again here, so they are not drawn: {refusal}")
    return described, list(dict.fromkeys(notices))


def _there(parts: Sequence[Markup | Figure | None]) -> list[Markup | Figure]:
    return [part for part in parts if part is not None]
