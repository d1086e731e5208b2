"""Write constraints-hashed.txt: what Covey is tested with, with the hashes of every published file.

    python scripts/hash_constraints.py --index ADDRESS

Hashes are those that the package index states, of all platforms; pip refuses any other file. PyTorch is installed
first, from an index of its own; docs/install.md has the commands.
"""

import argparse
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]


class _Links(HTMLParser):
    """Collects the files of a project's page: name → hash."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address, fragment = urldefrag(dict(attrs).get("href") or "")
        if tag == "a" and fragment.startswith("sha256="):
            self.files[unquote(address.rpartition("/")[2])] = fragment.removeprefix("sha256=")


def normalised(name: str) -> str:
    """Return a project's name as the index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def of_version(file: str, project: str, version: str) -> bool:
    """True if a file's name is of this version: NAME-VERSION-... .whl or NAME-VERSION.tar.gz."""
    stem = re.sub(r"\.(tar\.gz|zip|tar\.bz2)$", "", file)
    if file.endswith(".whl"):
        name, found, *_ = file.split("-")
        return normalised(name) == project and found == version
    name, _, found = stem.rpartition("-")
    return normalised(name) == project and found == version


def hashes(index: str, project: str, version: str) -> list[str]:
    """Return the hashes of a version's files."""
    links = _Links()
    with urlopen(f"{index.rstrip('/')}/{project}/", timeout=60) as page:
        links.feed(page.read().decode("utf-8"))
    return sorted({digest for file, digest in links.files.items() if of_version(file, project, version)})


def main() -> None:
    """Read constraints.txt and write constraints-hashed.txt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--index", required=True, help="address of the index that packages are installed from")
    index = parser.parse_args().index
    lines = ["# Made from constraints.txt by scripts/hash_constraints.py."]
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, equals, version = line.partition("==")
        if not equals or line.startswith("#"):
            continue
        found = hashes(index, normalised(name), version)
        if not found:
            sys.exit(f"The index has no file of {line}.")
        lines.append(" \\\n".join((line, *(f"    --hash=sha256:{digest}" for digest in found))))
        print(line, len(found), file=sys.stderr)
    (ROOT / "constraints-hashed.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
