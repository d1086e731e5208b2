"""The folder of a comparison: which it is by default, and what happens to one that holds a comparison already."""

from pathlib import Path
from typing import Any

from covey.environment.federated_data import Federation
from covey.errors import Refusal
from covey.job.comparison.more_runs import same, with_more_runs
from covey.job.comparison.plan import file_name, is_comparison, read_plan
from covey.job.job_folder import require_empty
from covey.storage import FolderLock, write_json


def default_folder(plan: dict[str, Any]) -> Path:
    """Return the first of `runs/compare-<methods>`, `…-2`, `…-3`, … that is free or holds this very comparison."""
    folder = first = Path("runs") / file_name("-".join(["compare", *plan["methods"]]))
    number = 2
    while folder.exists() and not (is_comparison(folder) and same(read_plan(folder), plan)):
        folder = first.with_name(f"{first.name}-{number}")
        number += 1
    return folder


def claim(folder: Path, plan: dict[str, Any], federation: Federation | None = None) -> dict[str, Any]:
    """Make the folder of a comparison and return its plan.

    One that holds this comparison with fewer seeds, methods or rounds gets the others; anything else is refused.
    """
    found = is_comparison(folder)
    if not found:
        require_empty(folder, "comparison")
    else:
        begun = read_plan(folder)
        plan = with_more_runs(folder, begun, plan, federation)
        if plan == begun:
            return begun
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FolderLock(folder, "comparison"):
            if not found:
                require_empty(folder, "comparison")
            write_json(folder / "compare.json", plan)
    except OSError as error:
        raise Refusal(f"The output folder {folder} cannot be written: {error.strerror or error}.") from error
    return plan
