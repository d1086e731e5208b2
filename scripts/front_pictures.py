"""Take the pictures of the README and the documentation, light and dark: the demo's page, and a comparison's report.

python scripts/front_pictures.py --chromium /usr/bin/chromium [--page runs/demo/demo.html] [--report FOLDER/report.html]

Without --page the demo is run first; without --report, the comparison of the first tutorial. Playwright drives the
browser that is named; it downloads none.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "_static"
TUTORIAL = ROOT / "docs" / "tutorials" / "first-comparison.ipynb"
WIDTH = 1200
MARGIN = 12


def main() -> None:
    """Write demo-light.png and demo-dark.png, report-light.png and report-dark.png."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--chromium", required=True)
    flags.add_argument("--page", type=Path)
    flags.add_argument("--report", type=Path)
    given = flags.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        demo = given.page or _demo(Path(folder) / "demo")
        report = given.report or _report(Path(folder) / "report")
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for scheme in schemes:
            _picture(given.chromium, demo, scheme, "demo", "#cost h2", "#figure-skew-cost")
            _picture(given.chromium, report, scheme, "report", "body", "#figure-accuracy")


def _demo(folder: Path) -> Path:
    _covey("demo", "--out", str(folder))
    return folder / "demo.html"


def _report(folder: Path) -> Path:
    """Make the comparison that the first tutorial names, and its report."""
    line = re.search(r"covey (compare --methods [^\\]+)", TUTORIAL.read_text(encoding="utf-8"))
    assert line is not None
    _covey(*line[1].split(), "--out", str(folder))
    _covey("report", str(folder))
    return folder / "report.html"


def _covey(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "covey", *words], check=True)


def _picture(chromium: str, page: Path, scheme: Literal["light", "dark"], name: str, first: str, last: str) -> None:
    """Take a page from the top of one element to the end of another."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme=scheme)
        shown.goto(page.resolve().as_uri())
        shown.wait_for_selector(f"{last} .legend, {last} svg")
        shown.wait_for_timeout(2_000)
        top, figure = shown.locator(first).first.bounding_box(), shown.locator(last).bounding_box()
        assert top is not None and figure is not None
        begin, end = max(top["y"] - MARGIN, 0), figure["y"] + figure["height"] + MARGIN
        clip = {"x": 0, "y": begin, "width": WIDTH, "height": end - begin}
        shown.screenshot(path=PICTURES / f"{name}-{scheme}.png", full_page=True, clip=clip)
        browser.close()


if __name__ == "__main__":
    main()
