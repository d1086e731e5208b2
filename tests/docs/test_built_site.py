"""The built documentation: no warning, no dead link, nothing missing, and a browser opens and searches it offline."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from covey.config.reference import settings_reference
from covey.registries import methods
from tests.browsers import chromium
from tests.docs.page_blocks import ROOT, check_command, command_lines
from tests.programs import PATIENCE

pytest.importorskip("sphinx", reason="sphinx is not installed")
pytest.importorskip("furo", reason="furo is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.integration]

DOCS = ROOT / "docs"
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
LOOKED_AT = ("index", "methods/index", "methods/fedacs", "reference/settings", "results", "benchmarks", "privacy")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the documentation as `make docs` does, once for all tests of this file."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-q", "-b", "html"]
    places = ["-d", str(folder / "trees"), "docs", str(folder / "html")]
    done = subprocess.run([*command, *places], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "html"


class Links(HTMLParser):
    """The places of a page that links may name, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("next", "prev", "index", "search", "author"):
            self.loaded.append(given.get("href", ""))
        elif "src" in given:
            self.loaded.append(given["src"])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Links]:
    return {path.relative_to(site).as_posix(): Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_no_link_is_dead_and_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[str, Links]) -> None:
    assert _dead(site, pages) == []
    assert [(name, one) for name, page in pages.items() for one in page.loaded if urlsplit(one).netloc] == []


def _dead(site: Path, pages: dict[str, Links]) -> list[str]:
    by_path = {(site / name).resolve(): page for name, page in pages.items()}
    dead = []
    for name, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            # A link without a path leads to a place on its own page.
            found = (site / name).parent.joinpath(unquote(parts.path) or Path(name).name).resolve()
            places = by_path[found].anchors if found in by_path else {parts.fragment}
            lacking = bool(parts.fragment) and unquote(parts.fragment) not in places
            if lacking or not found.exists():
                dead.append(f"{name}: {link}")
    return dead


def test_a_dead_link_and_a_lost_place_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="#top"></a><a href="#low"></a><a href="b.html"></a>')
    pages = {"a.html": Links((tmp_path / "a.html").read_text())}
    assert _dead(tmp_path, pages) == ["a.html: #low", "a.html: b.html"]


def test_every_method_and_every_setting_has_its_place(site: Path, pages: dict[str, Links]) -> None:
    assert {f"methods/{name}.html" for name in methods.names()} <= set(pages)
    settings = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    assert [one["name"] for one in settings_reference() if f">{one['name']}<" not in settings] == []


def test_every_method_s_page_answers_the_same_questions(site: Path) -> None:
    asked = [
        *("When to use it", "When not to use it", "Paper", "Equations, and the lines that compute them", "Options"),
        *("What a client sends", "What it costs", "Measured"),
    ]
    lacking = [
        f"{name}: {head}"
        for name in methods.names()
        for head in asked
        if not re.search(rf"^## {head}\n\n\S", (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8"), re.M)
    ]
    assert lacking == []


def test_every_option_argument_and_flag_has_a_meaning(site: Path) -> None:
    generated = [DOCS / "reference" / f"{name}.md" for name in ("settings", "parts", "commands")]
    generated += sorted((DOCS / "methods").glob("*.md"))
    blank = [
        f"{path.name}: {line}"
        for path in generated
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `") and line.endswith("|  |")
    ]
    assert blank == []


def test_the_command_line_takes_the_commands_of_generated_pages(site: Path) -> None:
    lines = [line for path in sorted((DOCS / "methods").glob("*.md")) for line in command_lines(path)]
    assert len(lines) > 2 * len(methods.names())
    for line in lines:
        check_command(line)


def test_every_written_meaning_has_its_option(site: Path) -> None:
    texts = tomllib.loads((DOCS / "_ext" / "option_texts.toml").read_text(encoding="utf-8"))["texts"]
    shown = {name: (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8") for name in ("parts", "commands")}
    left = [
        f"{place}: {name}"
        for place, given in texts.items()
        for name in given
        if (f"`{name}`" not in shown["commands"]) and (f"`{place.partition('.')[0]}.{name}`" not in shown["parts"])
    ]
    assert left == []


def test_figures_of_benchmarks_and_verdicts_are_those_of_the_results(site: Path) -> None:
    benchmarks = (site / "benchmarks.html").read_text(encoding="utf-8")
    assert benchmarks.count('<figure class="bars">') == 3
    for row in ("512,356", "1,643", "covey-W3-bf16-10", "cd903a1c06"):
        assert row in benchmarks
    results = (site / "results.html").read_text(encoding="utf-8")
    for text in ("does not hold", "+1.3\u00a0±\u00a00.5", "-9.6\u00a0±\u00a011.4"):
        assert text in results


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if chromium() is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as play:
        one = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield one
        one.close()


class Watched:
    """A page of a browser, what went wrong on it, and what it asked of other machines."""

    def __init__(self, browser: Any, size: tuple[int, int] = (1280, 900), scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("requestfailed", lambda request: self.faults.append(request.url))
        self.page.on(
            "request", lambda one: self.faults.append(one.url) if "//" in one.url[5:] and _leaves(one) else None
        )

    def open(self, path: Path) -> Any:
        self.page.goto(path.as_uri())
        return self.page


def _leaves(request: Any) -> bool:
    return urlsplit(request.url).scheme not in ("file", "data", "blob")


@pytest.mark.parametrize(
    ("words", "found"),
    [("fedacs", "methods/fedacs.html"), ("local.proximal", "reference/settings.html"), ("reproduce", "results.html")],
)
def test_search_finds_methods_and_settings_from_files(site: Path, browser: Any, words: str, found: str) -> None:
    watched = Watched(browser)
    page = watched.open(site / "index.html")
    page.fill("input[name=q]", words)
    page.press("input[name=q]", "Enter")
    page.wait_for_selector(f'ul.search a[href*="{found}"]', timeout=1000 * PATIENCE)
    page.click(f'ul.search a[href*="{found}"]')
    # A click does not wait for the page that it leads to.
    page.wait_for_url(lambda url: found in url, timeout=1000 * PATIENCE)
    assert watched.faults == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_their_window_and_can_be_read(site: Path, browser: Any, size: str, scheme: str) -> None:
    watched = Watched(browser, SIZES[size], scheme)
    for name in LOOKED_AT:
        page = watched.open(site / f"{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0], name
        for what in ("article p", "article td", "article a", "figure.bars text"):
            assert page.evaluate(_CONTRAST, what) >= 4.5, f"{name}: {what}"
    assert watched.faults == []


_CONTRAST = """what => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const one = document.querySelector(what);
  if (!one) return 21;
  const style = getComputedStyle(one);
  const ink = light(numbers(one instanceof SVGElement ? style.fill : style.color));
  let ground = one;
  const back = element => numbers(getComputedStyle(element).backgroundColor);
  while (ground.parentElement && back(ground)[3] === 0) ground = ground.parentElement;
  const paper = light(back(ground)[3] === 0 ? [255, 255, 255] : back(ground));
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}"""
"""Contrast of the first such text with what lies behind it, as WCAG counts it: 4.5 is enough for running text."""
