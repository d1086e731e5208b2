"""The fleet runtime: clients are real sites, which come and go, fail and return."""

import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from torch import Tensor, nn

from covey.arrays import FloatArray, IntArray
from covey.config.schema import Config
from covey.core.client_health import Attendance, Health
from covey.core.guard import bounded_shares
from covey.core.interfaces import Method, Runtime
from covey.core.messages import Order
from covey.core.replies import Replies, checked
from covey.core.round_record import RefusedNode, RoundRecord
from covey.core.scores import Metrics, Scores
from covey.core.trainer_state import OwnParts, own_parts_of
from covey.environment.federated_data import Federation
from covey.errors import Refusal, require
from covey.fleet.audit_log import note_event
from covey.fleet.fleet_folder import Fleet
from covey.fleet.fleet_grid import FleetGrid, run_is_over
from covey.fleet.flower_app import write_app
from covey.fleet.job_lock import alone
from covey.fleet.site import about
from covey.fleet.site_keys import pinned_keys
from covey.fleet.superlink import Link
from covey.flower.exchange import Exchange
from covey.flower.live_method import require_live
from covey.flower.private_api import TaskNumbers, set_task_identity, task_identity
from covey.flower.roster import Roster
from covey.model.frozen import constants_digest
from covey.runtime.local import LocalRuntime
from covey.storage import replace_file

FLEET = "COVEY_FLEET"
"""The environment variable that names a fleet's folder."""

_PARTS = 10**9
"""Resolution to which the sites' reported accuracy is kept."""

_LARGER = 3
"""An answer may have this many times the model's bytes, if that is more than the limit."""

_PAUSE = 0.5
"""Seconds between two checks for sites that are away."""


