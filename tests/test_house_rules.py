"""House rules for the source: names, sizes of modules and seams."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import covey

PACKAGE = Path(covey.__file__).parent
SOURCES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
LONGEST = 400
"""Lines of a module, unless its docstring gives a reason."""


def modules() -> Iterator[Path]:
    return (path for path in SOURCES if path.name not in ("__init__.py", "__main__.py"))


def shown(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_at_most_ten_modules_lie_directly_under_the_package() -> None:
    assert len([path for path in SOURCES if path.parent == PACKAGE]) <= 10


def test_base_names_of_modules_are_unique_and_none_is_a_public_name() -> None:
    names = Counter(path.stem for path in modules())
    assert [name for name, count in names.items() if count > 1] == []
    folders = {path.parent.name for path in SOURCES if path.parent != PACKAGE}
    assert (set(names) | folders) & set(covey.__all__) == set()


def test_no_two_classes_have_one_name() -> None:
    classes = Counter(node.name for tree in SOURCES.values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in classes.items() if count > 1] == []


def test_modules_are_short_or_say_why_not() -> None:
    long = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    reasons = {shown(path): "lines" in (ast.get_docstring(tree) or "") for path, tree in SOURCES.items()}
    assert {name: lines for name, lines in long.items() if lines > LONGEST and not reasons[name]} == {}


def test_every_module_has_a_docstring() -> None:
    assert [shown(path) for path, tree in SOURCES.items() if not ast.get_docstring(tree)] == []


def test_nothing_shadows_round() -> None:
    found = []
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
            parameter = isinstance(node, ast.arg) and node.arg == "round"
            variable = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == "round"
            if isinstance(node, ast.arg | ast.Name) and (parameter or variable):
                found.append(f"{shown(path)}:{node.lineno}")
    # Fields of messages and records are attributes, and shadow nothing.
    fields = {
        f"{shown(path)}:{statement.lineno}"
        for path, tree in SOURCES.items()
        for body in ast.walk(tree)
        if isinstance(body, ast.ClassDef)
        for statement in body.body
        if isinstance(statement, ast.AnnAssign)
    }
    assert [place for place in found if place not in fields] == []


def test_nothing_asks_a_runtime_what_it_is() -> None:
    found = []
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                asked = ast.unparse(node.args[0])
                if node.func.id in ("getattr", "hasattr") and "runtime" in asked:
                    found.append(f"{shown(path)}:{node.lineno}")
    assert found == []


def test_no_argument_travels_through_the_environment() -> None:
    found = []
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and any(
                ast.unparse(target).startswith("os.environ[") for target in node.targets
            ):
                found.append(f"{shown(path)}:{node.lineno}")
    assert found == []
