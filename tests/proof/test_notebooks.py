"""The code of the notebooks runs as it stands, with all rounds and seeds."""

from pathlib import Path

from tests.docs.page_blocks import RUN, assert_pages_run


def test_the_notebooks_run(tmp_path: Path) -> None:
    notebooks = [path for path in RUN if path.suffix == ".ipynb"]
    assert len(notebooks) == 2
    assert_pages_run(notebooks, tmp_path)
