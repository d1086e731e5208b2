"""Reports: one page of HTML about runs and comparisons, and event files for TensorBoard."""

from collections.abc import Sequence
from pathlib import Path

from covey.errors import Refusal
from covey.job.federation_summary import Description, describe
from covey.page import curves, federation_page, impact_panel, standings, summary_text, tables
from covey.page.figures import Figure
from covey.page.html_page import Markup, Page, Section, escape, folded, write_page
from covey.page.run_data import Group, Study, gather
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
    study = gather(folders)
    if out is None:
        out = folders[0] if len(folders) == 1 else Path()
    path = out / "report.html" if out.is_dir() else out
    return write_page(page_of(study), path)


def page_of(study: Study) -> Page:
    """Everything that the page says and shows; what has no data is left out."""
    described, notices = _rebuild(study)
    names = {group: next(iter(seeds.values())).class_names for group, seeds in described.items()}
    mixes = [(group.title, next(iter(seeds.values()))) for group, seeds in described.items()]
    results: list[Markup | Figure | None] = [_verdicts(study)]
    results += [tables.results_table(group, study.bare) for group in study.groups]
    results.append(standings.terminal_figure(study))
    sections = [
        Section("results", "Results", _there(results)),
        Section(
            "learning",
            "Learning",
            _there(
                [
                    curves.accuracy_figure(study),
                    curves.own_accuracy_figure(study),
                    curves.loss_figure(study),
                    curves.training_loss_figure(study),
                ]
            ),
        ),
        Section("by-class", "Classes", _there([standings.classes_figure(study, names)])),
        Section(
            "fairness",
            "Fairness",
            _there([*impact_panel.client_loss_figures(study), impact_panel.impact_figure(study)]),
        ),
        Section(
            "cost",
            "Cost",
            _there([curves.bytes_figure(study), curves.clock_figure(study), standings.seconds_figure(study)]),
        ),
        Section(
            "clients",
            "Clients",
            _there(
                [
                    federation_page.mix_figure(mixes) if mixes else None,
                    federation_page.participation_figure(study, described),
                    curves.cohort_skew_figure(study),
                    federation_page.dropped_figure(study),
                    tables.dropped_table(study),
                    tables.absence_table(study),
                ]
            ),
        ),
        Section("runs", "Runs", [tables.runs_table(study)]),
        Section("configuration", "Configuration", tables.configuration(study)),
        Section("origin", "Where this comes from", _there([tables.commands(study), tables.machines(study)])),
    ]
    return Page(
        title=summary_text.title(study),
        headline=summary_text.headline(study),
        lead=summary_text.lead(study),
        sections=sections,
        notices=(*study.notices, *notices),
        footer="Made by Covey from " + ", ".join(map(str, study.folders)) + ".",
    )


def _verdicts(study: Study) -> Markup | None:
    """The tables in words: an answer for each of several federations, then line by line; many are folded away."""
    answers = [f"{group.title}: {summary_text.answer(group)}" for group in study.groups if group.title]
    said = {group.title: summary_text.sentences(group) for group in study.groups}
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


def _rebuild(study: Study) -> tuple[dict[Group, dict[int, Description]], list[str]]:
    """The federations of the first seeds, built again; a sentence where that cannot be done here."""
    described: dict[Group, dict[int, Description]] = {}
    notices = []
    for group in study.groups:
        configs = {run.config.seed: run.config for line in group.lines for run in line.runs}
        try:
            described[group] = {seed: describe(configs[seed]) for seed in sorted(configs)[:_REBUILT]}
        except Refusal as refusal:
            notices.append(f"The clients' data could not be built again here, so they are not drawn: {refusal}")
    return described, list(dict.fromkeys(notices))


def _there(parts: Sequence[Markup | Figure | None]) -> list[Markup | Figure]:
    return [part for part in parts if part is not None]
