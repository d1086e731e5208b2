"""What Covey understands of a user's file before anything runs: columns, label, task, classes, clients, oddities."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.config.values import ENDINGS
from covey.data.arrow_table import ArrowFile, read_arrow_table
from covey.data.columns import TooManyWords
from covey.data.labels import Guess, guessed_task
from covey.data.own_arrays import CLIENT, read_arrays
from covey.data.own_split import OwnSplit
from covey.data.table import CLIENTS, LABELS, TableOptions, column_by_name, header_of, read_table
from covey.errors import Refusal, require
from covey.registries import datasets
from covey.trust import is_own

_COHORT = 20
"""So many clients a round are suggested, all where they are fewer; a tenth, the default, where that is more."""

_SHOWN = 20
"""Most classes and clients that are listed."""


@dataclass(frozen=True)
class ColumnSeen:
    """A column, or an array of samples: what it is, and how many features it becomes."""

    name: str
    kind: str
    features: int
    sentence: str


@dataclass(frozen=True, eq=False)
class Inspection:
    """What was understood of a file."""

    file: str
    dataset: str
    """The data set that reads it."""
    columns: tuple[ColumnSeen, ...]
    label: str
    labels: NDArray[Any]
    guess: Guess
    client: str | None
    clients: NDArray[Any] | None
    rows: OwnSplit
    notes: tuple[str, ...]
    """What is odd, or was assumed."""
    options: Mapping[str, Any]
    """Options of the data set, given, assumed and by default."""

    @property
    def features(self) -> int:
        """Number of features of a sample."""
        return sum(column.features for column in self.columns)

    @property
    def classes(self) -> dict[str, int]:
        """Classes and how many samples have them, in order; empty for other tasks."""
        return _counts(self.labels) if self.guess.task == "classification" else {}

    @property
    def holdings(self) -> dict[str, int]:
        """Clients and how many samples they have, in order."""
        return {} if self.clients is None else _counts(self.clients)

    @property
    def cohort(self) -> int | None:
        """The cohort that is suggested; None where the default, a tenth of the clients, is large enough."""
        clients = 0 if self.clients is None else _training_clients(self.clients, self.rows)
        return min(clients, _COHORT) if 1 < clients < 10 * _COHORT else None

    @property
    def command(self) -> str:
        """The command that runs on the file as it was read here; a call in Python if no command can say the options."""
        known = datasets[self.dataset].options
        changed = {
            name: value for name, value in self.options.items() if name != "path" and value != known[name].default
        }
        natural = self.clients is not None
        texts = {name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in changed.items()}
        lists = [word for value in changed.values() if isinstance(value, tuple) for word in value]
        if any("," in word for word in lists) or any(text != text.strip() for text in texts.values()):
            # On the command line commas part the words of a list, and space around a value is cut off.
            dataset = {"name": self.dataset, "path": self.file, **changed}
            cohort = "" if self.cohort is None else f", cohort={self.cohort}"
            return f"covey.run(dataset={dataset}" + (", environment='natural'" if natural else "") + f"{cohort})"
        by_name = self.dataset == "npy" or is_own(self.file)
        named = [self.dataset, "--set", f"dataset.path={self.file}"] if by_name else [self.file]
        words = ["covey", "run", "--dataset", *named, *(["--environment", "natural"] if natural else [])]
        words += [word for name in texts for word in ("--set", f"dataset.{name}={texts[name]}")]
        return shlex.join([*words, *([] if self.cohort is None else ["--cohort", str(self.cohort)])])

    def as_mapping(self) -> dict[str, Any]:
        """Return what was understood, for JSON."""
        return {
            "file": self.file,
            "dataset": self.dataset,
            "samples": len(self.labels),
            "training": len(self.rows.train),
            "test": len(self.rows.test),
            "features": self.features,
            "columns": [vars(column) for column in self.columns],
            "label": self.label,
            "task": self.guess.task,
            "task_because": self.guess.why,
            "classes": self.classes,
            "client": self.client,
            "clients": self.holdings,
            "notes": list(self.notes),
            "command": self.command,
        }

    def summary(self) -> list[tuple[str, str]]:
        """Return name and figure of what was understood."""
        train, test = len(self.rows.train), len(self.rows.test)
        rows = [
            ("file", f"{self.file}, read as {self.dataset}"),
            (
                "samples",
                f"{len(self.labels):,}: {train:,} for training, {test:,} for tests",
            ),
            ("features", f"{self.features:,} from {len(self.columns):,} column{'s' if len(self.columns) > 1 else ''}"),
            ("label", f"'{self.label}'"),
            ("task", f"{self.guess.task}: {self.guess.why}"),
        ]
        if self.classes:
            rows.append(("classes", _listed(self.classes)))
        elif self.labels.dtype.kind in "iuf" or self.guess.task == "regression":
            numbers = self.labels.astype(np.float64)
            rows.append(("range", f"{numbers.min():g} to {numbers.max():g}, median {np.median(numbers):g}"))
        if self.clients is None:
            rows.append(("clients", "no column names them; give one with --client, or let an environment deal samples"))
        else:
            rows.append(("clients", f"'{self.client}', {len(self.holdings):,}: {_listed(self.holdings)}"))
        return rows


def inspect(path: Path | str, **options: Any) -> Inspection:
    """Return what Covey understands of a file: .csv, .parquet, .feather, .arrow, .npz, or a folder of .npy files.

    `options` are those of the data set: `label`, `client`, `missing`, … Nothing is trained, nothing is written.
    """
    file = Path(path)
    kind = "npy" if file.is_dir() else ENDINGS.get(file.suffix.lower())
    if kind is None:
        known = ", ".join(ENDINGS)
        raise Refusal(
            f"{file} has none of the endings that say what a file is: {known}; or give a folder of .npy files."
        )
    require(file.exists(), f"There is no file {file}.")
    if kind in ("npz", "npy"):
        return _of_arrays(file, kind, datasets.options(kind, {**options, "path": str(file)}))
    return _of_table(file, kind, options)


def _of_table(file: Path, kind: str, options: Mapping[str, Any]) -> Inspection:
    header, index = (header_of(file), ()) if kind == "csv" else _of_arrow(file)
    assumed = []
    found = dict(options)
    for option, names in (("label", LABELS), ("client", CLIENTS)):
        if option not in options:
            name = column_by_name(header, names)
            if name is not None:
                found[option] = name
                if name != datasets[kind].options[option].default:
                    assumed.append(f"'{name}' was taken for the {option} by its name: dataset.{option}={name}.")
            elif option == "label":
                found[option] = last = next((name for name in reversed(header) if name not in index), header[-1])
                assumed.append(f"No column is called label; the last one, '{last}', was taken for it.")
    while True:
        values = datasets.options(kind, {**found, "path": str(file)})
        try:
            table = _read(file, kind, values)
            break
        except TooManyWords as refusal:
            # Often a column of names, such as a patient's: it is left out here, so that the rest can be looked at.
            found["ignore"] = (*values["ignore"], refusal.column)
            assumed.append(
                f"'{refusal.column}' has {refusal.words:,} different words in the training rows, and was left out: "
                f"dataset.ignore={refusal.column}; dataset.categories={refusal.words} makes each a feature."
            )
    columns = [ColumnSeen(column.name, column.kind, column.width, column.sentence) for column in table.columns]
    odd = [*assumed, *table.how_read, *table.tested]
    guess = guessed_task(table.labels)
    client = None if table.clients is None else values["client"]
    return Inspection(
        str(file), kind, tuple(columns), values["label"], table.labels, guess, client, table.clients, table.rows,
        (*odd, *_odd(table.labels, table.clients, table.rows, guess)), values,
    )  # fmt: skip


def _read(file: Path, kind: str, values: Mapping[str, Any]) -> Any:
    """Return the table in a file, as these options say."""
    if kind == "csv":
        return read_table(file, Path(values["test_file"]) if values["test_file"] else None, _table_options(values))
    return read_arrow_table(file, _table_options({**values, "categorical": ()}))


def _of_arrow(file: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return the columns of a file, and those that are pandas' row index."""
    table = ArrowFile(file)
    return list(table.schema.names), table.index


