"""The Flower app of a fleet, with which a run is opened on a SuperLink. Its client side is `covey.fleet.site`."""

import json
from pathlib import Path

from covey.fleet.site import RUN

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "covey-fleet"
version = "1.0.0"
description = "A run of Covey on a fleet."
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41,<1.42", "covey"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "covey"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "covey_fleet.server_app:app"
clientapp = "covey_fleet.client_app:app"

[tool.flwr.app.config]
{run} = {about}
"""

_CLIENT = '''\
"""Every site of the fleet runs this."""

from covey.fleet.site import app

__all__ = ["app"]
'''

_SERVER = '''\
"""The server is Covey's own process, which opened this run."""

from flwr.serverapp import ServerApp

app = ServerApp()
'''


def write_app(folder: Path, description: str) -> None:
    """Write the app's files; `description` describes the run for its sites, as JSON."""
    package = folder / "covey_fleet"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_PROJECT.format(run=RUN, about=json.dumps(description)), encoding="utf-8")
    (folder / "LICENSE").write_text("Apache-2.0\n", encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "client_app.py").write_text(_CLIENT, encoding="utf-8")
    (package / "server_app.py").write_text(_SERVER, encoding="utf-8")
