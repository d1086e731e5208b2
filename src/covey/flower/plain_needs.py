"""What methods need of clients beyond training: which of it an app that knows nothing of Covey gives, and who adds it.

Such an app gives a trained model, its number of samples and, if it tells it, its training loss; when it evaluates a
model, the loss on the samples that it evaluates on. From these the server can learn losses of single clients (by
requests to evaluate) and estimate their skew (from the updates of their last layers).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from covey.config.choice import Choice
from covey.config.recipe import recipe_of
from covey.config.schema import Config
from covey.core.build import PLAIN as PLAIN_TRAINING
from covey.core.messages import Order
from covey.errors import Refusal
from covey.selection.update_insight import UPDATE

MOD = "Covey's mod adds it to an app: ClientApp(mods=[covey.flower.mod(model=..., data=...)])"
CLIENT_APP = "Covey's own client app does: covey.flower.client_app(model=..., data=...), without train="

LOSSES = ("losses", "utility")
"""Measurements that the server makes by requests to evaluate."""

SELECTORS = {
    "balanced": "tell their class shares (with selector.shares=updates, nothing is asked)",
    "fed-cbs": "tell their class shares",
    "fedentopt": "tell their class shares",
    "oort": "measure the mean square of their losses (oort-simple needs their training loss alone)",
    "nccb": "hash their samples",
    "k-linucb": "hash their samples",
}
AGGREGATORS = {
    "cmfl": "keep a model that disagrees with the last global update (with cmfl-server, the server drops it)",
    "ondemand": "estimate their class shares",
}
MANY_BY_MOD = {
    "local-only": "keep a model of their own",
    "mocha": "keep dual variables and send sums of their features",
}
MANY_BY_CLIENT_APP = {
    "mocha-deep": "are pulled towards another model in every local step",
    "fedfomo": "keep samples out of training and try other clients' models on them",
    **dict.fromkeys(("fedbn", "fedper", "fedrep"), "keep a part of the model"),
    "ditto": "train a model of their own beside the global one",
}
_ESTIMATED = ("fedacs", "rexp3")
"""Selectors whose insight can be estimated from updates."""


@dataclass(frozen=True)
class Needs:
    """What a method needs of clients beyond a trained model and a number of samples."""

    by_mod: tuple[str, ...] = ()
    """What only apps with the mod (or Covey's own) give."""
    by_client_app: tuple[str, ...] = ()
    """What only Covey's own training gives."""
    losses: bool = False
    """The loss of a model that clients evaluate."""
    train_loss: bool = False
    """The training loss."""
    insight: bool = False
    """The last layer's insight, which can be estimated from updates."""

    @property
    def more(self) -> bool:
        """True if apps with the mod give more than others."""
        return bool(self.by_mod or self.by_client_app or self.losses or self.insight)


def needs_of(config: Config) -> Needs:
    """Return what a configuration's method needs of its clients."""
    by_mod, by_app = [], []
    names = [config.aggregator.name, *_inner(config.aggregator)] if config.aggregator else []
    selector = config.selector.name if config.selector else ""
    insight = selector in _ESTIMATED and config.selector is not None and config.selector.options["insight"]
    asking = "" if selector == "balanced" and _reads_updates(config) else selector
    for name, table in ((asking, SELECTORS), *((name, AGGREGATORS) for name in names)):
        if name in table:
            by_mod.append(table[name])
    if insight and insight not in ("head", UPDATE):
        by_mod.append(f"measure the insight {insight}")
    if config.many is not None:
        by_mod += [table[config.many.name] for table in (MANY_BY_MOD,) if config.many.name in table]
        by_app += [table[config.many.name] for table in (MANY_BY_CLIENT_APP,) if config.many.name in table]
    if config.trainer is not None and config.trainer.name != PLAIN_TRAINING:
        by_app.append(f"train as {config.trainer.name} does")
    if config.local.proximal:
        by_app.append(
            "are pulled towards the received model in every local step (local.proximal; apps that read proximal-mu, as "
            "for Flower's FedProx, go with fedavg and train_config={'proximal-mu': ...})"
        )
    if recipe_of(config.method).resident:
        by_mod.append("keep their models")
    measured = (
        selector in ("power-of-choice", "fedcor")
        or any(name in _BY_LOSS for name in names)
        or _fairness(config.aggregator)
    )
    return Needs(tuple(by_mod), tuple(by_app), measured, selector == "oort-simple", insight == "head")


def _reads_updates(config: Config) -> bool:
    return config.selector is not None and config.selector.options.get("shares") == "updates"


_BY_LOSS = ("feddrl", "feddrl-set", "loss-softmax", "qffl")


def _inner(aggregator: Choice) -> Sequence[str]:
    """Return the aggregator that another one is around."""
    around = aggregator.options.get("around")
    return [] if around is None else [str(around).partition(",")[0].strip()]


def _fairness(aggregator: Choice | None) -> bool:
    return aggregator is not None and bool(aggregator.options.get("fairness"))


def require_given(config: Config, needs: Needs, plain: Sequence[str], with_mod: Sequence[str]) -> None:
    """Refuse a method that needs more than its clients give; `plain` and `with_mod` are names of clients."""
    if plain and (lacking := (*needs.by_mod, *needs.by_client_app)):
        raise Refusal(
            f"The method '{config.method}' needs clients that {', and '.join(lacking)}. The apps of these clients know "
            f"nothing of Covey: {listed(plain)}. {CLIENT_APP if needs.by_client_app else MOD}."
        )
    if with_mod and needs.by_client_app:
        raise Refusal(
            f"The method '{config.method}' needs clients that {', and '.join(needs.by_client_app)}. These clients "
            f"train by functions of their own: {listed(with_mod)}. {CLIENT_APP}."
        )


def listed(names: Iterable[str]) -> str:
    """Return names of clients for a message."""
    every = list(names)
    return f"{', '.join(every[:10])}{' …' * (len(every) > 10)}"


def with_estimated_insight(config: Config) -> Config:
    """Return the configuration with the selector's insight estimated from updates."""
    assert config.selector is not None
    return replace(config, selector=Choice(config.selector.name, {**config.selector.options, "insight": UPDATE}))


def require_plain_order(order: Order, measured: Iterable[str]) -> None:
    """Refuse an order that asks an app without Covey for more than it gives: one of a user's own parts may."""
    asked = [f"measure {probe.name}" for probe in order.probes if probe.name not in measured]
    trainer = "" if order.trainer is None else order.trainer.ref.name
    conditions = {
        "keep their models": order.train and order.resident,
        "keep a model on a condition": order.gate is not None,
        "are pulled towards a model": order.anchor is not None or order.work.proximal,
        "keep samples out of training": order.holdout,
        f"train as {trainer} does": trainer,
    }
    asked += [what for what, needed in conditions.items() if needed]
    if asked:
        raise Refusal(f"The method needs clients that {', and '.join(asked)}, and apps without Covey do not. {MOD}.")
