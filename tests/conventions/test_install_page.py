"""The page about installing names every extra, with the packages that it brings."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def package(requirement: str) -> str:
    """Return the name in a requirement such as `flwr[simulation]>=1.41`."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return found[0]


def test_the_table_of_extras_is_that_of_the_project() -> None:
    rows = re.findall(r"^\| `([a-z]+)` \| ([^|]+) \| [^|]+ \|$", PAGE, re.MULTILINE)
    extras = PROJECT["optional-dependencies"]
    assert {name: packages.strip().split(", ") for name, packages in rows} == {
        name: [package(one) for one in needed] for name, needed in extras.items()
    }


def test_the_lowest_version_of_python_is_that_of_the_project() -> None:
    found = re.search(r"Python (\d\.\d+) or newer", PAGE)
    assert found
    assert PROJECT["requires-python"] == f">={found[1]}"


def test_the_page_is_in_the_contents() -> None:
    assert re.search(r"^install$", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_no_text_installs_covey_from_an_index() -> None:
    """It is published in none: there, the name could be anybody's."""
    written = ("", "tutorials", "how-to", "explanation", "results")
    pages = [
        path for folder in written for path in (ROOT / "docs" / folder).iterdir() if path.suffix in (".md", ".ipynb")
    ]
    texts = [path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"] + list(ROOT.glob("examples/**/*.md"))
    texts += ROOT.glob("src/**/*.py")
    wrong = re.compile(r"""pip install[^`\n#]* ["']?covey(?![\w/])""")
    assert [path.name for path in [*texts, *pages] if wrong.search(path.read_text(encoding="utf-8"))] == []
    assert wrong.search("pip install 'covey[report]'") and not wrong.search(
        "pip install '.[report]'  # then covey demo"
    )
