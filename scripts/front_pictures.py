"""Take the README's two pictures, light and dark: what skew costs, on the page that `covey demo` writes.

python scripts/front_pictures.py --chromium /usr/bin/chromium [--page runs/demo/demo.html]

Without --page the demo is run first. Playwright drives the browser that is named; it downloads none.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "_static"
WIDTH = 1100
MARGIN = 24


def main() -> None:
    """Write demo-light.png and demo-dark.png."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--chromium", required=True)
    flags.add_argument("--page", type=Path)
    given = flags.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = given.page
        if page is None:
            subprocess.run([sys.executable, "-m", "covey", "demo", "--out", folder], check=True)
            page = Path(folder) / "demo.html"
        for scheme in ("light", "dark"):
            _picture(given.chromium, page.resolve().as_uri(), scheme, PICTURES / f"demo-{scheme}.png")


def _picture(chromium: str, address: str, scheme: Literal["light", "dark"], place: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme=scheme)
        shown.goto(address)
        shown.wait_for_selector("#figure-skew-cost .legend, #figure-skew-cost svg")
        shown.wait_for_timeout(2_000)
        top = shown.locator("#cost h2").bounding_box()
        figure = shown.locator("#figure-skew-cost").bounding_box()
        assert top is not None and figure is not None
        begin, end = top["y"] - MARGIN, figure["y"] + figure["height"] + MARGIN
        shown.screenshot(path=place, full_page=True, clip={"x": 0, "y": begin, "width": WIDTH, "height": end - begin})
        browser.close()


if __name__ == "__main__":
    main()
