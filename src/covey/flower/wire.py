"""Orders and replies as Flower records: tensors in an ArrayRecord, instructions as JSON in a ConfigRecord.

Nothing is pickled. A probe is sent as its name with its options and rebuilt on the client, from the registered probes
or from `package.module:Name`; its tensors are sent as arrays. An array that the client holds already (its own model,
what a probe keeps there) is named by its digest instead of being sent.
"""

import hashlib
import json
import math
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from covey.client.trainer_fit import TrainerTask
from covey.config.sections import Local
from covey.core.interfaces import Probe
from covey.core.messages import UNTOLD, Gate
from covey.core.trainer import TrainerRef, ref_of
from covey.errors import Refusal, require
from covey.probe.class_query import Privacy
from covey.registries import probes, trainers
from covey.registry import import_path

VERSION = 1
"""Version of the format; a client and a server of different versions refuse each other."""

WITH_TRAINER = 2
"""Version of orders with a trainer: clients that know none would train plainly, and refuse it instead."""

ORDER, REPLY, SETTINGS, CARRIED = "covey.order", "covey.reply", "covey.settings", "covey.carried"
"""Names of records: order, reply, a user's own settings, and arrays that only a simulation carries."""

WHO, QUERY, TRAIN, EVALUATE = "query.who", "query", "train", "evaluate"
"""Types of messages: who are you, measure, train (and measure), evaluate."""

OPTION_TYPES: dict[str, type] = {"privacy": Privacy, "local": Local}
"""Dataclasses that probes have as options, by their name on the wire."""

_PLAIN = rb"\x93NUMPY\x01\x00(..)\{'descr': '([<|][fiub]\d)', 'fortran_order': False, 'shape': \(([\d, ]*)\), \}"
"""The header of an NPY file of plain numbers in C order."""

with warnings.catch_warnings():
    # Torch warns once per process of tensors on read-only memory, which are intended here.
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(b"0", dtype=np.uint8))

Numbers = Tensor | NDArray[Any]
Reference = dict[str, Any]
"""`{"array": name}` is an array of the message, `{"held": name}` one that the client holds."""

Shared = dict[int, tuple[Numbers, Array]]
"""Arrays that go to many clients, made once, by the identity of their numbers (which are kept alive here)."""


class Missing(Exception):
    """The client does not hold an array that an order names."""


@dataclass(frozen=True, eq=False)
class NodeTask:
    """An order as one client receives it."""

    run: str
    """Identifies the run; a client forgets everything of any other run."""
    job: str
    """The folder with a simulated client's samples; empty for others."""
    seed: int
    round: int
    client: int
    start: Tensor | None
    """`[d]`; None if no model is needed, or if the client starts from its own."""
    own: bool
    """Start from the model that the client trained last before this round."""
    anchor: Tensor | None
    work: Local
    probes: tuple[Probe, ...]
    train: bool
    gate: Gate | None
    holdout: int
    returns: bool
    """True if the trained model is sent back."""
    holds: bool
    """True if the client keeps the model it started from and the one it trained."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """A user's own settings, for a training function of theirs."""
    trainer: TrainerTask | None = None
    """How to train, if not plainly."""


@dataclass(frozen=True, eq=False)
class NodeAnswer:
    """A client's answer as read from a message."""

    samples: int
    loss: float
    state: Tensor | None
    measured: dict[str, dict[str, Tensor]]
    carried: dict[str, Tensor]
    """Arrays that real clients keep and only simulated ones send: `state`, and `probe.field`."""


@dataclass
class Attachments:
    """The arrays of one client's message, and references to those that it holds."""

    holds: Collection[str] = ()
    """Digests of the arrays that the client holds."""
    shared: Shared = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)

    def refer(self, name: str, numbers: Numbers) -> Reference:
        """Refer to an array by its digest if the client holds it; else attach it."""
        if self.holds and (known := digest(numbers)) in self.holds:
            return {"held": known}
        if id(numbers) not in self.shared:
            self.shared[id(numbers)] = (numbers, as_array(numbers))
        self.arrays[name] = self.shared[id(numbers)][1]
        return {"array": name}


def as_array(numbers: Numbers) -> Array:
    """Return numbers as a Flower array (NPY), in one copy."""
    values = numbers.detach().cpu().numpy() if isinstance(numbers, Tensor) else numbers
    values = np.ascontiguousarray(values).reshape(values.shape)
    name, header = _header(values.dtype, values.shape)
    return Array(name, values.shape, "numpy.ndarray", header + values.tobytes())


@lru_cache(maxsize=256)
def _header(kind: np.dtype[Any], shape: tuple[int, ...]) -> tuple[str, bytes]:
    """Return the name of a type, and the header of an NPY file."""
    buffer = BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": kind.str, "fortran_order": False, "shape": shape})
    return str(kind), buffer.getvalue()


_NUMBERS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
"""Element types that are accepted."""


def as_tensor(array: Array) -> Tensor:
    """Return an array's tensor, which is read-only; raise if it is not plain numbers."""
    values = _values(array)
    require(values.dtype.name in _NUMBERS, f"an array of type {values.dtype} is not one of {', '.join(_NUMBERS)}.")
    return torch.from_numpy(values)


