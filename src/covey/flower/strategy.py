"""Any of Covey's methods as a Flower strategy.

Flower keeps its rounds, and Covey's round loop runs inside them: `configure_train` advances it to the round's order,
`aggregate_train` sends it the replies.
"""

import logging
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from numpy.typing import NDArray
from torch import Tensor, nn

from covey.arrays import IntArray
from covey.config.runtime_choice import STORED
from covey.config.schema import Config, resolve
from covey.config.sections import Local
from covey.core.build import method_of, setting_of
from covey.core.checkpoint import FORMAT, has_checkpoint
from covey.core.client_names import write_names
from covey.core.interfaces import Method
from covey.core.loaded_state import load_state
from covey.core.loop import Joint, LoopRun, Request, RoundWriter, Survey, perform_jointly, round_loop
from covey.core.messages import Order
from covey.core.records import folder_format
from covey.core.stall_warning import warn_of_stall
from covey.core.trainer_state import OwnParts, own_parts_of
from covey.errors import Refusal, require
from covey.flower.answer_text import declined
from covey.flower.client_check import meet_clients
from covey.flower.client_reports import reported_metric
from covey.flower.client_scores import mean_scores, shares
from covey.flower.exchange import Configure
from covey.flower.live_method import require_fitting_selector, require_live
from covey.flower.named_arrays import NamedArrays
from covey.flower.node_app import digest_in
from covey.flower.plain_messages import PlainClients, PlainScores, averaged
from covey.flower.public_keys import public_bytes
from covey.flower.roster import Roster
from covey.flower.started_run import StartedRun
from covey.flower.strategy_folder import RunFolder
from covey.flower.strategy_runtime import StrategyRuntime
from covey.flower.user_model import traced
from covey.model.layout import Layout
from covey.randomness import generator
from covey.storage import write_json
from covey.task.label_kinds import PLAIN_TASK, named_task
from covey.task.learning_task import ACCURACY, Metric

_log = logging.getLogger("flwr")

_NOT_STARTED = "The strategy has not been started: strategy.start(grid=...)."

PartChoice = str | Mapping[str, Any]
"""A part by name, or a mapping with its name and options."""


