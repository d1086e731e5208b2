"""`covey demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.cli import terminal as display
from covey.cli.flags import JsonFlag, OutFlag, print_json
from covey.errors import Refusal
from covey.job.progress_display import comparison_progress

if TYPE_CHECKING:
    from covey.job.demo.demo_job import Answer


def demo(
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of everything in the demo.")] = 0,
    out: OutFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Answer three questions on handwritten digits, in about a minute.

    Who is odd? What does skew cost, and what wins it back? Can one site have a model for its own mix? It needs no
    network, and writes a page with the answers.

    Example: covey demo --seed 7
    """
    from covey.job.demo import fresh_folder, run_demo

    def on_question(number: int, question: str) -> None:
        if json_:
            return
        if number == 1:
            display.say(f"Three questions, answered by experiments on handwritten digits (seed {seed}).\n")
        display.say(f"{number}. {question}")

    def on_answer(answer: "Answer") -> None:
        if not json_:
            display.say(f"   {answer.sentence}\n   With your data: {answer.command}\n")

    folder = out or fresh_folder(Path("runs/demo"))
    result = run_demo(folder, seed, comparison_progress, on_question, on_answer)
    page: Path | None = None
    reason = ""
    try:
        page = result.draw(folder / "demo.html")
    except Refusal as refusal:
        reason = str(refusal)
    if json_:
        print_json({**result.as_mapping(), "page": None if page is None else str(page)})
        return
    federations = len(result.skew.comparison.runs["fedavg"])
    display.say(f"± is a 95 % interval over {federations} federations, each with its own split and first model.")
    display.say(f"Page: {page}" if page else f"No page: {reason}")
