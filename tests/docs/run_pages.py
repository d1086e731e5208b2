"""Run the Python of pages from top to bottom, each page in an empty folder: `python run_pages.py FOLDER PAGE...`."""

import os
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.docs.page_blocks import blocks, files, python


def main() -> None:
    failed = []
    for page in map(Path, sys.argv[2:]):
        folder = Path(sys.argv[1], page.stem)
        folder.mkdir()
        for name, text in files(page).items():
            (folder / name).write_text(text, encoding="utf-8")
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        names: dict[str, Any] = {}
        try:
            for source in python(page):
                exec(compile(source, str(page), "exec"), names)
        except BaseException:
            failed.append(page.name)
            print(f"{page}:\n{traceback.format_exc()}", file=sys.stderr)
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        print(f"{page.name}: {sum(one.ru_utime + one.ru_stime for one in used):.1f} s so far")
        sys.path.remove(str(folder))
    print(f"{len(sys.argv) - 2} pages, {sum(len(blocks(Path(one))) for one in sys.argv[2:])} blocks")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
