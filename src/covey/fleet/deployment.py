"""Files for a fleet on real machines: scripts for the server and for each site, and a page for the operator."""

import shlex
from pathlib import Path

from covey.fleet.fleet_folder import Fleet

_SERVER = """\
#!/bin/sh
# The fleet's SuperLink, which sites connect to. Its state and its log are in this folder.
cd "$(dirname "$0")/.."
exec covey fleet link .
"""

_RUN = """\
#!/bin/sh
# The fleet's server app: starts the run, or resumes it after the last finished round. Start it again after a crash.
cd "$(dirname "$0")/.."
exec covey fleet run . "$@"
"""

_SITE = """\
#!/bin/sh
# The node of site {name}. Its data stay in the folder data (or where site.toml says).
cd "$(dirname "$0")"
exec covey fleet node . "$@"
"""

_README = """\
# Fleet {title}

Server: `{address}`. Sites: {sites}. Everybody needs the same version of Covey, with Flower: in its
source folder `pip install '.[flower]' --constraint constraints.txt`. For `covey report` the server has
`'.[flower,report]'`.

## Once

1. **Keep secret:** `authority/ca.key` (signs certificates; move it off this machine) and everything in `server`,
   above all `server.key` and `secret`{secret}. All are readable by their owner alone.
2. {handover}
3. **Each site puts its samples** into its folder `data`: `train.npz` (arrays `x`, `y`) or `train.csv` (a column
   `label`), and `test.npz` or `test.csv` where it keeps some apart. What the site sends: `docs/privacy.md` of Covey.
4. **Open port {port}** of the server to the sites and to nobody else. Registering nodes, opening runs and stopping them
   needs `server/secret`, and sites sign every call; but whoever reaches the port can keep the SuperLink busy.

## Every day

| who | command | |
|---|---|---|
| server | `server/start.sh` | the SuperLink; keep it running |
| server | `covey fleet register .` | register the sites' keys, once, and after a site was accepted |
| site | `./start.sh` | the site's node; keep it running |
| server | `covey fleet status .` | who is there, with which key, and who was refused |
| server | `covey fleet log .` | who registered, joined, was refused, opened and stopped runs |
| server | `server/run.sh` | the run: starts it, or resumes it |
| server | `covey report run` | a page about it, with every fault |
| server | `covey analyze --fleet .` | how skewed each site is |

Settings of the run are in `fleet.toml`: the method, the model, time-outs, and what happens to sites that fail. A run
that has begun keeps its method, model and so on; for others begin another one: `covey fleet run . --out run-2`.

- A site that is away is not invited. It returns with the same key as the same client.
- A site whose answers are late, broken or too large costs its own answer; the record says which and why. After
  {strikes} failures in a row it is rested, longer each time.
- A server that was killed resumes after its last finished round: start the SuperLink, then `server/run.sh`.
- Certificates of the server are valid for {days} days.
"""


_GIVEN_KEYS = """\
**Give each site its folder** `sites/<name>`, over a channel that you trust, and delete your copy of its `node.key`.
   The key in `keys/<name>.pub` is how the server recognises the site: keep it. Who has the private half is the site."""

_OWN_KEYS = """\
**Give each site its folder** `sites/<name>`; it holds nothing secret. The site makes its key there with
   `covey fleet join .`, sends you the request that this writes, and reads out the key's fingerprint. You accept it:
   `covey fleet accept . REQUEST`, compare the fingerprint, and `covey fleet register .`."""


def write_deployment(fleet: Fleet, server_days: int, *, own_keys: bool = False) -> None:
    """Write scripts and the operator's page, beside the files of `Fleet.write`."""
    _script(fleet.server / "start.sh", _SERVER)
    _script(fleet.server / "run.sh", _RUN)
    for name in fleet.sites:
        _script(fleet.site(name) / "start.sh", _SITE.format(name=shlex.quote(name)))
    text = _README.format(
        title=fleet.folder.name,
        address=fleet.address,
        port=fleet.port,
        sites=", ".join(fleet.sites),
        secret="" if own_keys else ", and each `node.key` and `secret` in `sites`",
        handover=_OWN_KEYS if own_keys else _GIVEN_KEYS,
        strikes=fleet.rules.strikes,
        days=server_days,
    )
    (fleet.folder / "README.md").write_text(text, encoding="utf-8")


def _script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)
