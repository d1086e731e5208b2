"""Prose of the pages, kept in Markdown templates beside each paper.

A file `prose.md` holds templates, each under a heading `# name`. Fields are those of `str.format`, format
specifications included: `{scale.rounds:,}`. Paragraphs and items of lists (`- `) may be wrapped; blank lines
separate paragraphs.
"""

import re
from functools import cached_property
from pathlib import Path

FILE = "prose.md"


class Prose:
    """The templates of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def beside(cls, module: str) -> "Prose":
        """Return the templates beside a module, given its `__file__`."""
        return cls(Path(module).with_name(FILE))

    @cached_property
    def templates(self) -> dict[str, list[str]]:
        """Name → paragraphs and lists, each paragraph or item on one line."""
        _, *found = re.split(r"^# (\S+)\n", self.path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        return {
            name: [re.sub(r"\n(?!- ) *", " ", part) for part in re.split(r"\n{2,}", text.strip())]
            for name, text in zip(found[::2], found[1::2], strict=True)
        }

    def parts(self, name: str, **fields: object) -> list[str]:
        """Return the paragraphs of a template, filled in."""
        return [paragraph.format(**fields) for paragraph in self.templates[name]]

    def __call__(self, name: str, **fields: object) -> str:
        """Return a template of one paragraph, filled in."""
        (paragraph,) = self.parts(name, **fields)
        return paragraph


SHARED = Prose.beside(__file__)
"""Sentences that several pages share."""
