"""The fenced blocks of Markdown pages and notebooks: commands, Python, and files that pages have readers write."""

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

import covey
from covey.cli.flags import settings
from covey.cli.main import app
from covey.config.schema import Config, known_keys
from covey.core.checkpoint import FORMAT
from covey.errors import Refusal, require
from covey.job.comparison.plan import variants_of
from covey.job.comparison.whose_settings import without_use

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for folder in ("docs", "docs/tutorials", "docs/how-to", "docs/explanation", "docs/results")
    for path in (ROOT / folder).iterdir()
    if path.suffix in (".md", ".ipynb")
)
RUN = [path for path in PAGES if path.parent.name in ("tutorials", "how-to") or path.stem == "file-formats"]
"""Pages whose Python runs, from top to bottom."""

_FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_PROGRAM = re.compile(r"^(?:\$ )?(?:PYTHONPATH=\S+ )?(?:\.venv/bin/)?covey\s")


def blocks(path: Path) -> list[tuple[str, str]]:
    """Return language and text of every block of a page; code cells of a notebook are Python."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return _fenced(text)
    found = []
    for one in json.loads(text)["cells"]:
        source = "".join(one["source"])
        found += [("python", source)] if one["cell_type"] == "code" else _fenced(source)
    return found


def _fenced(text: str) -> list[tuple[str, str]]:
    found = []
    for indent, language, body in _FENCE.findall(text):
        lines = [line.removeprefix(indent) for line in body.splitlines()]
        found.append((language.strip(), "\n".join(lines) + "\n"))
    return found


def files(path: Path) -> dict[str, str]:
    """Return the files that a page has readers write: blocks whose first line is a comment with a file's name."""
    named = ((re.match(r"# (\w+\.(?:py|toml))\n", text), text) for _, text in blocks(path))
    return {name[1]: text for name, text in named if name}


def python(path: Path) -> list[str]:
    """Return the Python blocks of a page that are no files."""
    return [text for language, text in blocks(path) if language == "python" and not re.match(r"# \w+\.py\n", text)]


def assert_pages_run(pages: Sequence[Path], folder: Path) -> None:
    """Assert that the Python of pages runs, in a process of its own."""
    command = [sys.executable, "-m", "tests.docs.run_pages", str(folder), *map(str, pages)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{len(pages)} pages")


def command_lines(path: Path) -> list[str]:
    """Return every `covey` command of a page's blocks, without comments."""
    shells = ("", "sh", "bash", "console")
    return [line for language, text in blocks(path) if language in shells for line in _lines(text)]


def mentioned_commands(path: Path) -> list[str]:
    """Return the commands in the running text and the tables of a page: `covey ...`."""
    pages = [path.read_text(encoding="utf-8")]
    if path.suffix == ".ipynb":
        pages = ["".join(one["source"]) for one in json.loads(pages[0])["cells"] if one["cell_type"] == "markdown"]
    found = re.findall(r"`covey ([^`]+)`", "\n".join(_FENCE.sub("", one) for one in pages))
    return [" ".join(one.split()) for one in found]


def _lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        if _PROGRAM.match(line.strip()):
            yield _PROGRAM.sub("", line.strip())


def check_command(line: str, whole: bool = True) -> None:
    """Parse a command as the command line does, and resolve the settings that it gives; raise what it would refuse.

    A command that is only mentioned, and not `whole`, may lack what it needs; `…` stands for anything.
    """
    words = shlex.split(line, comments=True)
    if not whole:
        words = [word for at, word in enumerate(words) if word != "…" or words[at - 1].startswith("-")]
    command: Any = typer.main.get_command(app)
    while subcommands := getattr(command, "commands", None):
        # `covey --version` and the like belong to no command.
        if not words or words[0].startswith("-"):
            break
        if words[0] not in subcommands:
            raise Refusal(f"There is no command '{words[0]}'.")
        command = subcommands[words.pop(0)]
    if "--help" in words or "--version" in words:
        return
    if subcommands:
        require(not words and not whole, f"'covey {line}' is no whole command.")
        return
    try:
        given = command.make_context("covey", words).params
    except typer.BadParameter as misuse:
        if whole or type(misuse).__name__ != "MissingParameter":
            raise
        return
    _resolve(command.name, given)


def _resolve(name: str, given: Mapping[str, Any]) -> None:
    keys = {*known_keys(), "poison", "attackers"}
    flags = {key: value for key, value in given.items() if key in keys and isinstance(value, str | int | float)}
    config = Path(given.get("config") or "")
    chosen = settings(config if config.is_file() else None, flags, given.get("set_"))
    environment = chosen.get("environment")
    if environment == "natural" or (isinstance(environment, dict) and environment.get("name") == "natural"):
        # Otherwise they are counted in the data, which is not here.
        chosen.setdefault("clients", 4)
    if name == "compare":
        varied = {key: values.split(",") for key, _, values in (one.partition("=") for one in given["vary"] or [])}
        methods = given["methods"].split(",")
        variants_of(
            {
                "format": FORMAT,
                "methods": methods,
                "seeds": [0],
                "vary": varied,
                "unvaried": without_use(methods, chosen, varied),
                "given": chosen,
                "agents": {},
                "fairness": given["fairness"],
            }
        )
    elif name in ("run", "describe", "analyze"):
        Config.of(chosen)


def check_python(source: str) -> None:
    """Compile a block, and look up every name of covey that it imports or uses."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.split(".")[0] == "covey":
                    import_module(one.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "covey":
            module = import_module(node.module or "covey")
            for one in node.names:
                assert hasattr(module, one.name), f"{node.module} has no {one.name}"
        elif isinstance(node, ast.Attribute):
            _look_up(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("covey.run", "covey.compare"):
            known = {*known_keys(), *_parameters(ast.unparse(node.func))}
            unknown = [one.arg for one in node.keywords if one.arg and one.arg not in known]
            assert unknown == [], f"{ast.unparse(node.func)} knows no {', '.join(unknown)}"


def _parameters(name: str) -> set[str]:
    function = getattr(covey, name.removeprefix("covey."))
    return set(function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount])


def _look_up(path: str) -> None:
    if not re.fullmatch(r"covey(\.\w+)+", path):
        return
    found: Any = covey
    for name in path.split(".")[1:]:
        if not hasattr(found, name):
            # A subpackage is an attribute once it is imported.
            import_module(f"{found.__name__}.{name}")
        found = getattr(found, name)
