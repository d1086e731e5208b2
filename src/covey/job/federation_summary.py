"""Summary of a federation: figures, a drawing for the terminal, and a page."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from covey.arrays import FloatArray, IntArray
from covey.config.schema import Config
from covey.core.build import build_federation
from covey.core.scores import LISTED_CLASSES
from covey.environment.federated_data import Federation
from covey.environment.truth import Shares
from covey.errors import require
from covey.job.page_link import write_page_about
from covey.job.settings import as_config, describing

SHOWN = 40
"""Largest number of clients drawn in a terminal."""

LISTED = 10_000
"""Most clients that are listed one by one for programs; of more, `_SAMPLED` evenly spread by skew."""

_SAMPLED = 1_000
_BAR = 40
_NAME = 16
_SYMBOLS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_COLOURS = (
    ("#FFFFFF", "#0A63A8"),
    ("#000000", "#F0A13C"),
    ("#FFFFFF", "#00695A"),
    ("#000000", "#E79AD0"),
    ("#000000", "#8CCBF5"),
    ("#FFFFFF", "#A23A00"),
    ("#000000", "#F0DD5A"),
    ("#FFFFFF", "#5B3F8C"),
    ("#000000", "#7FD8A8"),
    ("#FFFFFF", "#4A525C"),
)
"""Text and background colour of each class. Neighbours differ in lightness too, and cells carry a class symbol."""


@dataclass(frozen=True, eq=False, repr=False)
class Description:
    """The figures of a federation."""

    config: Config
    class_names: tuple[str, ...]
    available: int
    """Training samples of the data set."""
    distinct: int
    """Different training samples that clients hold."""
    shared: bool
    """True if clients share samples."""
    sizes: IntArray
    """`[clients]`: numbers of samples."""
    skew: FloatArray
    """`[clients]`: true skew."""
    shares: Shares
    """`[clients, classes]`: class mix, rows sum to one; those of some clients are `shares[clients]`."""
    names: tuple[str, ...] = ()
    """Names of the clients, if the data has any."""
    task: str = "classification"
    """What models learn. Where it has no classes, shares are of the groups that environments deal in their place."""
    altered: Mapping[str, int] = field(default_factory=dict)
    """Kind of alteration → number of clients that have it."""

    def __repr__(self) -> str:
        least, most = int(self.sizes.min()), int(self.sizes.max())
        size = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        where = f"{self.config.dataset.name}, environment {self.config.environment.name}"
        return f"Description({where}: {self.clients:,} clients of {size} samples, mean skew {self.skew.mean():.2f})"

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    @property
    def order(self) -> IntArray:
        """Clients by skew, the most skewed last."""
        return np.argsort(self.skew, kind="stable")

    def sample(self, count: int) -> IntArray:
        """Return at most `count` clients, evenly spread by skew, with the least and the most skewed among them."""
        places = np.unique(np.linspace(0, self.clients - 1, min(count, self.clients)).round().astype(np.int64))
        return self.order[places]

    def name(self, client: int) -> str:
        """Return a client's name, or else its number."""
        return self.names[client] if self.names else str(client)

    def as_mapping(self) -> dict[str, Any]:
        """Return the figures for JSON, of all clients or of a sample of very many."""
        listed = range(self.clients) if self.clients <= LISTED else sorted(self.sample(_SAMPLED).tolist())
        sampled = f"{len(listed):,} of {self.clients:,} clients, evenly spread by skew"
        return {
            "dataset": self.config.dataset.as_mapping(),
            "environment": self.config.environment.as_mapping(),
            "seed": self.config.seed,
            "clients": self.clients,
            "samples": int(self.sizes.sum()),
            "distinct_samples": self.distinct,
            "available_samples": self.available,
            "shared": self.shared,
            "sizes": _range(self.sizes),
            "classes": len(self.class_names),
            **({} if self.groups == "classes" else {"task": self.task}),
            **({"class_names": list(self.class_names)} if self.lists_classes else {}),
            "skew": _range(self.skew),
            "altered": dict(self.altered),
            "label_noise": self.config.altered.noise,
            **({"each_is": sampled} if len(listed) < self.clients else {}),
            "each": [
                {
                    "client": client,
                    "name": self.name(client),
                    "samples": int(self.sizes[client]),
                    "skew": float(self.skew[client]),
                    **({"shares": self.shares[client].tolist()} if self.lists_classes else {}),
                }
                for client in listed
            ],
        }

    @property
    def groups(self) -> str:
        """What the shares are of: classes, or what a task has in their place."""
        others = {"regression": "quantile bins of the target", "multilabel": "rarest labels"}
        return others.get(self.task, "classes")

    @property
    def lists_classes(self) -> bool:
        """True if there are few enough classes to list each; a language's words are too many."""
        return len(self.class_names) <= LISTED_CLASSES

    def rows(self) -> list[tuple[str, str]]:
        """Return the summary: name and figure."""
        low, middle, high = np.min(self.sizes), np.median(self.sizes), np.max(self.sizes)
        held = int(self.sizes.sum())
        sharing = (
            f"yes: {held:,} held in all, {self.distinct:,} different ones" if self.shared else "no: each has one holder"
        )
        rows = [
            ("data set", f"{self.config.dataset.name}, {self.available:,} training samples"),
            ("environment", _part(self.config.environment.as_mapping())),
            ("seed", str(self.config.seed)),
            ("clients", f"{self.clients:,}"),
            ("samples in all", f"{held:,}"),
            ("samples per client", f"{low:,} to {high:,}, median {middle:,g}" if low < high else f"{low:,} each"),
            ("samples shared", sharing),
            (self.groups, f"{len(self.class_names):,}"),
            ("skew", f"{self.skew.min():.2f} to {self.skew.max():.2f}, median {np.median(self.skew):.2f}"),
        ]
        if self.altered:
            rows.append(("altered clients", ", ".join(f"{count} {kind}" for kind, count in self.altered.items())))
        if self.config.altered.noise:
            rows.append(("noisy labels", f"{self.config.altered.noise:.1%} of every client's"))
        return rows

    def show(self, console: Console) -> None:
        """Print the summary, and a bar of class symbols for each client, the most skewed last."""
        summary = Table(box=box.SIMPLE, show_header=False)
        for name, figure in self.rows():
            summary.add_row(name, figure)
        console.print(summary, highlight=False)
        chosen = self.sample(SHOWN)
        some = "" if len(chosen) == self.clients else f" ({len(chosen)} of {self.clients} clients, evenly spread)"
        drawing = Table(
            box=None,
            title=f"{'Class mix' if self.groups == 'classes' else f'Mix of {self.groups}'} by skew{some}",
            title_justify="left",
            title_style="bold",
        )
        for name, justify in (("client", "right"), ("samples", "right"), ("skew", "right"), ("mix", "left")):
            drawing.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        longest = min(_NAME, max(len(self.name(int(client))) for client in chosen))
        width = max(10, min(_BAR, console.width - max(6, longest) - 22))
        for client in chosen:
            bar = self._bar(int(client), width)
            drawing.add_row(self.name(int(client))[:_NAME], f"{self.sizes[client]:,}", f"{self.skew[client]:.2f}", bar)
        console.print(drawing, highlight=False)
        named = list(enumerate(self.class_names))[: len(_SYMBOLS)]
        if any(name != _symbol(label) for label, name in named):
            entries = [Text.assemble((_symbol(label), _style(label)), f" {name}") for label, name in named]
            console.print(Text(self.groups.capitalize(), style="bold"))
            console.print(Columns(entries, padding=(0, 3)))

    def draw(self, path: Path) -> Path:
        """Write the federation as a page that opens in a browser, offline."""
        return write_page_about(self, "federation_page:federation_page", path)

    def _bar(self, client: int, width: int) -> Text:
        bar = Text()
        for label in classes_of_cells(self.shares[client], width):
            bar.append(_symbol(int(label)), style=_style(int(label)))
        return bar


