"""A fleet's folder: the operator's files, each site's files, and the settings of runs.

fleet.toml            address, sites, time-outs, and the settings of runs
keys/<name>.pub       the public key that makes a site this site
audit.jsonl           who registered, joined, was refused, opened and stopped runs
server/               certificates and key of the SuperLink, the secret of its server app, its state and logs
authority/            the key that signed them; keep it elsewhere
sites/<name>/         what a site is given: its key (unless it makes its own), the authority's certificate, site.toml,
                      start.sh, data/
"""

import json
import re
import secrets
import shutil
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from covey.config.values import parse_bytes
from covey.core.printable_text import printable
from covey.errors import Refusal, require
from covey.fleet.certificates import read_secret, write_node_keys, write_server
from covey.registry import coerce
from covey.storage import write_private

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The server's rules for sites that are away, slow or broken."""

    timeout: float = 600.0
    """Seconds that a round waits for answers; later ones are discarded."""
    patience: float = 120.0
    """Seconds to wait for sites before the first round, and while nobody can be reached."""
    minimum: int = 1
    """Sites that must be reachable for a round to begin."""
    strikes: int = 2
    """Failures in a row after which a site is rested: one round, then two, four, … up to `longest`."""
    longest: int = 16
    """Longest rest of a site, in rounds."""
    limit: str = "64MiB"
    """Largest answer in bytes, or three times the model if that is more; a larger one is not read."""
    poll: float = 1.0
    """Seconds between two checks for answers."""

    def __post_init__(self) -> None:
        require(self.timeout > 0, f"rules.timeout must be above 0 seconds, not {self.timeout:g}.")
        require(self.patience >= 0, f"rules.patience must not be negative, not {self.patience:g}.")
        require(self.minimum >= 1, f"rules.minimum must be at least 1, not {self.minimum}.")
        require(self.strikes >= 1, f"rules.strikes must be at least 1, not {self.strikes}.")
        require(self.longest >= 1, f"rules.longest must be at least 1, not {self.longest}.")
        require(self.poll > 0, f"rules.poll must be above 0 seconds, not {self.poll:g}.")
        parse_bytes(self.limit)

    @property
    def bytes(self) -> int:
        """`limit` in bytes."""
        return parse_bytes(self.limit)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Rules":
        """Return rules from a mapping, after checking its keys and types."""
        known = {spec.name: spec.type for spec in fields(cls)}
        for name in given:
            require(name in known, f"There is no rule '{name}'. Known: {', '.join(known)}.")
        return cls(**{name: coerce(value, known[name], f"rules.{name}") for name, value in given.items()})


