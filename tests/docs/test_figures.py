"""Charts of the results page have the numbers of the tables, printed and measured, also those below zero."""

import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest

from tests.docs.page_blocks import ROOT


@pytest.fixture
def figures() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "_ext"))
        yield import_module("claim_tables")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("fedacs", ("+2.5", "+1.3 ± 0.5")),
        ("feddrl", ("+1.8", "+0.61 ± 1.70", "+2.9", "+0.46 ± 2.35")),
        ("ondemand", ("+8.0", "+4.4 ± 4.0", "+21.0", "+17.5 ± 14.4")),
        ("nccb", ("+1.7", "+0.49 ± 0.50", "+1.4", "-0.01 ± 0.96")),
    ],
)
def test_a_chart_has_what_is_printed_and_what_was_measured(
    figures: ModuleType, name: str, shown: tuple[str, ...]
) -> None:
    chart = figures.FIGURES[f"{name}-figure"]().replace("\u00a0", " ")
    assert [one for one in shown if f">{one}<" not in chart] == []
    assert f"<!-- measured: {name}-figure -->" in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_a_bar_below_zero_ends_where_one_above_begins(figures: ModuleType) -> None:
    chart = figures.bars("Points", {"one": [("a", "plain", -2.0, "-2"), ("b", "plain", 4.0, "+4")]})
    (left, wide), (zero, longer) = re.findall(r'x="([\d.]+)" y="\d+" width="([\d.]+)"', chart)
    assert float(left) + float(wide) == pytest.approx(float(zero))
    assert float(longer) == pytest.approx(2 * float(wide), abs=0.2)