def describe(given: Config | Mapping[str, Any] | Federation) -> Description:
    """Describe a federation: that of a configuration, or your own (see `covey.federation`)."""
    if isinstance(given, Federation):
        config, federation = as_config(describing(given), {}), given
    else:
        config = as_config(given, {})
        federation = build_federation(config)
    require(
        federation.known, "What clients hold is known to themselves alone: covey analyze asks them how they differ."
    )
    altered: Counter[str] = Counter()
    if federation.altered is not None:
        altered.update(kind for kind in federation.altered.features if kind is not None)
        altered.update("poisoned" for poisoned in federation.altered.poisoned if poisoned)
    return Description(
        config=config,
        class_names=federation.dataset.bin_names,
        task=federation.dataset.learns.name,
        available=len(federation.dataset.y),
        distinct=len(federation.held()),
        shared=federation.shared,
        sizes=federation.sizes,
        skew=federation.truth.skew,
        shares=federation.truth.rows,
        names=federation.names,
        altered=altered,
    )


def classes_of_cells(shares: FloatArray, width: int) -> IntArray:
    """Return the class of each of `width` cells `[width]` when the `shares` `[classes]` are laid end to end."""
    middles = (np.arange(width) + 0.5) / width
    found = np.searchsorted(np.cumsum(shares), middles, side="right")
    return np.minimum(found, len(shares) - 1)


def _range(values: IntArray | FloatArray) -> dict[str, float]:
    return {"min": values.min().item(), "median": float(np.median(values)), "max": values.max().item()}


def _part(mapping: Mapping[str, Any]) -> str:
    options = [f"{name}={value}" for name, value in mapping.items() if name != "name" and value is not None]
    return str(mapping["name"]) + (f" ({', '.join(options)})" if options else "")


def _symbol(label: int) -> str:
    return _SYMBOLS[label] if label < len(_SYMBOLS) else "·"


def _style(label: int) -> str:
    ink, ground = _COLOURS[label % len(_COLOURS)]
    return f"{ink} on {ground}"
