"""Folders of a fleet or a site that come from somebody else: no code in them runs, no link in them is followed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.errors import Refusal
from covey.fleet.audit_log import AUDIT, note_event
from covey.fleet.fleet_folder import Fleet, Rules
from covey.fleet.job_lock import alone
from covey.fleet.loopback import superlink_command
from covey.fleet.processes import start
from covey.flower.memory_file import recall
from covey.storage import open_unlinked

PAYLOAD = "from pathlib import Path\nPath(__file__).with_name('PWNED').touch()\n"

SITE = 'name = "pumps"\nserver = "127.0.0.1:9"\n'

SEARCHING = """
import sys
from pathlib import Path
from covey.registry import import_path
from covey.trust import also_search, extend_path
also_search(Path.cwd())
import_path("covey.fleet.site:app", "app")
print(str(Path.cwd()) in sys.path)
extend_path()
print(str(Path.cwd()) in sys.path)
"""


def searched(folder: Path) -> list[str]:
    """Return whether a node started in a folder looks for modules there: before and after own code is imported."""
    return subprocess.check_output([sys.executable, "-P", "-c", SEARCHING], cwd=folder, text=True).split()


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = Fleet(folder=tmp_path / "fleet", address="127.0.0.1:9", sites=("pumps",), rules=Rules(), run={})
    made.server.mkdir(parents=True)
    return made


def test_modules_in_a_fleets_folder_are_not_imported_by_its_superlink(fleet: Fleet) -> None:
    for name in ("starlette", "covey", "h2"):
        (fleet.folder / f"{name}.py").write_text(PAYLOAD)
    answer = subprocess.run(superlink_command(fleet), cwd=fleet.folder, capture_output=True, text=True, check=False)
    assert answer.returncode == 2 and "fleet.toml" in answer.stderr
    assert not (fleet.folder / "PWNED").exists()


def test_a_node_looks_for_modules_neither_in_its_site_nor_for_its_own_app_anywhere(tmp_path: Path) -> None:
    assert searched(tmp_path) == ["False", "True"]
    site = tmp_path / "sites" / "pumps"
    (site / "data").mkdir(parents=True)
    (site / "site.toml").write_text(SITE)
    for place in (site, site / "data"):
        assert searched(place) == ["False", "False"]


WRITES: dict[str, Callable[[Fleet, Path], object]] = {
    "run.lock": lambda fleet, place: alone(fleet).__enter__(),
    AUDIT: lambda fleet, place: note_event(fleet.folder, "joined"),
    "node.log": lambda fleet, place: start(["true"], place, os.environ),
    "memory.turns": lambda fleet, place: recall(None, place.with_name("memory")),  # type: ignore[arg-type]
    "node.lock": lambda fleet, place: open_unlinked(place, os.O_WRONLY | os.O_CREAT),
}


@pytest.mark.parametrize("name", WRITES)
def test_links_in_a_folder_are_not_written_through(fleet: Fleet, tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    place = (fleet.server if name == "run.lock" else fleet.folder) / name
    place.symlink_to(precious)
    with pytest.raises(Refusal, match="is a link"):
        WRITES[name](fleet, place)
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("option", ["memory", "ledger"])
def test_a_site_writes_outside_its_folder_only_if_it_is_trusted(tmp_path: Path, covey_command, option: str) -> None:
    (tmp_path / "site.toml").write_text(f'{SITE}[node]\n{option} = "/tmp/elsewhere"\n')
    answer = covey_command("fleet", "node", tmp_path)
    assert answer.code == 2 and f"{option} lies outside the site's folder" in answer.err
    (tmp_path / "site.toml").write_text(f'{SITE}[node]\n{option} = "inside"\n')
    assert "has no key yet" in covey_command("fleet", "node", tmp_path).err


def test_what_fleet_commands_write_is_readable_by_its_owner_alone(tmp_path: Path, covey_command) -> None:
    before = os.umask(0o022)
    try:
        samples = ("--shape", "4", "--classes", "2")
        made = covey_command("fleet", "init", tmp_path / "fleet", "--sites", "a,b", *samples)
        assert made.code == 0, made.err
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    for path in (tmp_path / "fleet", *(tmp_path / "fleet").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
