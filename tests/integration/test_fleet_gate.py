"""A SuperLink with the gate before it, and one without."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from covey.fleet import Fleet
from covey.fleet.audit_log import read_events
from covey.fleet.loopback import superlink_command
from covey.fleet.processes import end, environment, free_port, listens, start
from covey.fleet.superlink import Link

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked after through /proc"),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern"),
]

WITHOUT = """
import sys
from pathlib import Path
from covey.fleet import Fleet
from covey.fleet.link_process import superlink_arguments
from covey.flower.private_api import flower_superlink
sys.argv = ["flower-superlink", *superlink_arguments(Fleet.read(Path(sys.argv[1])), "127.0.0.1")]
flower_superlink()
"""


def started(command: list[str], fleet: Fleet) -> "subprocess.Popen[bytes]":
    process = start(command, fleet.folder / "link.log", environment(fleet.folder / "flower"))
    limit = time.monotonic() + 240
    while not listens(fleet.port):
        assert process.poll() is None and time.monotonic() < limit, (fleet.folder / "link.log").read_text()
        time.sleep(0.2)
    return process


@pytest.mark.parametrize("gate", [True, False])
def test_the_operator_is_warned_of_a_superlink_without_the_gate(tmp_path: Path, gate: bool, covey_command: Any) -> None:
    fleet = Fleet(folder=tmp_path / "fleet", address=f"127.0.0.1:{free_port()}", sites=("mill",))
    fleet.write(["127.0.0.1"])
    command = superlink_command(fleet) if gate else [sys.executable, "-c", WITHOUT, str(fleet.folder)]
    process = started(command, fleet)
    try:
        warning = Link(fleet.address, fleet.server / "ca.crt", fleet.secret).open_to_all()
        shown = covey_command("fleet", "status", fleet.folder)
    finally:
        end([process.pid])
    assert shown.code == 0, shown.err
    said = " ".join(shown.out.split())
    assert ("was not started by covey fleet link" in said) is not gate
    assert (warning is None) is gate
    assert not [event for event in read_events(fleet.folder) if event["event"] == "refused"]
