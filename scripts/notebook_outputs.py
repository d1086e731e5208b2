"""Run the tutorials' notebooks and store what their cells show, so that readers see it without running anything.

python scripts/notebook_outputs.py docs/tutorials/first-comparison.ipynb

Each notebook runs in an empty folder. With --keep FOLDER its runs stay there.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    """Run each notebook that is named, and write it anew with its outputs."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("notebooks", nargs="+", type=Path)
    flags.add_argument("--keep", type=Path)
    given = flags.parse_args()
    for path in [one.resolve() for one in given.notebooks]:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        with contextlib.ExitStack() as held:
            folder = given.keep.resolve() if given.keep else Path(held.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(contextlib.chdir(folder))
            _run(notebook)
        path.write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _run(notebook: dict[str, Any]) -> None:
    names: dict[str, Any] = {}
    cells = [one for one in notebook["cells"] if one["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        cell["execution_count"] = number
        cell["outputs"] = _outputs("".join(cell["source"]), names, number)


def _outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Run a cell; return what it prints and the value of its last expression, as Jupyter stores them."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        shown = {"text/plain": _lines(_without_folder(repr(value)))}
        if hasattr(value, "_repr_html_"):
            shown["text/html"] = _lines(_without_folder(value._repr_html_()))
        outputs.append({"data": shown, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _without_folder(text: str) -> str:
    """Return text without the folder in which the notebook runs."""
    return text.replace(f"{Path.cwd()}{os.sep}", "")


if __name__ == "__main__":
    main()
