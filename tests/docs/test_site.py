"""The documentation: what it tells readers to type works, it builds without a warning, and its links lead somewhere."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer

from covey.cli.main import app
from covey.config.reference import settings_reference
from covey.errors import Refusal
from covey.registries import methods
from tests.docs.page_blocks import (
    PAGES,
    ROOT,
    RUN,
    blocks,
    check_command,
    check_python,
    command_lines,
    files,
    mentioned_commands,
)

TEXTS = [*PAGES, ROOT / "README.md", ROOT / "examples" / "README.md"]


@pytest.fixture
def page_files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the files of a page to the current folder, from where commands import parts of readers' own."""
    page: Path = request.param
    for name, text in files(page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "own"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield page
    for name in {Path(one).stem for one in files(page)} | {"fair", "rings", "narrow"}:
        if name not in before:
            sys.modules.pop(name, None)


@pytest.mark.parametrize("page_files", TEXTS, ids=lambda page: page.stem, indirect=True)
def test_the_command_line_takes_every_command_of_a_page(page_files: Path) -> None:
    faults = []
    mentioned = dict.fromkeys(mentioned_commands(page_files), False)
    for line, whole in {**mentioned, **dict.fromkeys(command_lines(page_files), True)}.items():
        try:
            check_command(line, whole)
        except Exception as fault:
            faults.append(f"covey {line}: {type(fault).__name__}: {fault}")
    assert faults == []


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_every_block_of_python_compiles_and_names_what_covey_has(page: Path) -> None:
    for language, text in blocks(page):
        if language == "python":
            check_python(text)


def test_a_wrong_command_and_a_wrong_name_are_found() -> None:
    for line in ("run --rouds 3", "run --set local.speed=3", "go", "compare --methods fedavg,fedacsx"):
        with pytest.raises(Exception, match=r"rouds|speed|go|fedacsx"):
            check_command(line)
    for source in ("import covey\ncovey.runn()", "from covey import Selektor", "covey.run(round=3)"):
        with pytest.raises((AssertionError, ImportError)):
            check_python(source)


def test_every_example_in_a_command_s_help_is_taken_by_the_command_line() -> None:
    faults = []
    for command in typer.main.get_command(app).commands.values():  # type: ignore[attr-defined]
        for line in re.findall(r"Example: covey (.*)", command.help or ""):
            try:
                check_command(line)
            except (Refusal, ValueError) as fault:
                faults.append(f"covey {line}: {fault}")
    assert faults == []


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedacs", "scaffold"])
def test_the_bytes_on_the_pages_of_methods_are_those_of_a_run(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    method_bytes = import_module("method_bytes")
    stored = json.loads(method_bytes.FILE.read_text(encoding="utf-8"))["methods"]
    assert method_bytes.cost(method, tmp_path, method_bytes.model_bytes(tmp_path)) == stored[method]


@pytest.mark.slow
@pytest.mark.integration
def test_the_python_of_tutorials_guides_and_notebooks_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.docs.run_pages", str(tmp_path), *map(str, RUN)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{len(RUN)} pages")


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


@pytest.mark.slow
@pytest.mark.integration
def test_the_site_builds_without_a_warning_loads_nothing_from_elsewhere_and_has_no_dead_link(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-q", "-b", "html"]
    places = ["-d", str(tmp_path / "trees"), "docs", str(tmp_path / "html")]
    done = subprocess.run([*command, *places], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    site = {path.relative_to(tmp_path / "html").as_posix(): path for path in (tmp_path / "html").rglob("*.html")}
    pages = {name: Links(path.read_text(encoding="utf-8")) for name, path in site.items()}
    assert {f"methods/{name}.html" for name in methods.names()} <= set(pages)
    assert _dead(tmp_path / "html", pages) == []
    assert [(name, one) for name, page in pages.items() for one in page.loaded if urlsplit(one).netloc] == []
    settings = (tmp_path / "html" / "reference" / "settings.html").read_text(encoding="utf-8")
    assert [one["name"] for one in settings_reference() if f">{one['name']}<" not in settings] == []
    assert "fedacs" in (tmp_path / "html" / "searchindex.js").read_text(encoding="utf-8")


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


def test_relative_links_of_the_repository_s_other_texts_lead_somewhere() -> None:
    texts = [ROOT / "README.md", *ROOT.glob("examples/**/*.md"), *ROOT.glob("benchmarks/*.md")]
    links = {(text, link) for text in texts for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text.read_text("utf-8"))}
    dead = [(text.name, link) for text, link in links if "://" not in link and not (text.parent / link).exists()]
    assert dead == []
