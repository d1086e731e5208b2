"""Flower's private names that Covey uses: all are imported in one module, and all exist."""

import ast
import inspect
from importlib.metadata import version
from pathlib import Path

import pytest

from covey.flower import private_api
from covey.flower.private_api import PRIVATE, PrivateName, missing_names

SOURCES = Path(private_api.__file__).parents[1]
PUBLIC = {"flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation"}


def flower_imports(path: Path) -> list[tuple[str, str, str]]:
    """Module, name and local name of everything that a file imports from Flower, wherever it does."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(one.name, "", one.asname or one.name) for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.module, one.name, one.asname or one.name) for one in node.names]
    return [one for one in found if one[0] == "flwr" or one[0].startswith("flwr.")]


def test_flower_still_has_every_private_name_that_covey_uses():
    missing = missing_names()
    assert not missing, f"Flower {version('flwr')} lacks what Covey uses of it: {', '.join(missing)}."


@pytest.mark.slow
def test_no_other_module_imports_a_private_part_of_flower():
    offending = [
        f"{path.relative_to(SOURCES)} imports {module}.{name}"
        for path in sorted(SOURCES.rglob("*.py"))
        if path.name != "private_api.py"
        for module, name, _ in flower_imports(path)
        if module not in PUBLIC
    ]
    assert not offending, f"Private names of Flower belong in flower/private_api.py: {'; '.join(offending)}."


def test_the_table_is_what_types_are_checked_against():
    typed = {local: (module, name) for module, name, local in flower_imports(Path(inspect.getfile(private_api)))}
    typed.pop("AppMessage")
    assert typed == {local: (entry.module, entry.name) for local, entry in PRIVATE.items()}


def test_every_private_name_is_used():
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py") if path.name != "private_api.py")
    through_functions = {"TaskIdentity"}
    assert [name for name in PRIVATE if name not in text and name not in through_functions] == []


@pytest.mark.parametrize("module", ["flwr.supercore.nowhere", "flwr.app"])
def test_a_name_that_flower_took_away_is_named(monkeypatch, module):
    monkeypatch.setitem(PRIVATE, "Gone", PrivateName(module, "Gone", "open a run"))
    assert missing_names() == [f"{module}.Gone"]
    with pytest.raises(ImportError, match=rf"has no {module}\.Gone, which Covey needs to open a run"):
        _ = private_api.Gone


def test_a_member_that_flower_took_away_is_named(monkeypatch):
    monkeypatch.setitem(PRIVATE, "Fab", PRIVATE["Fab"]._replace(members=("gone",)))
    assert missing_names() == ["flwr.supercore.fab.Fab.gone"]
