"""Equations in the code: comments and docstrings that name one, with the lines that follow."""

import ast
import importlib
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import takewhile

from page_text import cell, escaped, without_options

_NAMED = re.compile(r"\b(eq\.|equations?|algorithm|lines?) ?\d", re.IGNORECASE)


def named_lines(module: str) -> list[list[str]]:
    """Return the comments and docstrings of a module that name an equation or a line, with their places."""
    source = inspect.getsource(importlib.import_module(module))
    shown = module.removeprefix("covey.").replace(".", "/") + ".py"
    found = [*_comments(source), *_docstrings(source)]
    return [[f"{shown}:{line}", text] for line, text in sorted(found)]


def _comments(source: str) -> Iterator[tuple[int, str]]:
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or not _NAMED.search(token.string):
            continue
        at = token.start[0]
        comment = token.string.lstrip("# ")
        alone = lines[at - 1].lstrip().startswith("#")
        while alone and lines[at].lstrip().startswith("#"):
            comment += " " + lines[at].lstrip("# ")
            at += 1
        same = lines[at - 1][: token.start[1]].strip()
        following = [line.strip() for line in lines[at : at + 2]] if alone else [same]
        # What follows a return, or stands under another comment, belongs to something else.
        first = following[:1] if following[0].startswith("return ") else following
        code = [line for line in takewhile(lambda line: not line.startswith("#"), first) if line]
        yield token.start[0], "<br>".join([cell(escaped(comment)), *(f"`{cell(line)}`" for line in code)])


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        text = " ".join(without_options(ast.get_docstring(node) or "").split())
        named = _whole(re.split(r"(?<=[.:])\s+(?=[A-ZΣ`])", text))
        if named:
            name = "" if isinstance(node, ast.Module) else f"`{node.name}`: "
            line = 1 if isinstance(node, ast.Module) else node.lineno
            yield line, f"{name}{cell(escaped(' '.join(named)))}"


def _whole(sentences: list[str]) -> list[str]:
    """Return the sentences that name an equation, each with those before it without which it cannot be understood."""
    kept: set[int] = set()
    for at, one in enumerate(sentences):
        if not _NAMED.search(one):
            continue
        first = at
        while first and (_LEANS.match(sentences[first]) or " ".join(sentences[first : at + 1]).count('"') % 2):
            first -= 1
        kept |= set(range(first, at + 1))
    return [sentences[at] for at in sorted(kept)]


_LEANS = re.compile(r"(It|Its|So|They|Their|These|This|Then|The others)\b")
"""How a sentence begins whose subject stands in the one before."""


def outlined_lines(module: str) -> list[list[str]]:
    """Return the classes and functions of a module that say what they compute, with their places.

    For modules that name no equation: formulas of a class stand with it.
    """
    source = inspect.getsource(importlib.import_module(module))
    shown = module.removeprefix("covey.").replace(".", "/") + ".py"
    rows = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        text = without_options(ast.get_docstring(node) or "")
        first, *others = text.split("\n\n")
        kept = [first, *(one for one in others if isinstance(node, ast.ClassDef) and _FORMULA.search(one))]
        if text:
            rows.append((node.lineno, f"`{node.name}`: {cell(escaped(' '.join(' '.join(kept).split())))}"))
    return [[f"{shown}:{line}", text] for line, text in sorted(rows)]


_FORMULA = re.compile(r"[Σ‖∇←≥]")
