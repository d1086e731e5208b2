"""Folders of jobs: names that are free, folders that are empty, and files that say which job a folder holds."""

from datetime import datetime
from pathlib import Path
from typing import Any

from covey.core.checkpoint import FORMAT
from covey.errors import Refusal, require
from covey.storage import LOCK, misfit, read_json

_BEFORE_A_JOB = (LOCK, "compare.json.part", "ondemand.json.part", "base.safetensors", "base.safetensors.part")
"""Files that a job may leave if it is killed before it writes what it is."""


def free_folder(name: str) -> Path:
    """Return `runs/<time>-<name>`, numbered if it exists."""
    first = folder = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    number = 2
    while folder.exists():
        folder = first.with_name(f"{first.name}-{number}")
        number += 1
    return folder


def require_empty(folder: Path, kind: str) -> None:
    """Refuse a folder that holds something else than a job of this kind, such as "comparison"."""
    try:
        if not folder.exists():
            return
        if not folder.is_dir() or any(path.name not in _BEFORE_A_JOB for path in folder.iterdir()):
            raise Refusal(f"The output folder {folder} is not empty and holds no {kind}; choose another --out.")
    except OSError as error:
        raise Refusal(f"The output folder {folder} cannot be read: {error.strerror or error}.") from error


def read_job_file(path: Path, kind: str, content_type: Any) -> dict[str, Any]:
    """Read the JSON file that describes a job, a typed dictionary; `kind` names the job, such as "a comparison"."""
    try:
        content: dict[str, Any] = read_json(path.read_text(encoding="utf-8"))
        version = int(content["format"])
        fault = None if version > FORMAT else misfit(content, content_type, "its content")
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        version, fault = 0, str(error)
    require(not fault, f"{path.parent} is not {kind}: its {path.name} cannot be read ({fault}).")
    if version > FORMAT:
        raise Refusal(
            f"{path.parent} was made by a newer version of Covey (format {version}; this one reads up to {FORMAT})."
        )
    return content
