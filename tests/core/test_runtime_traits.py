"""Traits of runtimes: declared by name, defaults for everything else."""

import ast
from pathlib import Path

import pytest

import covey
from covey.core.runtime_traits import RuntimeTraits, declare_traits, traits_of
from covey.registries import runtimes
from covey.runtime import LocalRuntime


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(runtimes, "_entries", dict(runtimes._entries))
    runtimes.add("mine")(LocalRuntime.of)
    return "mine"


def test_only_a_fleet_is_live_and_only_stacked_runs_advance_in_lockstep() -> None:
    assert [name for name in runtimes.names() if traits_of(name).live] == ["fleet"]
    assert [name for name in runtimes.names() if traits_of(name).takes_fleet] == ["fleet"]
    assert [name for name in runtimes.names() if traits_of(name).lockstep] == ["stacked"]
    assert [name for name in runtimes.names() if traits_of(name).uses_device] == ["stacked"]


def test_a_runtime_without_traits_and_one_that_is_not_installed_have_the_defaults(mine: str) -> None:
    assert traits_of(mine) == traits_of("of-another-machine") == RuntimeTraits()


def test_a_runtime_of_another_package_declares_its_traits(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.core.runtime_traits._declared", {})
    declare_traits(mine, RuntimeTraits(live=True))
    assert traits_of(mine).live


def test_nothing_compares_the_name_of_a_runtime() -> None:
    found = [
        f"{path.name}:{node.lineno}"
        for path in Path(covey.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "runtime"
        if isinstance(node.comparators[0], ast.Constant) and isinstance(node.comparators[0].value, str)
    ]
    assert found == []
