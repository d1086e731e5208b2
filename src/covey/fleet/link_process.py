"""The SuperLink of a fleet: Flower's, behind a gate, and with files that its owner alone can read.

python -m covey.fleet.link_process FLEET_FOLDER [--host 0.0.0.0] [--log-file FILE]
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from starlette.middleware import Middleware

from covey.errors import Refusal
from covey.fleet.certificates import require_server_files
from covey.fleet.control_gate import ControlGate, of_its_own
from covey.fleet.fleet_folder import Fleet
from covey.fleet.site_keys import pinned_keys
from covey.flower.private_api import fleet_handlers, flower_superlink, superlink_extensions

_OWNER_ALONE = 0o077


def superlink_arguments(fleet: Fleet, host: str) -> list[str]:
    """Return the options of Flower's SuperLink: TLS, only nodes with registered keys, state in a file."""
    server = fleet.server
    return [
        *("--host", host, "--port", str(fleet.port)),
        *("--ssl-ca-certfile", str(server / "ca.crt")),
        *("--ssl-certfile", str(server / "server.crt")),
        *("--ssl-keyfile", str(server / "server.key")),
        "--enable-supernode-auth",
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(server / "secret")),
        *("--database", str(server / "state.db")),
        # Flower's older interfaces, which nobody here uses.
        *("--fleet-api-address", "127.0.0.1:0", "--control-api-address", "127.0.0.1:0"),
    ]


def close_to_others(fleet: Fleet) -> None:
    """Take the rights of group and others from the server's folder and all files in it, and from those made later."""
    os.umask(_OWNER_ALONE)
    for path in (fleet.server, *fleet.server.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~_OWNER_ALONE)


def main(arguments: Sequence[str]) -> int:
    """Run a fleet's SuperLink in this process until it is stopped."""
    parser = argparse.ArgumentParser(prog="covey.fleet.link_process")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--log-file", type=Path)
    given = parser.parse_args(arguments)
    fleet = Fleet.read(given.folder)
    close_to_others(fleet)
    require_server_files(fleet.server)
    pinned_keys(fleet)
    vars(superlink_extensions).update(get_middleware=lambda: (Middleware(ControlGate, fleet=fleet),))
    vars(fleet_handlers).update(push_messages=of_its_own(fleet_handlers.push_messages))
    log = ["--log-file", str(given.log_file)] if given.log_file else []
    sys.argv = ["flower-superlink", *superlink_arguments(fleet, given.host), *log]
    flower_superlink()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Refusal as refusal:
        print(f"covey: {refusal}", file=sys.stderr)
        sys.exit(2)
