"""The demo as a job: its seeds, its folder, its three steps, and what they say together."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch

from covey.core.checkpoint import FORMAT
from covey.core.loop import OnRound
from covey.errors import Refusal, require
from covey.job.demo.odd_clients import OddClients, find_odd_clients
from covey.job.demo.site_model import SiteModel, train_site_model
from covey.job.demo.skew_cost import OURS, SkewCost, measure_skew_cost
from covey.job.job_folder import read_job_file, require_empty
from covey.job.page_link import write_page_about
from covey.job.pending_runs import OnRun
from covey.storage import write_json

FEDERATIONS = 10
"""Federations over which accuracies are compared."""

_APART = 1000
"""Distance between the first seeds of two demos."""

_MOST = 10**12

Listeners = AbstractContextManager[tuple[OnRun, OnRound]]
"""The listeners of one step, such as `comparison_progress()`."""

Answer = OddClients | SkewCost | SiteModel


class _DemoFile(TypedDict):
    """What `demo.json` holds."""

    format: int
    seed: int


@dataclass(frozen=True, eq=False)
class Demo:
    """The three answers."""

    seed: int
    folder: Path
    odd: OddClients
    skew: SkewCost
    site: SiteModel

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answers in the order of the questions."""
        return self.odd, self.skew, self.site

    def as_mapping(self) -> dict[str, Any]:
        """Return sentences and numbers for JSON."""
        return {
            "seed": self.seed,
            "folder": str(self.folder),
            "federations": FEDERATIONS,
            "answers": [answer.as_mapping() for answer in self.answers],
        }

    def draw(self, path: Path) -> Path:
        """Write the answers as a page that opens in a browser, offline."""
        return write_page_about(self, "demo_page:demo_page", path)


def run_demo(
    folder: Path,
    seed: int = 0,
    listeners: Callable[[], Listeners] | None = None,
    on_question: Callable[[int, str], None] | None = None,
    on_answer: Callable[[Answer], None] | None = None,
) -> Demo:
    """Answer the three questions; a folder that holds part of the same demo is finished.

    `listeners` gives those of each step, `on_question` receives a question before it is worked on, and `on_answer` its
    answer. Results depend on the seed alone. Federations have seeds of their own: `seeds_of(seed)`.
    """
    seeds = seeds_of(seed)
    _claim(folder, seed)

    def step(number: int, question: str, answer: Callable[..., Any], *given: Any) -> Any:
        if on_question is not None:
            on_question(number, question)
        if listeners is None:
            found = answer(*given)
        else:
            with listeners() as (on_run, on_round):
                found = answer(*given, on_run, on_round)
        if on_answer is not None:
            on_answer(found)
        return found

    with _one_thread():
        odd: OddClients = step(1, OddClients.question, find_odd_clients, seeds[0])
        skew: SkewCost = step(2, SkewCost.question, measure_skew_cost, seeds, folder / "skew")
        bases = skew.comparison.runs[OURS]
        site: SiteModel = step(3, SiteModel.question, train_site_model, bases, folder / "on-demand")
    demo = Demo(seed, folder, odd, skew, site)
    write_json(folder / "answers.json", demo.as_mapping())
    return demo


def seeds_of(seed: int) -> tuple[int, ...]:
    """Return the seeds of a demo's federations; no two demos share one."""
    require(0 <= seed <= _MOST, f"seed must be a whole number from 0 to {_MOST:,}, not {seed}.")
    return tuple(_APART * (seed + 1) + number for number in range(FEDERATIONS))


def _claim(folder: Path, seed: int) -> None:
    """Make the folder, or refuse one that holds something else."""
    plan = folder / "demo.json"
    if plan.is_file():
        held = read_job_file(plan, "a demo", _DemoFile)["seed"]
        require(held == seed, f"The folder {folder} holds the demo of seed {held}; choose another --out.")
        return
    require_empty(folder, "demo")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(plan, {"format": FORMAT, "seed": seed})
    except OSError as error:
        raise Refusal(f"The folder {folder} cannot be written: {error.strerror or error}.") from error


def fresh_folder(folder: Path) -> Path:
    """Return `folder`, or the first of `folder-2`, `folder-3`, … that does not exist."""
    number, candidate = 2, folder
    while candidate.exists():
        candidate = folder.with_name(f"{folder.name}-{number}")
        number += 1
    return candidate


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: models this small lose more by handing work over than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
