"""What Covey is tested with, with hashes and without, is the same."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_constraint_has_the_hashes_of_its_files() -> None:
    plain = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    hashed = (ROOT / "constraints-hashed.txt").read_text(encoding="utf-8")
    block = r"^([^#\s]+==\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
    blocks = dict(re.findall(block, hashed, re.MULTILINE))
    assert sorted(blocks) == sorted(line for line in plain if line and not line.startswith("#"))
