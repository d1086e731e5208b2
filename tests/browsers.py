"""The browser that tests open pages in, and the checks of accessibility that run in it."""

import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_ASK = (
    "from playwright.sync_api import sync_playwright as play\nwith play() as one: print(one.chromium.executable_path)"
)


@cache
def chromium() -> str | None:
    """Return the system's Chromium, or the one that `playwright install chromium` has put in its place."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    # Asked for in a process of its own: here, tests may have Playwright's loop running.
    answer = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=False)
    path = answer.stdout.strip()
    return path if path and Path(path).is_file() else None


@cache
def axe() -> str:
    """Return the script of axe-core, which comes with axe-playwright-python."""
    spec = find_spec("axe_playwright_python")
    assert spec is not None and spec.origin is not None, "axe-playwright-python is not installed: it is in covey[dev]"
    return Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")
