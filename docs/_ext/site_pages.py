"""Sphinx extension: makes the generated pages before a build, and completes the written ones.

Generated pages lie in `docs/methods` and `docs/reference`, which git ignores. In written pages, a line `? NAME` of a
table of contents is kept if the page exists, and `? *` stands for all pages of this folder that nobody else names. A
comment `quote:` is replaced by a table of a results page (`page_text.with_quotes`), `measured:` by a table or figure of
a benchmark (`benchmark_tables.MEASURED`), `verdicts:` by the verdicts of a results page (`claim_tables`). The line
`UNBUILT`, for readers of the source, is left out.
"""

import json
import re
from pathlib import Path
from typing import Any

import claim_tables
import method_pages
import reference_pages
from benchmark_tables import MEASURED
from page_text import DOCS, with_quotes
from sphinx.util import logging

_LOG = logging.getLogger(__name__)
_GENERATED = ("methods", "reference")
UNBUILT = (
    "> You read this page unbuilt. `make docs` makes the pages under `methods/` and `reference/`, and fills in tables "
    "of results."
)
_MEASURED = {**MEASURED, **claim_tables.FIGURES}


def setup(app: Any) -> dict[str, bool]:
    """Have Sphinx call us before it looks for pages, and for each page that it reads."""
    app.connect("config-inited", _generate)
    app.connect("env-get-outdated", _completed)
    app.connect("source-read", _complete)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _generate(app: Any, config: Any) -> None:
    """Write the generated pages; those that did not change keep their time, so that they are not read again."""
    found = {**method_pages.pages(), **reference_pages.pages()}
    for folder in _GENERATED:
        for path in (DOCS / folder).glob("*.md"):
            if f"{folder}/{path.name}" not in found:
                path.unlink()
    for name, text in found.items():
        _write(DOCS / name, text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _completed(app: Any, env: Any, *_: Any) -> list[str]:
    """Return the pages that other files complete: they are read anew in every build."""
    texts = {name: Path(env.doc2path(name)).read_text(encoding="utf-8") for name in env.found_docs}
    return [
        name
        for name, text in texts.items()
        if re.search(r"^(\? |<!-- (quote|measured|verdicts): )", text, re.MULTILINE)
    ]


def _complete(app: Any, name: str, source: list[str]) -> None:
    path = Path(app.env.doc2path(name))
    text = notebook_page(source[0]) if path.suffix == ".ipynb" else source[0].replace(f"{UNBUILT}\n\n", "")
    try:
        text = with_quotes(text, name.count("/"))
    except ValueError as fault:
        _LOG.warning(str(fault), location=name)
    text = re.sub(r"^<!-- measured: (.+) -->$", lambda found: _MEASURED[found[1]](), text, flags=re.MULTILINE)
    text = re.sub(r"^<!-- verdicts: (.+) -->$", lambda found: _verdicts(found[1]), text, flags=re.MULTILINE)
    source[0] = re.sub(r"^\? (.+)\n", lambda found: _named(found[1]), text, flags=re.MULTILINE)


def _verdicts(wanted: str) -> str:
    return claim_tables.overview() if wanted == "all" else claim_tables.verdicts(wanted)


def _named(wanted: str) -> str:
    if wanted != "*":
        return f"{wanted}\n" if (DOCS / f"{wanted}.md").exists() else ""
    pages = sorted(DOCS.glob("*.md"))
    named = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    left = [path.stem for path in pages if not re.search(rf"^(\? )?{path.stem}$", named, re.MULTILINE)]
    return "".join(f"{one}\n" for one in left if one != "index")


def notebook_page(text: str) -> str:
    """Return a notebook as Markdown: text as it is, code as blocks, and what cells showed when they were run."""
    pages = []
    for one in json.loads(text)["cells"]:
        body = "".join(one["source"])
        pages.append(body if one["cell_type"] == "markdown" else f"```python\n{body}\n```")
        pages += [_output(output) for output in one.get("outputs", ())]
    return "\n\n".join(pages) + "\n"


def _output(output: dict[str, Any]) -> str:
    """Return a cell's output: a table as it is, else text."""
    shown = output.get("data", {"text/plain": output.get("text", "")})
    if "text/html" in shown:
        return "```{raw} html\n" + "".join(shown["text/html"]) + "\n```"
    return "```text\n" + "".join(shown["text/plain"]).rstrip() + "\n```"
