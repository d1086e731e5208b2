"""Generated pages of methods: nothing that a method sets is left out, and sentences have their subjects."""

from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from types import ModuleType

import pytest

from covey.config.recipe import Recipe
from covey.registries import methods
from tests.docs.page_blocks import ROOT

SECTIONS = {"selecting": "selector", "weighing": "aggregator", "training": "trainer"}
"""Fields of a recipe whose settings have another name."""


@pytest.fixture(scope="module")
def extension() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        patch.syspath_prepend(str(ROOT / "docs" / "_ext"))
        yield import_module("method_pages")


@pytest.fixture(scope="module")
def pages(extension: ModuleType) -> dict[str, str]:
    found: dict[str, str] = extension.pages()
    return found


def test_all_that_a_method_sets_is_among_its_options(extension: ModuleType, pages: dict[str, str]) -> None:
    given = [field.name for field in fields(Recipe) if field.default_factory is dict]
    assert {"local", "server", "averaging"} <= set(given)
    lacking = [
        f"{entry.name}: {section}.{name}"
        for entry in methods
        for field in given
        for section in [SECTIONS.get(field, field)]
        for name, value in getattr(entry.part, field).items()
        if not _stands(pages[f"methods/{entry.name}.md"], f"{section}.{name}", extension.shown_value(value))
    ]
    assert lacking == []


def _stands(page: str, option: str, value: str) -> bool:
    return any(line.startswith(f"| `{option}` |") and f"| `{value}` |" in line for line in page.splitlines())


def test_a_page_tells_where_a_method_sets_an_option_of_a_part(pages: dict[str, str]) -> None:
    for name in ("scaffold", "feddyn", "power-of-choice"):
        (row,) = [line for line in pages[f"methods/{name}.md"].splitlines() if line.startswith("| `aggregator` |")]
        assert row.endswith("Here with `aggregator.weighted=false`. |")
    assert "Here with" not in pages["methods/fedavg.md"]


def test_code_beside_an_equation_is_its_own_alone(pages: dict[str, str]) -> None:
    assert "contrast = F.softplus" in pages["methods/moon.md"]
    assert not [name for name, text in pages.items() if "<br>`#" in text]


def test_what_lines_compute_begins_with_its_subject(pages: dict[str, str]) -> None:
    fedacs = pages["methods/fedacs.md"]
    assert "`fedacs.py:1` | Each round's clients send an insight" in fedacs
    for text in pages.values():
        rows = text.partition("## Equations")[2].partition("\n## ")[0]
        assert not any(f" | {word} " in rows for word in ("It", "Its", "So", "Then"))


def test_numbers_are_those_of_the_paper_only_where_there_is_one(pages: dict[str, str]) -> None:
    assert "Numbers are those of the paper. " in pages["methods/fedacs.md"]
    for name in ("covey", "central"):
        assert "Numbers are those of the papers that the lines name. " in pages[f"methods/{name}.md"]


def test_a_page_says_once_when_not_to_use_a_method(pages: dict[str, str]) -> None:
    assert pages["methods/fedacs.md"].count("the minority is hardly invited") == 1


def test_data_in_one_place_are_not_shown_as_free_of_bytes(pages: dict[str, str]) -> None:
    (row,) = [line for line in pages["methods/index.md"].splitlines() if line.startswith("| [central]")]
    assert "uniform" not in row and "0.0" not in row and "all data" in row
    assert "sends 0.00 times" not in pages["methods/central.md"]
