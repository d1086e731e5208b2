"""The documentation's sources: what they tell readers to type works, and links of texts beside them lead somewhere."""

import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from covey.cli.main import app
from covey.errors import Refusal
from tests.docs.page_blocks import (
    PAGES,
    ROOT,
    RUN,
    assert_pages_run,
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


def test_the_home_page_s_lines_fit_a_window_of_1280_points() -> None:
    lines = [line for _, text in blocks(ROOT / "docs" / "index.md") for line in text.splitlines()]
    assert len(lines) > 10
    assert [line for line in lines if len(line) > 90] == []


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
def test_the_python_of_tutorials_and_guides_runs(tmp_path: Path) -> None:
    """With fewer rounds, the wheel runs the notebooks' code; `tests/proof` runs it as it stands."""
    assert_pages_run([path for path in RUN if path.suffix == ".md"], tmp_path)


def _slugs(path: Path) -> set[str]:
    """Return the places of a Markdown text that links may name: its headings, as they are shown in links."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def dead_links(texts: list[Path]) -> list[str]:
    """Return the relative links of Markdown texts that lead to no file, or to no heading of one."""
    dead = []
    for text in texts:
        for link, place in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text.read_text("utf-8")):
            found = text.parent / link if link else text
            if "://" in link or link.startswith("mailto:"):
                continue
            if not found.exists() or (place and found.suffix == ".md" and place not in _slugs(found)):
                dead.append(f"{text.relative_to(text.parents[1])}: {link}{'#' * bool(place)}{place}")
    return dead


def test_relative_links_of_the_repository_s_texts_lead_somewhere() -> None:
    texts = [*ROOT.glob("*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("benchmarks/*.md")]
    written = [path for path in PAGES if path.suffix == ".md" and path.parent.name != "results"]
    generated = ("methods/", "reference/")
    left = [one for one in dead_links([*texts, *written]) if not any(f"{name}" in one for name in generated)]
    assert left == []


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One\n\n[x](#one) [x](#two) [x](b.md) [x](a.md#one) [x](a.md#three)\n")
    found = [one.partition(": ")[2] for one in dead_links([tmp_path / "a.md"])]
    assert found == ["#two", "b.md", "a.md#three"]


def test_the_first_tutorial_shows_its_outputs_on_the_built_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx", reason="sphinx is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    text = (ROOT / "docs" / "tutorials" / "first-comparison.ipynb").read_text(encoding="utf-8")
    page = import_module("site_pages").notebook_page(text)
    cells = [one for one in json.loads(text)["cells"] if one["cell_type"] == "code"]
    silent = [cell for cell in cells if not cell["outputs"]]
    assert ["".join(cell["source"]).splitlines()[0] for cell in silent] == ["import covey"]
    assert page.index("<td>covey</td>") < page.index("\ncovey: +") < page.index("report-light.png")
    assert not re.search(r"/tmp|/work|/home", "".join(json.dumps(cell["outputs"]) for cell in cells))


def test_pages_that_a_build_completes_say_so_to_readers_of_the_source_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    site = import_module("site_pages")
    made = re.compile(r"\]\((\.\./)*(methods|reference)/|^<!-- (quote|measured|verdicts): ", re.MULTILINE)
    for page in (page for page in PAGES if page.suffix == ".md"):
        assert (site.UNBUILT in page.read_text(encoding="utf-8")) == bool(made.search(page.read_text(encoding="utf-8")))
    page = ROOT / "docs" / "explanation" / "which-method.md"
    source = [page.read_text(encoding="utf-8")]
    built = SimpleNamespace(env=SimpleNamespace(doc2path=lambda name: page))
    site._complete(built, "explanation/which-method", source)
    assert "unbuilt" not in source[0]
    assert "<!-- quote" not in source[0]