class Strategy(FlowerStrategy):
    """A method by name, or a selector and an aggregator: `Strategy("fedacs", model=Net(), clients=20)`.

    method: any of `covey list methods`, except references that rearrange clients' data (central, iid).
    model: the model that clients train, for the names and shapes of its tensors. Clients without Covey need none here:
        the initial arrays say as much, of any framework.
    clients: the number of clients; the strategy waits for all of them before the first round.
    names: the clients' names, if they have any. Then `clients` can be left out, and each client keeps its number
        independently of the others connected.
    keys: name → file with the public key of the client's SuperNode (as given to `flwr supernode register`). Then a
        client is whoever holds its key. Otherwise nodes state their names, which the log and `identities.json` say.
    cohort: clients invited each round, a count or a fraction.
    selector, aggregator, trainer, many: parts or their options, as in `covey.run`.
    local: local training, as in `covey.run` (`{"epochs": 1, "rate": 0.05}`).
    guard: what is believed of clients' updates and sample counts, as in `covey.run` (`{"invitations": 1.5}`).
    server, averaging: the server's optimiser and the average over rounds, as in `covey.run` (`{"optimizer": "adam"}`,
        `{"ema": 0.95}`). Clients train from the model itself; the average is evaluated, and is the result.
    head: name of the model's last layer; by default the linear layer that it ends in, or without a model the last
        matrix among the initial arrays with the vector behind it.
    plain: True if the clients' apps know nothing of Covey, False if all have it; None asks each when it joins.
    messages: the names in messages of clients without Covey, where they are not those of Flower's quickstarts.
    evaluate: share of the clients that evaluate their model after each round; 0 is none.
    configure: `configure(round, name)`, settings for single clients.
    patience: seconds to wait for the clients before the first round.
    folder: a run folder, written after every round: the method's whole state, from which `start` resumes, and the
        clients that failed and why, for `covey report`. A folder of another run is refused; more rounds are allowed.
    task: what clients' apps learn (`task="regression"`); by default one class a sample.
    strikes: failures in a row after which a client is not invited for a round, then two, four, … (0: never rested).

    Flower's `start(timeout=...)` limits how long a round waits for answers.
    """

    def __init__(
        self,
        method: str | None = None,
        *,
        model: nn.Module | None = None,
        clients: int | None = None,
        names: Sequence[str] | None = None,
        keys: Mapping[str, Path | str] | None = None,
        cohort: int | float = 0.1,
        selector: PartChoice | None = None,
        aggregator: PartChoice | None = None,
        trainer: PartChoice | None = None,
        many: PartChoice | None = None,
        local: Local | Mapping[str, Any] | None = None,
        guard: Mapping[str, Any] | None = None,
        server: Mapping[str, Any] | None = None,
        averaging: Mapping[str, Any] | None = None,
        head: str | None = None,
        seed: int = 0,
        evaluate: float = 1.0,
        configure: Configure | None = None,
        patience: float = 60.0,
        folder: Path | str | None = None,
        strikes: int = 2,
        task: PartChoice | None = None,
        plain: bool | None = None,
        messages: PlainClients | None = None,
    ) -> None:
        names = list(keys) if names is None and keys is not None else names
        require(
            keys is None or set(names or ()) == set(keys),
            "keys= and names= are about other clients: give a key for each name.",
        )
        if names is None and clients is None:
            raise Refusal("Say how many clients there are (clients=20), or what they call themselves (names=[...]).")
        count = len(names) if names is not None else clients
        require(names is None or clients in (None, count), f"There are {count} names for {clients} clients.")
        require(strikes >= 0, f"strikes must not be negative, not {strikes}.")
        require(0 <= evaluate <= 1, f"evaluate is a share in [0, 1], not {evaluate:g}.")
        given = {"method": method, "selector": selector, "aggregator": aggregator, "trainer": trainer, "many": many}
        given |= {"guard": guard, "server": server, "averaging": averaging, "task": task or PLAIN_TASK["name"]}
        self._given: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self._given |= {"clients": count, "cohort": cohort, "seed": seed}
        self._local = local
        self._module = None if model is None else traced(model, head)
        self._head = head
        self._plain, self._messages = plain, messages or PlainClients()
        self._names = names
        self._keys = None if keys is None else {public_bytes(Path(file)): name for name, file in keys.items()}
        require(self._keys is None or len(self._keys) == len(keys or ()), "Two clients have the same key in keys=.")
        self._configure = configure
        self._patience = patience
        self._place = None if folder is None else Path(folder)
        self._folder: RunFolder | None = None
        self._strikes = strikes
        self._done = 0
        self.evaluate = evaluate
        self.config = self._configured(1)
        require_live(self.config.method)
        require_fitting_selector(self.config)
        self.layout: Layout | None = None if self._module is None else Layout.of(self._module)
        """The places of the model's arrays; without a model it is known when the strategy has been started."""
        self.history: list[dict[str, Any]] = []
        """One entry for each round: the clients invited, those that answered, and the faults."""
        self.method: Method | None = None
        """Built by `start`; `method.state_dict()` is what a checkpoint needs."""
        self._started: StartedRun | None = None
        """Made by `start`."""
        self._order: Order | None = None
        self._loop: Generator[Request, Any, None] | None = None
        """The round loop, paused at the current round's order."""

    def _configured(self, rounds: int) -> Config:
        earlier = self._place is not None and folder_format(self._place) < FORMAT
        return resolve(
            {"runtime": STORED, **self._given, "rounds": rounds, "local": self._local_values()}, earlier=earlier
        )

    def _local_values(self) -> dict[str, Any]:
        local = {} if self._local is None else self._local
        return dict(vars(local) if isinstance(local, Local) else local)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | Sequence[NDArray[Any]],
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Wait for the clients, then run the rounds as every Flower strategy does."""
        if not isinstance(initial_arrays, ArrayRecord):
            initial_arrays = ArrayRecord(list(initial_arrays))
        layout = None if self._module is None else Layout.of(self._module)
        arrays = NamedArrays.of(initial_arrays, layout, self._head)
        meeting = meet_clients(
            grid,
            self._configured(num_rounds),
            Roster(self.config.clients, self._names, patience=self._patience, keys=self._keys, plain=self._plain),
            arrays,
            self._messages,
            constants="" if self._module is None else digest_in(arrays.given, self._module),
            timeout=timeout,
            configure=self._configure,
            told=tuple(self._local_values()),
            evaluate_settings=evaluate_config or {},
            modelled=layout is not None,
        )
        self.config, arrays, exchange = meeting.config, meeting.arrays, meeting.exchange
        self.layout, config = arrays.layout, self.config
        expected = "names= does not list them" if self._names else f"{config.clients} clients are expected"
        runtime = StrategyRuntime(exchange, grid, strikes=self._strikes, expected=expected)
        on_round = None if self._place is None else warn_of_stall(self._place, None)
        self._started = StartedRun(arrays, runtime, on_round)
        self.history = runtime.history
        resumed = self._place is not None and has_checkpoint(self._place)
        task = named_task(config.task.as_mapping())
        classes = arrays.classes if task.has_classes else 0
        setting = setting_of(config, config.clients, classes, arrays.layout, resumed=resumed, live=True, task=task.name)
        self.method = method_of(config, setting, arrays.initial())
        begin = self._resumed(initial_arrays, config)
        done, rounds = self._done, num_rounds - self._done
        if rounds <= 0:
            _log.info("Nothing is left to do (rounds asked for: %d, done: %d).", num_rounds, done)
        score = evaluate_fn and (lambda number, model: evaluate_fn(number + done, model))
        try:
            result = super().start(grid, begin, rounds, timeout, train_config, evaluate_config, score)
        finally:
            if self._folder is not None:
                self._folder.close()
        # Flower counts the rounds of this call.
        for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, kind, {number + done: record for number, record in getattr(result, kind).items()})
        if not result.arrays:
            result.arrays = begin
        return result

    def _resumed(self, initial: ArrayRecord, config: Config) -> ArrayRecord:
        """Open the folder; return the model to begin with, that of the checkpoint where there is one."""
        self._done = 0
        self._folder = None
        if self._place is None:
            return initial
        started = self._running()
        self._folder = RunFolder(self._place, config, started.arrays.layout)
        started.exchange.run = self._folder.name(started.exchange.run)
        write_names(self._place, started.exchange.roster.names)
        write_json(self._place / "identities.json", started.exchange.roster.identities())
        if self._folder.state is None:
            return initial
        load_state(self._ready(), self._folder.state, self._place)
        started.runtime.restore([self._folder.last])
        self._done = self._folder.done
        return self._model_arrays()

    def _require_nothing_lost(self, order: Order) -> None:
        """Refuse to resume a method that needs arrays of its clients: Flower gives them a new memory with each run."""
        require(
            not (order.train and order.resident)
            and not any(probe.kept for probe in order.probes)
            and not isinstance(self._ready(), OwnParts),
            f"The run in {self._place} cannot be resumed: '{self.config.method}' leaves with clients what only "
            "they know (their own models or variables), and Flower gives these a new memory when a ServerApp starts "
            "again. Begin another run, or use covey fleet, whose sites keep theirs.",
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Advance the round loop to the round's order, and return its messages; none where nobody can be reached."""
        runtime, t = self._running().runtime, server_round + self._done
        runtime.grid = grid
        runtime.exchange.settings = dict(config)
        self._order, self._loop = None, round_loop(self._loop_run(t), lambda: False)
        request = next(self._loop)
        if isinstance(request, Survey):
            request = self._loop.send(runtime.execute(request.order))
        if not isinstance(request, Order):
            return []
        self._order = request
        if self._done and t == self._done + 1:
            self._require_nothing_lost(request)
        return runtime.messages(request)

    def _loop_run(self, t: int) -> LoopRun:
        """Return one round as a run: the loop must not look for clients of the next before Flower begins it."""
        started = self._running()
        records: RoundWriter = started.count if self._folder is None else self._folder.records
        # A round that reached nobody has left no record.
        records.rounds_done = t - 1
        return LoopRun(self._ready(), started.runtime, records, None, t, evaluate_every=0, on_round=started.on_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Send the round loop the replies; return the next model and the round's metrics.

        Metrics are means over the clients whose replies are believed, by the samples that they are believed to have.
        With the guard on, no client weighs more than twice the mean client in those that it reports by itself.
        """
        if self._order is None or self._loop is None:
            return None, None
        request = self._loop.send(self._running().runtime.read(self._order, replies))
        assert isinstance(request, Joint)
        found = request.replies
        perform_jointly(request.works)
        next(self._loop, None)
        self.history[-1]["figures"] = self._ready().figures()
        if not len(found):
            # The round may have moved the model all the same, such as back to the one before.
            return self._model_arrays(), None
        told = self._running().exchange.plain.metrics_of(found.clients.tolist())
        metrics: dict[str, Any] = averaged(told, shares(found.samples.double().numpy(), bounded=self.config.guard.on))
        metrics |= {"clients": len(found), "num-examples": int(found.samples.sum())}
        if self._order.train and math.isfinite(found.train_loss):
            metrics["train_loss"] = found.train_loss
        return self._model_arrays(), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Have each client (or a share of them) evaluate the model that it uses."""
        method, exchange, server_round = self._ready(), self._running().exchange, server_round + self._done
        reachable = exchange.roster.available()
        count = round(self.evaluate * len(reachable))
        if not count:
            return []
        rng = generator(self.config.seed, server_round, "evaluation")
        chosen: IntArray = np.sort(rng.choice(reachable, size=count, replace=False))
        rows = torch.from_numpy(method.model_of_client[chosen])
        models = method.models()
        start = models[0] if len(models) == 1 else models[rows]
        own = self._order is not None and self._order.train and self._order.resident
        parts = own_parts_of(method, chosen)
        order = Order(server_round, chosen, start, self.config.local, train=False, resident=own, trainer=parts)
        return exchange.messages(order, evaluate=True)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the mean loss and accuracy (or other main metric) over clients, weighted by their samples.

        With the guard on, no client weighs more than twice the mean client: nobody can check what it says.
        """
        exchange = self._running().exchange
        found: dict[int, PlainScores] = {}
        unscored: dict[int, str] = {}
        metrics: dict[int, Metric] = {}
        for reply in replies:
            client = exchange.roster.client_of(reply.metadata.src_node_id)
            if client is not None and reply.has_error():
                unscored[client] = declined(reply)
            scores = exchange.scores_in(reply)
            if client is not None and scores is not None:
                found[client] = scores
                metrics[client] = reported_metric(reply) or ACCURACY
        self._running().runtime.note_unscored(unscored)
        if self._folder is not None:
            self._folder.note_unscored(server_round + self._done, unscored)
        if not found:
            return None
        metric = metrics[min(found)]
        # Clients that measure otherwise than the first one have another task.
        alike = {client: scores for client, scores in found.items() if metrics[client] == metric}
        means = mean_scores(alike, bounded=self.config.guard.on)
        if self._folder is not None:
            self._folder.score(server_round + self._done, means, metric)
        return MetricRecord(means)

    def summary(self) -> None:
        """Log the method and its parts."""
        config = self.config
        parts = [choice.name for choice in (config.selector, config.aggregator, config.trainer, config.many) if choice]
        _log.info("\t├──> Covey: %s (%s)", config.method, ", ".join(parts))
        _log.info("\t└──> %d of %d clients a round, seed %d", config.cohort, config.clients, config.seed)

    def models(self) -> dict[str, dict[str, Tensor]]:
        """Return client's name → tensors of the model that it uses."""
        method = self._ready()
        states = method.models()
        names = self._running().exchange.roster.names
        named = self._running().arrays.named
        return {name: named(states[method.model_of_client[client]]) for client, name in enumerate(names)}

    def _ready(self) -> Method:
        if self.method is None:
            raise Refusal(_NOT_STARTED)
        return self.method

    def _running(self) -> StartedRun:
        if self._started is None:
            raise Refusal(_NOT_STARTED)
        return self._started

    def _model_arrays(self) -> ArrayRecord:
        """Return the global model; for methods with many models, their mean over clients."""
        method, arrays = self._ready(), self._running().arrays
        states = method.models()
        if len(states) == 1:
            return arrays.record(states[0])
        return arrays.record(states[torch.from_numpy(method.model_of_client)].mean(dim=0))