class FleetRuntime(Runtime):
    """Runs orders on a fleet: site i of `fleet.toml` is client i, with the samples that it holds.

    A round invites sites that can be reached and are not rested, and waits for them no longer than the time-out.
    """

    live = True
    """Time is real, and no devices are simulated."""

    def __init__(self, federation: Federation, module: nn.Module, config: Config, fleet: Fleet) -> None:
        require_live(config.method)
        require(
            federation.clients == len(fleet.sites),
            f"The fleet in {fleet.folder} has {len(fleet.sites)} sites, and the run {federation.clients} clients.",
        )
        self.fleet, self.rules, self._config = fleet, fleet.rules, config
        self.holdings_known = not fleet.data
        """True if the server knows how the samples were split among sites."""
        self._tests = not federation.dataset.untested
        """True if the server has a test set."""
        description = about(federation.dataset, config.model.name, config.model.options, config.seed, config.precision)
        self._description = json.dumps(description, sort_keys=True)
        self._evaluator = LocalRuntime(federation, module, seed=config.seed, workers=1, precision=config.precision)
        size = sum(value.numel() * value.element_size() for value in module.state_dict().values())
        self._limit = max(self.rules.bytes, _LARGER * size)
        self._roster = Roster(len(fleet.sites), fleet.sites, patience=self.rules.patience, keys=pinned_keys(fleet))
        self._attendance = Attendance(
            len(fleet.sites), Health(self.rules.strikes, self.rules.longest), self.rules.minimum
        )
        self._session: _Session | None = None
        self._refused: list[RefusedNode] = []
        """Nodes that were connected in this round with keys of no site."""
        self._warned: set[str] = set()
        self._begun = False
        self._method: Method | None = None
        self._resident = False
        """True if the last training left its models at the sites."""
        self._at_sites = False
        """True if the last scores were reported by sites."""
        self._scored = True
        self._other_fleet = False
        """True if the run was begun on another fleet; sites of this one hold nothing of it."""
        self._exchange = Exchange(
            self._roster,
            constants=constants_digest(module),
            seed=config.seed,
            timeout=config.devices.deadline or self.rules.timeout,
            limit=self._limit,
            run=self._name(),
        )
        self._accounts = fleet.server / "accounts" / f"{self._exchange.run}.json"
        self._load_accounts()

    def attach(self, method: Method) -> None:
        """Keep the method: each site scores the model that it uses."""
        self._method = method

    def restore(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Restore failures in a row and rests from a run's records."""
        self._attendance.restore(rows)
        self._other_fleet = bool(rows) and not self._accounts.is_file()

    @classmethod
    def of(
        cls, federation: Federation, module: nn.Module, config: Config, folder: Path | str | None = None
    ) -> "FleetRuntime":
        """Build the runtime of the fleet in a folder; by default the one that COVEY_FLEET names."""
        folder = folder or os.environ.get(FLEET)
        if not folder:
            raise Refusal(f"Say which fleet: --fleet FOLDER, or the environment variable {FLEET}.")
        return cls(federation, module, config, Fleet.read(folder))

    def available(self, t: int) -> IntArray:
        """Return the sites that can be reached and are not rested; wait for them for up to `patience` seconds."""
        grid = self._grid()
        end = time.monotonic() + self.rules.patience
        while True:
            there = self._look(grid)
            # The first round waits for all sites, later ones for the minimum.
            wanted = len(self.fleet.sites) if not self._begun else self.rules.minimum
            over = time.monotonic() > end
            if len(there) >= wanted or (over and len(there) >= self.rules.minimum):
                break
            if over:
                raise Refusal(
                    f"{len(there)} of {len(self.fleet.sites)} sites can be reached after {self.rules.patience:g} "
                    f"seconds, and a round needs {self.rules.minimum}. What is done is kept: resume when they are back."
                )
            time.sleep(_PAUSE)
        self._begun = True
        return self._attendance.invite(t, there)

    def execute(self, order: Order) -> Replies:
        require(
            not self._other_fleet or not ((order.train and order.resident) or order.leaves_something),
            f"The run cannot be resumed here: '{self._config.method}' leaves with sites what only they know "
            f"(their own models or variables), and the fleet in {self.fleet.folder} knows nothing of this run. "
            "Resume it on the fleet that it was begun on, or begin another.",
        )
        grid = self._grid()
        begin = time.perf_counter()
        with self._connected():
            replies = checked(self._exchange.execute(grid, order))
        self._attendance.note(order, replies, forgiving=order.train)
        if order.train:
            self._resident = order.resident
        self._save_accounts()
        waited = time.perf_counter() - begin
        return replace(replies, timing=replace(replies.timing, round_seconds=waited))

    def evaluate(self, states: Tensor) -> Scores:
        """Score models on the server's test set. Without one, or without the models, sites score them."""
        self._at_sites = self._resident or not self._tests or isinstance(self._method, OwnParts)
        if not self._at_sites:
            self._scored = True
            return self._evaluator.evaluate(states)
        method = self._method
        if method is not None and len(states) == len(method.models()):
            rows = self._at_their_sites(states, method.model_of_client)
        else:
            rows = self._at_all_sites(states)
        self._scored = bool(np.isfinite(rows).any())
        # A model that nobody scored gets the others' mean; classes are not told apart.
        rows = np.where(np.isfinite(rows), rows, np.nanmean(rows, axis=0)) if self._scored else np.zeros_like(rows)
        task = self._evaluator.federation.dataset.learns
        if not task.has_classes:
            none = np.zeros((len(states), 0), dtype=np.int64)
            reported: tuple[Metrics, ...] = tuple({task.main.name: float(row[1])} for row in rows)
            return Scores(rows[:, 0], none, none[0], task=task, reported=reported)
        classes = self._evaluator.federation.dataset.classes
        correct = np.zeros((len(states), classes), dtype=np.int64)
        totals = np.zeros(classes, dtype=np.int64)
        totals[0] = _PARTS
        correct[:, 0] = np.rint(rows[:, 1] * _PARTS)
        return Scores(rows[:, 0], correct, totals)

    def _at_all_sites(self, states: Tensor) -> FloatArray:
        """Return loss and accuracy `[m, 2]` of each model over all sites that answer, by samples."""
        rows = np.full((len(states), 2), np.nan)
        for row, state in enumerate(states):
            scores = list(self._scores(state).values())
            if scores:
                rows[row] = self._mean(scores)
        return rows

    def _at_their_sites(self, states: Tensor, users: IntArray) -> FloatArray:
        """Return loss and accuracy `[m, 2]` of each model over its sites, by samples; site i uses row `users[i]`."""
        rows = np.full((len(states), 2), np.nan)
        found = self._scores(states[0] if len(states) == 1 else states[torch.from_numpy(users)])
        for model in range(len(states)):
            scores = [found[client] for client in np.flatnonzero(users == model).tolist() if client in found]
            if scores:
                rows[model] = self._mean(scores)
        return rows

    def _mean(self, scores: Sequence[tuple[int, float, float]]) -> FloatArray:
        """Return the mean loss and accuracy of several sites, weighted by their samples.

        With the guard on, no site weighs more than twice the mean site: nobody can check what it says.
        """
        found = np.array(scores)
        counts = found[:, 0]
        weights = bounded_shares(counts) if self._config.guard.on else counts / counts.sum()
        mean: FloatArray = weights @ found[:, 1:]
        return mean

    def _scores(self, start: Tensor) -> dict[int, tuple[int, float, float]]:
        grid = self._grid()
        there = self._look(grid)
        models = start if start.dim() == 1 else start[torch.from_numpy(there)]
        with self._connected():
            own, local = own_parts_of(self._method, there), self._config.local
            order = Order(0, there, models, local, train=False, resident=self._resident, trainer=own)
            return self._exchange.scores(grid, order)

    def _look(self, grid: FleetGrid) -> IntArray:
        """Return the sites that are connected now."""
        # A site may be accepted in the middle of a run.
        self._roster.keys = pinned_keys(self.fleet)
        with self._connected():
            self._roster.refresh(grid, self._exchange.timeout)
        for refused in self._roster.refused:
            if refused not in self._refused:
                self._refused.append(refused)
                self._warn_once(refused)
        return self._roster.available()

    def _warn_once(self, refused: RefusedNode) -> None:
        """Note a node that is none of the sites in the audit log, and say so, once in a run."""
        if refused["key"] not in self._warned:
            self._warned.add(refused["key"])
            note_event(self.fleet.folder, "refused", **refused)
            warnings.warn(
                f"A node is connected that is none of the sites: {refused['reason']} (key {refused['key']}). It gets "
                "no orders. covey fleet status shows it.",
                stacklevel=2,
            )

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Turn a lost connection, or a run that somebody else stopped, into a refusal."""
        try:
            yield
        except (httpx.HTTPError, OSError) as error:
            if run_is_over(error) and self._session is not None and self._session.stopped():
                raise Refusal(
                    "The run was stopped from outside, on the SuperLink's control interface: "
                    f"covey fleet log {self.fleet.folder} says when and from where. What is done is kept: resume the "
                    "run, unless it was stopped for a reason."
                ) from error
            require(
                not run_is_over(error),
                f"The SuperLink at {self.fleet.address} regards the run as over ({error}). What is done is kept: "
                "resume the run.",
            )
            raise Refusal(
                f"The SuperLink at {self.fleet.address} is gone ({error}). What is done is kept: start it again, and "
                "resume the run."
            ) from error

    def annotate(self, record: RoundRecord) -> RoundRecord:
        """Return a round's record with the sites that were away or rested, without facts about unknown data."""
        record = self._attendance.annotate(record)
        if self._refused:
            record["refused"] = self._refused
            self._refused = []
        if not self.holdings_known:
            record["cohort_skew"] = None
        if "accuracy" in record or "score" in record:
            if "accuracy" in record and (not self.holdings_known or self._at_sites):
                record["own_accuracy"] = None
            if self._at_sites:
                record.pop("class_accuracy", None)
            if self._at_sites and (faults := self._exchange.unscored):
                record["unscored"] = [{"client": fault.client, "reason": fault.reason} for fault in faults]
            if not self._scored:
                # As in a round that is not evaluated.
                for name in ("accuracy", "loss", "own_accuracy", "score", "metric", "better", "metrics"):
                    record.pop(name, None)  # type: ignore[misc]
        return record

    def close(self) -> None:
        if self._session is not None:
            self._session.leave()
            self._session = None
        self._evaluator.close()

    def _grid(self) -> FleetGrid:
        if self._session is None:
            self._session = _Session.enter(self.fleet, self._description, self._limit)
        self._session.act()
        return self._session.grid

    def _name(self) -> str:
        """Return a name for the run: the same when it is resumed, so that sites recognise it."""
        config = {key: value for key, value in self._config.as_mapping().items() if key not in ("rounds", "workers")}
        whole = json.dumps([config, self._description], sort_keys=True, default=str).encode()
        return hashlib.blake2b(whole, key=self.fleet.secret[:64], digest_size=8).hexdigest()

    def _load_accounts(self) -> None:
        """Load which models sites hold of a run that is resumed."""
        if self._accounts.is_file():
            self._exchange.holds = read_accounts(self._accounts)

    def _save_accounts(self) -> None:
        if self._exchange.holds:
            self._accounts.parent.mkdir(exist_ok=True)
            replace_file(self._accounts, json.dumps(self._exchange.holds).encode())


def read_accounts(path: Path) -> dict[int, list[str]]:
    """Return client → digests of the models that it holds, from a file."""
    try:
        held: Mapping[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))
        return {int(client): [str(model) for model in models] for client, models in held.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Refusal(
            f"{path}, which says what models sites hold, is damaged ({error}). Delete it to resume the run; if its "
            "method leaves models at sites, begin another."
        ) from error


@dataclass
class _Session:
    """A run on a fleet's SuperLink, shared by all runtimes of this process with the same model."""

    key: tuple[Path, str]
    link: Link
    grid: FleetGrid
    stack: ExitStack
    identity: TaskNumbers
    users: int = 0

    @classmethod
    def enter(cls, fleet: Fleet, description: str, limit: int) -> "_Session":
        key = (fleet.folder, description)
        if key not in _sessions:
            stack = ExitStack()
            try:
                link = Link(fleet.address, fleet.server / "ca.crt", fleet.secret)
                if not any(other.key[0] == fleet.folder for other in _sessions.values()):
                    stack.enter_context(alone(fleet))
                    if warning := link.open_to_all():
                        warnings.warn(warning, stacklevel=2)
                    link.stop_runs()
                app = fleet.server / "app"
                write_app(app, description)
                grid = stack.enter_context(link.grid(app, poll=fleet.rules.poll, limit=limit))
            except BaseException:
                stack.close()
                raise
            _sessions[key] = cls(key, link, grid, stack, task_identity())
        session = _sessions[key]
        session.users += 1
        return session

    def stopped(self) -> bool:
        """True if somebody else stopped the run."""
        try:
            return self.link.stopped(self.grid.run.run_id)
        except Refusal:
            return False

    def act(self) -> None:
        """Send messages as this run's server from now on."""
        set_task_identity(*self.identity)

    def leave(self) -> None:
        self.users -= 1
        if not self.users:
            del _sessions[self.key]
            self.act()
            self.stack.close()


_sessions: dict[tuple[Path, str], _Session] = {}