NODE_OPTIONS = (
    "label",
    "allow",
    "update-clip",
    "update-privacy",
    "insight-privacy",
    "insight-clip",
    "budget",
    "ledger",
    "unprotected",
    "classes",
    "folder",
    "memory",
    "drill",
)
"""Options under `[node]` of a site that runs Covey's app."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A site's folder, and the settings of its node."""

    folder: Path
    name: str
    server: str
    """`host:port` of the SuperLink."""
    data: str = "data"
    """Folder with the site's samples, relative to the site's folder."""
    port: int = 0
    """Local port between the SuperNode and its worker; 0 takes a free one."""
    poll: float = 3.0
    """Seconds between two checks for orders."""
    app: str = "covey.fleet.site:app"
    """The app that answers orders."""
    node: Mapping[str, Any] = field(default_factory=dict)
    """More of the node's configuration: the site's permissions and protection."""

    @classmethod
    def read(cls, folder: Path) -> "Site":
        given = read_toml(folder / "site.toml")
        hints = {"name": str, "server": str, "data": str, "port": int, "poll": float, "app": str}
        node = given.pop("node", {})
        require(isinstance(node, Mapping), f"{folder / 'site.toml'}: [node] is a section, not a value.")
        for key in given:
            require(
                key in hints, f"{folder / 'site.toml'}: there is no setting '{key}'. Known: {', '.join(hints)}, node."
            )
        for key in ("name", "server"):
            require(key in given, f"{folder / 'site.toml'} does not say the {key}.")
        for key in node if given.get("app", cls.app) == cls.app else ():
            require(
                key in NODE_OPTIONS,
                f"{folder / 'site.toml'}: there is no option '{key}' under node. Known: {', '.join(NODE_OPTIONS)}.",
            )
        values = {key: coerce(value, hints[key], key) for key, value in given.items()}
        require_name(values["name"])
        require(values.get("poll", cls.poll) > 0, f"{folder / 'site.toml'}: poll must be above 0 seconds.")
        return cls(folder=folder.resolve(), node=node, **values)

    @property
    def settings(self) -> dict[str, Any]:
        """The node's configuration, as its app receives it."""
        own = {"client": self.name, "folder": str(self.folder / self.data), "memory": str(self.folder / "memory")}
        return {**own, **self.node}

    def writes_inside(self, option: str) -> bool:
        """True if the file that an option of the node names, to be written, lies in the site's folder."""
        place = (self.folder / str(self.node.get(option, "inside"))).resolve()
        return place.is_relative_to(self.folder)

    @property
    def secret(self) -> bytes:
        return read_secret(self.folder / "secret")


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A fleet as its folder describes it."""

    folder: Path
    address: str
    """`host:port` at which sites reach the SuperLink."""
    sites: tuple[str, ...]
    rules: Rules = field(default_factory=Rules)
    run: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its runs, as in `covey.run`."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Description of sites' own samples (`shape`, `classes`, …); empty if the server split the data."""

    @classmethod
    def read(cls, folder: Path | str) -> "Fleet":
        folder = Path(folder)
        path = folder / "fleet.toml"
        require(
            path.is_file(),
            f"{folder} is not a fleet's folder: it has no fleet.toml. Make one: covey fleet init {folder}",
        )
        given = read_toml(path)
        known = ("address", "sites", "rules", "run", "data")
        for key in given:
            require(key in known, f"{path}: there is no section '{key}'. Known: {', '.join(known)}.")
        for key in ("address", "sites"):
            require(key in given, f"{path} does not say: {key}.")
        for key in ("rules", "run", "data"):
            require(isinstance(given.get(key, {}), Mapping), f"{path}: [{key}] is a section, not a value.")
        fleet = cls(
            folder=folder.resolve(),
            address=coerce(given["address"], str, "address"),
            sites=coerce(given["sites"], tuple[str, ...], "sites"),
            rules=Rules.of(given.get("rules", {})),
            run=given.get("run", {}),
            data=given.get("data", {}),
        )
        try:
            fleet.check()
        except Refusal as error:
            raise Refusal(f"{path}: {error}") from error
        return fleet

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def server(self) -> Path:
        """Folder of the server's files."""
        return self.folder / "server"

    def site(self, name: str) -> Path:
        """Return the folder of a site."""
        return self.folder / "sites" / name

    def key(self, name: str) -> Path:
        """Return the file of a site's pinned public key. Folders of earlier versions keep it with the site's files."""
        pinned, earlier = self.folder / "keys" / f"{name}.pub", self.site(name) / "node.pub"
        return earlier if not (self.folder / "keys").is_dir() and earlier.is_file() else pinned

    @property
    def secret(self) -> bytes:
        """The secret with which the server claims its tasks and controls the SuperLink."""
        return read_secret(self.server / "secret")

    def check(self) -> None:
        """Refuse names of sites and addresses that are not valid."""
        for name in self.sites:
            require_name(name)
        require(len(set(self.sites)) == len(self.sites), "Two sites have the same name.")
        require(len(self.sites) > 0, "A fleet needs sites: --sites harbour,mill,quarry")
        require(
            bool(re.fullmatch(r".+:\d{1,5}", self.address)),
            f"The address is of the form host:port, not '{self.address}'.",
        )
        host, _, port = self.address.rpartition(":")
        require(1 <= int(port) <= 65535, f"The address has a port from 1 to 65535, not {port}.")
        _require_host(host)

    def write(
        self,
        hosts: Collection[str],
        poll: float = 3.0,
        node: Mapping[str, Any] | None = None,
        *,
        own_keys: bool = False,
    ) -> None:
        """Write the whole folder: settings, certificates, and a folder for each site. Refuse one that is not empty.

        With `own_keys` sites make their keys themselves, and the operator accepts them (`covey.fleet.site_request`).
        """
        self.check()
        require(poll > 0, f"poll must be above 0 seconds, not {poll:g}.")
        for host in hosts:
            _require_host(host)
        try:
            require(
                not self.folder.exists() or not any(self.folder.iterdir()),
                f"The folder {self.folder} is not empty; a fleet's keys are never written over.",
            )
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            self.server.mkdir(mode=0o700)
            (self.folder / "keys").mkdir(mode=0o700)
            write_server(self.server, hosts)
            (self.folder / "authority").mkdir(mode=0o700)
            (self.server / "ca.key").rename(self.folder / "authority" / "ca.key")
            write_private(self.server / "secret", secrets.token_hex(32).encode())
            write_toml(self.folder / "fleet.toml", self.as_mapping())
            for name in self.sites:
                self._write_site(name, poll, node or {}, own_keys)
        except OSError as error:
            raise Refusal(f"The folder {self.folder} cannot be written: {error.strerror or error}.") from error

    def _write_site(self, name: str, poll: float, node: Mapping[str, Any], own_keys: bool) -> None:
        folder = self.site(name)
        folder.mkdir(mode=0o700, parents=True)
        (folder / "data").mkdir()
        if not own_keys:
            write_node_keys(folder)
            write_private(folder / "secret", secrets.token_hex(32).encode())
            shutil.copy(folder / "node.pub", self.key(name))
        shutil.copy(self.server / "ca.crt", folder / "ca.crt")
        about = {"name": name, "server": self.address, "data": "data", "poll": poll}
        write_toml(folder / "site.toml", {**about, **({"node": dict(node)} if node else {})})

    def as_mapping(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "sites": list(self.sites),
            "rules": asdict(self.rules),
            "run": dict(self.run),
            "data": dict(self.data),
        }


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(f"{path} cannot be read: {error}.") from error


def write_toml(path: Path, values: Mapping[str, Any]) -> None:
    """Write settings as TOML: plain values first, then sections."""
    path.write_text("\n".join(_lines(values, "")).strip() + "\n", encoding="utf-8")


def _lines(values: Mapping[str, Any], section: str) -> list[str]:
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping) and value is not None}
    lines = [f"{_key(key)} = {json.dumps(value, ensure_ascii=False)}" for key, value in plain.items()]
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            name = f"{section}.{_key(key)}" if section else _key(key)
            lines += ["", f"[{name}]", *_lines(value, name)]
    return lines


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def require_name(name: str) -> None:
    """Refuse what cannot be a site's name; files are called by it."""
    require(
        bool(_NAME.fullmatch(name)), f"'{printable(name)}' cannot be a site's name: letters, digits, '.', '_', '-'."
    )


def _require_host(host: str) -> None:
    """Refuse a host that a certificate cannot name."""
    require(
        host.isascii() and not host.startswith("["),
        f"'{host}' cannot be a host here: a name in ASCII (xn--… for others) or an IPv4 address.",
    )
