"""Before the first round: who the clients are, what they know of Covey, and whether that is enough for the method."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp import Grid

from covey.config.schema import Config
from covey.errors import Refusal, require
from covey.flower.answer_text import declined, short
from covey.flower.exchange import Configure
from covey.flower.mixed_exchange import MixedExchange
from covey.flower.named_arrays import NamedArrays
from covey.flower.node_kinds import NodeKind, mod_question
from covey.flower.plain_messages import SERVER_ROUND, PlainClients, shown
from covey.flower.plain_needs import listed, needs_of, require_given, with_estimated_insight
from covey.flower.plain_side import PlainSide
from covey.flower.roster import Roster

_log = logging.getLogger("flwr")


@dataclass(frozen=True, eq=False)
class Meeting:
    """What is known once all clients are there."""

    config: Config
    """The run's configuration, for these clients."""
    arrays: NamedArrays
    exchange: MixedExchange


def meet_clients(
    grid: Grid,
    config: Config,
    roster: Roster,
    arrays: NamedArrays,
    messages: PlainClients,
    *,
    timeout: float,
    configure: Configure | None,
    told: Sequence[str],
    evaluate_settings: Mapping[str, Any],
    modelled: bool,
    constants: str = "",
) -> Meeting:
    """Wait for the clients, and refuse a method that asks for more than they give.

    told: settings of local training that the user gave.
    modelled: True if the user gave the model, and not its arrays alone.
    constants: digest of the model's frozen parts, which clients with Covey have themselves.
    """
    named = bool(roster.names) and roster.keys is None
    roster.question = question_of(config, messages, arrays.record(arrays.initial()), named=named)
    roster.wait(grid, timeout)
    config, by_evaluation = settled(config, roster, messages)
    alone = len(clients_of(roster, NodeKind.PLAIN)) == len(roster.available())
    arrays = arrays.in_full_precision() if alone else arrays
    require(
        alone or modelled or all(name.isdecimal() for name in arrays.given),
        "Some clients have Covey: give the strategy the model that they train, model=..., for the order of its arrays.",
    )
    plain = PlainSide(
        arrays,
        messages,
        told=told,
        by_evaluation=by_evaluation,
        needs_train_loss=needs_of(config).train_loss,
        evaluate_settings=evaluate_settings,
    )
    options: dict[str, Any] = {"seed": config.seed, "timeout": timeout, "configure": configure, "constants": constants}
    return Meeting(config, arrays, MixedExchange(roster, plain, **options))


def question_of(config: Config, messages: PlainClients, arrays: ArrayRecord, *, named: bool) -> RecordDict | None:
    """Return the question that tells apps with the mod from others; None where it makes no difference.

    It is a request to evaluate the initial model, which apps without the mod answer with their metrics.
    """
    if not (needs_of(config).more or named):
        return None
    return mod_question(messages.content(arrays, {SERVER_ROUND: 0}), messages.config)


def settled(config: Config, roster: Roster, messages: PlainClients) -> tuple[Config, bool]:
    """Return the configuration for these clients, and whether losses are measured by requests to evaluate.

    Refuse a method that asks for more than these clients give.
    """
    needs = needs_of(config)
    plain, with_mod = clients_of(roster, NodeKind.PLAIN), clients_of(roster, NodeKind.MOD)
    names = [roster.names[client] for client in plain]
    require_given(config, needs, names, [roster.names[client] for client in with_mod])
    if not plain:
        return config, False
    _log.info("Apps without Covey: %s.", listed(names))
    if needs.insight:
        assert config.selector is not None
        _log.info(
            "They measure no insight, so %s estimates the skew of all clients from the updates of their last layers "
            "(selector.insight=update).",
            config.selector.name,
        )
        config = with_estimated_insight(config)
    if needs.losses:
        _require_losses(config, roster, plain, messages)
        _log.info("The losses of all clients are those that they report when they evaluate a model.")
    return config, needs.losses


def clients_of(roster: Roster, kind: NodeKind) -> list[int]:
    """Return the connected clients of a kind."""
    return [client for client in roster.available().tolist() if roster.kind_of(client) is kind]


def _require_losses(config: Config, roster: Roster, plain: Sequence[int], messages: PlainClients) -> None:
    """Refuse if a client that was asked for a report tells no loss in it."""
    for client in plain:
        report, name = roster.report_of(client), roster.names[client]
        if report is None:
            continue
        needed = f"The method '{config.method}' needs the losses of clients, and client {name}"
        if report.has_error():
            raise Refusal(f"{needed} cannot evaluate a model: {declined(report)}.")
        try:
            scores = messages.scored(report.content)
        except Exception as error:
            why = short(str(error)) if isinstance(error, Refusal) else type(error).__name__
            raise Refusal(f"{needed} reports nothing that can be read: {why}.") from error
        require(
            scores.loss is not None,
            f"{needed} reports none when it evaluates a model; its metrics are {shown(scores.metrics)}. If one of them "
            "is a loss, name it: Strategy(..., messages=covey.flower.PlainClients(loss=(...,))).",
        )
