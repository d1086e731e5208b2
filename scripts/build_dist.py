"""Build the sdist and, from what is in it, the wheel.

    python scripts/build_dist.py --out dist

The build backend runs in this environment, on a copy of the sources: nothing that an earlier build left in the checkout
gets into either file.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md")
"""What the sdist holds beside `src/` and constraints.txt. Tests need documents, papers and results: a checkout."""


def build(out: Path) -> tuple[Path, Path]:
    """Build into `out`; return the sdist and the wheel."""
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "source"
        shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for file in (*FILES, "constraints.txt"):
            shutil.copy2(ROOT / file, copy)
        sdist = out / _call_backend("build_sdist", copy, out)
        shutil.unpack_archive(sdist, Path(name) / "unpacked")
        unpacked = Path(name) / "unpacked" / sdist.name.removesuffix(".tar.gz")
        return sdist, out / _call_backend("build_wheel", unpacked, out)


def _call_backend(hook: str, source: Path, out: Path) -> str:
    """Call setuptools in a source tree, as PEP 517 has it; return the name of the file that it makes."""
    script = f"import sys; from setuptools import build_meta; print(build_meta.{hook}(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{hook} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.split()[-1]


def main() -> None:
    """Build, and print the paths."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder to write to")
    for path in build(parser.parse_args().out):
        print(path)


if __name__ == "__main__":
    main()
