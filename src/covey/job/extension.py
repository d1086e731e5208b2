"""Extending runs: a run that is continued for more rounds ends as one that was planned for as many."""

import os
from dataclasses import replace
from pathlib import Path

from covey.config.schema import Config
from covey.core.checkpoint import FORMAT
from covey.core.interfaces import Method
from covey.core.one_model import OneModel
from covey.core.records import folder_format
from covey.errors import require


def with_rounds(config: Config, rounds: int, folder: Path) -> Config:
    """Return a run's configuration with more rounds; refuse fewer, and a schedule that was planned for its own."""
    require(
        rounds >= config.rounds,
        f"The run {folder} is one of {config.rounds} rounds, and runs are only made longer: give more, not {rounds}.",
    )
    require(
        folder_format(folder) == FORMAT,
        f"The run {folder} was made by an earlier version of Covey; it resumes, and cannot be extended.",
    )
    local = config.local
    require(
        local.schedule == "constant" or local.schedule_rounds != config.rounds,
        f"The learning rate of the run {folder} follows a schedule ({local.schedule}) over its {config.rounds} rounds, "
        "so that a longer run is another one from the first round on: begin it anew.",
    )
    return replace(config, rounds=rounds)


def require_alone(folder: Path, rounds: int) -> None:
    """Refuse to extend a run in the folder of a comparison, whose runs have as many rounds."""
    comparison = folder.resolve().parent.parent
    require(
        not (comparison / "compare.json").is_file(),
        f"The run {folder} belongs to the comparison {os.path.relpath(comparison)}, whose runs are compared over as "
        f"many rounds. Extend them all: covey resume {os.path.relpath(comparison)} --rounds {rounds}",
    )


def require_extensible(method: Method, config: Config) -> None:
    """Refuse a method whose course depends on the number of rounds."""
    parts = (method.selector, method.aggregator) if isinstance(method, OneModel) else ()
    fixed = next((part for part in parts if part.depends_on_rounds), None)
    require(
        fixed is None,
        f"{type(fixed).__name__} tunes itself for the number of rounds, so that a run of '{config.method}' with more "
        "rounds is another one from the first round on: begin it anew.",
    )
