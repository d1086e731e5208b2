"""The Dockerfile copies what there is, installs what the project offers, and runs as a user without rights."""

import fnmatch
import re
import shlex
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "RUN", "USER", "WORKDIR"}


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each a word and its text in one line."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    found = (line.partition(" ") for line in whole.splitlines() if line.strip())
    return [(word, " ".join(rest.split())) for word, _, rest in found]


def texts(instruction: str) -> list[str]:
    return [text for word, text in instructions() if word == instruction]


def ignored(path: str) -> bool:
    """True if `.dockerignore` leaves a path out of what the build sees; the last line that matches decides."""
    left_out = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!").removeprefix("**/")
            parts = [path, *path.split("/")] if line.startswith("**/") else [path, path.split("/")[0]]
            if any(fnmatch.fnmatch(part, pattern) for part in parts):
                left_out = not line.startswith("!")
    return left_out


def test_every_instruction_is_known_and_every_image_has_a_version() -> None:
    assert {word for word, _ in instructions()} <= INSTRUCTIONS
    images = [text.split()[0] for text in texts("FROM")]
    assert images
    assert [image for image in images if not re.fullmatch(r"[a-z]+:(?!latest)[\w.-]+", image)] == []


def test_what_is_copied_is_there_and_not_ignored() -> None:
    stages = {text.split()[2] for text in texts("FROM") if " AS " in text}
    copied = []
    for text in texts("COPY"):
        words = shlex.split(text)
        if words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in stages
        else:
            copied += words[:-1]
    assert [one for one in copied if not (ROOT / one).exists() or ignored(one)] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {project["readme"], *project["license-files"], "pyproject.toml", "src"} <= set(copied)


def test_what_the_build_does_not_need_is_ignored() -> None:
    unneeded = (
        ".git/config",
        ".venv/bin/python",
        "tests/conftest.py",
        "src/covey.egg-info/PKG-INFO",
        "runs/a/config.json",
    )
    assert [one for one in unneeded if not ignored(one)] == []
    assert not ignored("src/covey/__init__.py")


def test_extras_that_it_installs_exist_and_versions_are_those_that_are_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (command,) = [text for text in texts("RUN") if "pip install" in text]
    (named,) = re.findall(r"'\.\[([a-z,]+)\]'", command)
    assert set(named.split(",")) <= set(extras)
    assert "--no-cache-dir" in command
    assert "--constraint constraints.txt" in command


def test_it_runs_covey_and_not_as_root() -> None:
    last = max(at for at, (word, _) in enumerate(instructions()) if word == "FROM")
    final = dict(instructions()[last:])
    assert final["USER"] not in ("root", "0")
    assert f"--uid 1000 {final['USER']}" in " ".join(text for word, text in instructions()[last:] if word == "RUN")
    assert final["ENTRYPOINT"] == '["covey"]'
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert set(scripts) == {"covey"}