def _values(array: Array) -> NDArray[Any]:
    """Return the numbers in place if they have our layout, else as Flower reads them."""
    data = array.data
    form = re.match(_PLAIN, data[:256], re.DOTALL)
    if array.stype != "numpy.ndarray" or form is None:
        return np.array(array.numpy(), order="C")
    shape = tuple(int(length) for length in form[3].split(b",") if length.strip())
    begin = 10 + int.from_bytes(form[1], "little")
    return np.frombuffer(data, dtype=np.dtype(form[2].decode()), offset=begin).reshape(shape)


def digest(numbers: Numbers) -> str:
    """Return a name for exactly these numbers."""
    values = numbers.detach().cpu().numpy() if isinstance(numbers, Tensor) else numbers
    values = np.ascontiguousarray(values)
    made = hashlib.blake2b(f"{values.dtype.str}{values.shape}".encode(), digest_size=16)
    made.update(values.data.cast("B") if values.size else b"")
    return made.hexdigest()


def describe(value: Any, where: str, refer: Callable[[str, Numbers], Reference]) -> Any:
    """Return a probe (or one of its options) as JSON; tensors and arrays become references named after `where`."""
    if isinstance(value, Tensor):
        return {"~tensor": refer(where, value)}
    if isinstance(value, np.ndarray):
        return {"~ndarray": refer(where, value)}
    if isinstance(value, Local):
        return {"~part": _name_of(Local), "options": value.as_message()}
    if is_dataclass(value) and not isinstance(value, type):
        options = {
            spec.name: describe(getattr(value, spec.name), f"{where}.{spec.name}", refer)
            for spec in fields(value)
            if spec.init
        }
        return {"~part": _name_of(type(value)), "options": options}
    if isinstance(value, (tuple, list)):
        items = [describe(item, f"{where}.{place}", refer) for place, item in enumerate(value)]
        return {"~tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, (np.integer, np.floating)):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise Refusal(f"{where} is a {type(value).__name__}, which cannot be sent to a client.")


def rebuild(described: Any, find: Callable[[Reference], Tensor], allowed: Collection[str] | None) -> Any:
    """Undo `describe`. `allowed` lists the users' own parts that a client builds; None allows all."""
    if isinstance(described, list):
        return [rebuild(item, find, allowed) for item in described]
    if not isinstance(described, dict):
        return described
    if "~tensor" in described:
        return find(described["~tensor"])
    if "~ndarray" in described:
        return find(described["~ndarray"]).numpy()
    if "~tuple" in described:
        return tuple(rebuild(item, find, allowed) for item in described["~tuple"])
    part = _part(described["~part"], allowed)
    options = {name: rebuild(value, find, allowed) for name, value in described["options"].items()}
    # A probe imports the code that its options name when it is made.
    for name in part.code_options if issubclass(part, Probe) else ():
        if ":" in str(options.get(name, "")):
            _permit(options[name], allowed)
    return part(**options)


def _name_of(part: type) -> str:
    """Return a dataclass's wire name: the registered one if it is Covey's, else its import path."""
    for name, option in OPTION_TYPES.items():
        if part is option:
            return name
    registered = probes.name_of(part) if _is_covey(part) else None
    return registered or f"{part.__module__}:{part.__qualname__}"


def _part(name: str, allowed: Collection[str] | None) -> type:
    """Return the dataclass of a wire name."""
    if name in OPTION_TYPES:
        return OPTION_TYPES[name]
    if ":" not in name:
        registered: type = probes[name].part
        if not _is_covey(registered):
            _permit(name, allowed)
        return registered
    _permit(name, allowed)
    found = import_path(name, "probe")
    require(isinstance(found, type) and is_dataclass(found), f"{name} is not a probe that can be described.")
    made: type = found
    return made


def _is_covey(part: Any) -> bool:
    return str(part.__module__).partition(".")[0] == "covey"


def _permit(name: str, allowed: Collection[str] | None) -> None:
    require(
        allowed is None or name in allowed,
        f"This client does not measure {name}: list it under probes= of client_app to allow it.",
    )


def pack_order(instructions: Mapping[str, Any], arrays: Mapping[str, Array], settings: Mapping[str, Any]) -> RecordDict:
    """Return the content of an order's message."""
    version = VERSION if instructions.get("trainer") is None else WITH_TRAINER
    content = RecordDict({ORDER: ConfigRecord({"instructions": json.dumps({"version": version, **instructions})})})
    if arrays:
        content[f"{ORDER}.arrays"] = ArrayRecord(dict(arrays))
    if settings:
        content[SETTINGS] = ConfigRecord(dict(settings))
    return content


def order_instructions(content: RecordDict) -> dict[str, Any]:
    """Return the instructions of a message; refuse those of another version."""
    require(ORDER in content.config_records, "The message is not one of Covey's.")
    instructions: dict[str, Any] = json.loads(str(content.config_records[ORDER]["instructions"]))
    require(
        instructions.get("version") in (VERSION, WITH_TRAINER),
        f"The server speaks version {instructions.get('version')} of the format and this client version "
        f"{WITH_TRAINER}: use the same version of covey on both sides.",
    )
    return instructions


def unpack_order(
    content: RecordDict,
    find_held: Callable[[str], Tensor | None],
    allowed: Collection[str] | None,
    instructions: Mapping[str, Any] | None = None,
) -> NodeTask:
    """Return the task in a message; raise `Missing` if it names an array that the client does not hold.

    `instructions` are those of the message, if they have been read.
    """
    instructions = order_instructions(content) if instructions is None else instructions
    arrays = content.array_records.get(f"{ORDER}.arrays", ArrayRecord())

    def find(reference: Reference) -> Tensor:
        if "array" in reference:
            return as_tensor(arrays[reference["array"]])
        held = find_held(reference["held"])
        if held is None:
            raise Missing(reference["held"])
        return held

    return NodeTask(
        run=instructions["run"],
        job=instructions["job"],
        seed=instructions["seed"],
        round=instructions["round"],
        client=instructions["client"],
        start=None if instructions["start"] is None else find(instructions["start"]),
        own=instructions["own"],
        anchor=None if instructions["anchor"] is None else find(instructions["anchor"]),
        work=Local(**instructions["work"]),
        probes=tuple(rebuild(described, find, allowed) for described in instructions["probes"]),
        train=instructions["train"],
        gate=None if instructions["gate"] is None else Gate(**instructions["gate"]),
        holdout=instructions["holdout"],
        returns=instructions["returns"],
        holds=instructions["holds"],
        settings=dict(content.config_records.get(SETTINGS, {})),
        trainer=None if instructions.get("trainer") is None else _trainer(instructions["trainer"], find, allowed),
    )


def describe_trainer(ref: TrainerRef, sent: Reference | None, kept: Reference | None, age: int) -> dict[str, Any]:
    """Return a trainer's part of an order as JSON."""
    return {"name": ref.name, "options": dict(ref.options), "sent": sent, "kept": kept, "age": age}


def _trainer(
    described: Mapping[str, Any], find: Callable[[Reference], Tensor], allowed: Collection[str] | None
) -> TrainerTask:
    """Undo `describe_trainer`. A site runs Covey's own trainers, and of others those that it lists."""
    name = str(described["name"])
    if ":" in name or not _is_covey(trainers[name].part):
        require(
            allowed is None or name in allowed,
            f"This client does not train by {name}: list it under trainers= of client_app to allow it.",
        )
    sent = torch.zeros(0) if described["sent"] is None else find(described["sent"])
    kept = None if described["kept"] is None else find(described["kept"])
    options = {
        option: tuple(value) if isinstance(value, list) else value for option, value in described["options"].items()
    }
    return TrainerTask(ref_of(name, options), sent, kept, int(described["age"]))


def pack_answer(
    samples: int,
    loss: float | None,
    tensors: Mapping[str, Tensor],
    carried: Mapping[str, Tensor] | None = None,
) -> RecordDict:
    """Return a reply's content: model (`state`), measurements (`probe.field`), number of samples and training loss."""
    metrics: dict[str, Any] = {"samples": samples, **({} if loss is None else {"loss": loss})}
    content = RecordDict({REPLY: MetricRecord(metrics)})
    if tensors:
        content[f"{REPLY}.arrays"] = ArrayRecord({name: as_array(value) for name, value in tensors.items()})
    if carried:
        content[CARRIED] = ArrayRecord({name: as_array(value) for name, value in carried.items()})
    return content


def unpack_answer(content: RecordDict, wanted: Mapping[str, Collection[str] | None]) -> NodeAnswer:
    """Return a client's answer; `wanted` are the probes of the order. Anything unreadable raises."""
    metrics = content.metric_records[REPLY]
    arrays = content.array_records.get(f"{REPLY}.arrays", ArrayRecord())
    measured: dict[str, dict[str, Tensor]] = {}
    for name, array in arrays.items():
        probe, dot, part = name.partition(".")
        if dot and probe in wanted:
            measured.setdefault(probe, {})[part] = as_tensor(array)
    samples, loss = metrics["samples"], metrics.get("loss", UNTOLD)
    require(isinstance(samples, int), f"its number of samples is {samples!r}.")
    require(isinstance(loss, (int, float)), f"its loss is {loss!r}.")
    assert isinstance(samples, int)
    require(samples < 1 << 53, f"its number of samples is {samples}.")
    assert isinstance(loss, (int, float))
    return NodeAnswer(
        samples=samples,
        loss=math.nan if "loss" in metrics and loss == UNTOLD else float(loss),
        state=as_tensor(arrays["state"]) if "state" in arrays else None,
        measured=measured,
        carried={name: as_tensor(array) for name, array in content.array_records.get(CARRIED, ArrayRecord()).items()},
    )


def fields_of(content: RecordDict) -> set[str]:
    """Return the names of everything in a reply: all that a client sends."""
    names = set(content.metric_records.get(REPLY, {}))
    for name, record in content.items():
        if name == REPLY:
            continue
        label = "" if name == f"{REPLY}.arrays" else f"{name}:"
        names |= {f"{label}{key}" for key in record}
    return names
