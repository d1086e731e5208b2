"""Settings from Python callers, and federations that are passed in rather than described by settings."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.config.schema import GIVEN, Config, resolve
from covey.config.values import nested, overlay, own_names
from covey.core.build import altered_federation
from covey.data.dataset import for_task
from covey.environment.federated_data import Federation
from covey.errors import require
from covey.job.job_folder import free_folder
from covey.registry import coerce


def describing(federation: Federation) -> dict[str, Any]:
    """Return the settings that stand for a federation that is passed in."""
    return {
        "dataset": {"name": GIVEN, "fingerprint": federation.fingerprint},
        "environment": GIVEN,
        "clients": federation.clients,
    }


def with_federation(
    given: Mapping[str, Any] | Config | None, settings: Mapping[str, Any], federation: Federation
) -> dict[str, Any]:
    """Return the settings with those of a federation that is passed in; another number of clients is refused."""
    for asked in (given, settings):
        if isinstance(asked, Mapping) and asked.get("clients") is not None:
            clients = coerce(asked["clients"], int, "clients")
            require(
                clients == federation.clients,
                f"The federation passed in has {federation.clients} clients, and clients asks for {clients}: leave "
                "clients out, or pass in another federation.",
            )
    return {**settings, **describing(federation)}


def as_configured(given: Federation, config: Config) -> Federation:
    """Return the federation that is passed in, altered as configured; one with another fingerprint is refused."""
    expected = config.dataset.options.get("fingerprint")
    require(
        config.dataset.name == GIVEN and expected in _fingerprints(given),
        "The federation passed in is not the one that this run was made with "
        f"(fingerprint {given.fingerprint}, expected {expected}).",
    )
    config.require_trusted("task")
    dataset = for_task(given.dataset, config.task.as_mapping())
    if given.dataset.note and config.task.name == "auto":
        warnings.warn(given.dataset.note, stacklevel=2)
    return altered_federation(given if dataset is given.dataset else replace(given, dataset=dataset), config)


def _fingerprints(given: Federation) -> tuple[str, ...]:
    """Return the fingerprint of a federation, and the one of folders from before clients had tests of their own."""
    if given.test_parts is None:
        return (given.fingerprint,)
    return given.fingerprint, replace(given, test_parts=None).fingerprint


def as_config(
    given: Mapping[str, Any] | Config | None, settings: Mapping[str, Any], *, earlier: bool = False
) -> Config:
    """Return a configuration with more settings laid over it; dotted keys reach into sections.

    With `earlier`, settings that are not given have the values that held before they existed. Code that the
    configuration's folder may not name stays refused, unless the settings name it.
    """
    more = expand(settings)
    refused = {}
    if isinstance(given, Config):
        typed = own_names(more).values()
        refused = {where: name for where, name in given.refused.items() if name not in typed}
    mapping: dict[str, Any] = given.as_mapping() if isinstance(given, Config) else {}
    if isinstance(given, Mapping):
        mapping = expand(given)
    return resolve(overlay(mapping, more), earlier=earlier, refused=refused)


def expand(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nest settings with dotted keys into their sections."""
    mapping: dict[str, Any] = {}
    for key, value in settings.items():
        mapping = overlay(mapping, nested(key, value))
    return mapping


def default_folder(config: Config) -> Path:
    """Return `runs/<time>-<method>-<environment>-s<seed>`, numbered if it exists."""
    name = f"{config.method}-{config.environment.name}-s{config.seed}"
    return free_folder(re.sub(r"[^A-Za-z0-9.+-]+", "-", name))
