"""The name of data that was passed in from Python, which cannot be loaded."""

from pathlib import Path

from covey.data.dataset import Dataset
from covey.errors import Refusal
from covey.registries import datasets


@datasets.add("given")
def given(data_dir: Path | None, /, *, fingerprint: str = "") -> Dataset:
    """Data passed in from Python as covey.run(federation=...); runs on it are resumed with the same federation."""
    raise Refusal(
        "This run's data was passed in from Python; resume it there, with the same federation: "
        "covey.resume(folder, federation=...) or covey.Run.open(folder, federation)."
    )