def _table_options(values: Mapping[str, Any]) -> TableOptions:
    return TableOptions(**{name: values[name] for name in TableOptions.__dataclass_fields__})


def _of_arrays(file: Path, kind: str, values: Mapping[str, Any]) -> Inspection:
    made = read_arrays(file, kind, values["test"], values["split"])
    shape = tuple(made.x.shape[1:])
    what = f"samples of shape {' x '.join(map(str, shape))}, {str(made.x.dtype).removeprefix('torch.')}"
    column = ColumnSeen("x", what, int(np.prod(shape)), f"'x': {what}.")
    guess = guessed_task(made.labels)
    return Inspection(
        str(file), kind, (column,), "y", made.labels, guess, None if made.clients is None else CLIENT, made.clients,
        made.rows, (*made.rows.notes, *_odd(made.labels, made.clients, made.rows, guess)), values,
    )  # fmt: skip


def _odd(labels: NDArray[Any], clients: NDArray[Any] | None, rows: OwnSplit, guess: Guess) -> tuple[str, ...]:
    """Return what is odd about labels and clients."""
    notes = []
    train, test = rows.train.numpy(), rows.test.numpy()
    if guess.task == "classification":
        counts = _counts(labels)
        if len(counts) == 1:
            notes.append(f"There is only one class, '{next(iter(counts))}': a run is refused.")
        few = [name for name, count in counts.items() if count < 5]
        if few:
            notes.append(
                f"{len(few)} classes have fewer than 5 samples: {', '.join(few[:5])}{', …' if few[5:] else ''}."
            )
        alone = sorted(set(map(str, labels[test])) - set(map(str, labels[train])))
        if alone:
            notes.append(f"Classes in the test samples alone, which no model can learn: {', '.join(alone[:5])}.")
    if clients is not None:
        single = [name for name, count in _counts(clients).items() if count == 1]
        if single:
            named = ", ".join(single[:5]) + (", …" if single[5:] else "")
            notes.append(f"{len(single)} client{'s have' if len(single) > 1 else ' has'} one sample alone: {named}.")
        if len(_counts(clients)) == 1:
            notes.append("There is one client alone: nothing is federated.")
        elif (count := _training_clients(clients, rows)) < 10 * _COHORT:
            tenth = max(1, round(0.1 * count))
            notes.append(
                f"By default a tenth of the clients trains in a round, here {tenth} of these {count}; "
                f"the command invites {'all' if count <= _COHORT else _COHORT}: --cohort {min(count, _COHORT)}."
            )
    return tuple(notes)


def _training_clients(clients: NDArray[Any], rows: OwnSplit) -> int:
    """Return the number of clients with rows for training."""
    return len(np.unique(clients[rows.train.numpy()]))


def _counts(words: NDArray[Any]) -> dict[str, int]:
    different, counts = np.unique(words, return_counts=True)
    return dict(zip(map(str, different), counts.tolist(), strict=True))


def _listed(counts: Mapping[str, int]) -> str:
    """Return names and counts in a line; the largest alone where there are many."""
    if len(counts) <= _SHOWN:
        return ", ".join(f"{name} {count:,}" for name, count in counts.items())
    sizes = np.array(list(counts.values()))
    return f"{len(counts):,}, with {sizes.min():,} to {sizes.max():,} samples each, median {np.median(sizes):g}"
