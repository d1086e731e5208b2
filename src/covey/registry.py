"""Registries: parts by name, for `--method`, `--environment`, `--dataset`, `--model` and the like.

A part is a function or class. Its options are its keyword-only parameters, each with a default; users' values are
checked against their annotations. A class with many options may declare them in
a keyword-only dataclass, its attribute `Options`, and take them as `**options`. Other packages add parts through
entry points in the group `covey.<plural>`, for instance

    [project.entry-points."covey.selectors"]
    mine = "my_package.selection:MySelector"
"""

import contextlib
import difflib
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from covey.errors import Refusal, require
from covey.trust import BUILT_IN, extend_path, is_path

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """One keyword option of a part."""

    name: str
    annotation: Any
    default: Any

    @property
    def type_name(self) -> str:
        return _type_name(self.annotation)


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered part with its name, summary and options."""

    name: str
    part: T
    earlier: Mapping[str, Any] = field(default_factory=dict)
    """Options that were added later or had another default, with the values that hold in folders of earlier formats."""

    @cached_property
    def summary(self) -> str:
        """First paragraph of the part's docstring (or its `summary`)."""
        part = _innermost(self.part)
        text = getattr(part, "summary", None) or inspect.getdoc(part) or ""
        return " ".join(str(text).split("\n\n")[0].split())

    @cached_property
    def options(self) -> dict[str, Option]:
        """The part's keyword-only parameters, and those of its dataclass `Options` if it takes `**options`."""
        if not callable(self.part):
            return {}
        declared = getattr(_innermost(self.part), "Options", None)
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in _parameters(self.part).values())
        inherited = _keyword_options(declared) if takes_any and isinstance(declared, type) else {}
        found = {**inherited, **_keyword_options(self.part)}
        preset: dict[str, Any] = self.part.keywords if isinstance(self.part, functools.partial) else {}
        # What a configuration cannot hold, such as a class, stays as it was given.
        set_here = {name: value for name, value in preset.items() if _is_plain(value)}
        return {
            name: replace(one, default=set_here.get(name, one.default))
            for name, one in found.items()
            if name in set_here or name not in preset
        }


def _is_plain(value: Any) -> bool:
    """True if a configuration can hold a value."""
    if isinstance(value, (list, tuple)):
        return all(_is_plain(one) for one in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _innermost(part: Any) -> Any:
    """Return the class or function that a `functools.partial` calls."""
    return _innermost(part.func) if isinstance(part, functools.partial) else part


def _keyword_options(part: Any) -> dict[str, Option]:
    called = _innermost(part)
    hints = _hints(called.__init__ if inspect.isclass(called) else called)
    return {
        name: Option(name, hints.get(name, Any), parameter.default)
        for name, parameter in _parameters(part).items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def _parameters(part: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(part).parameters
    except ValueError:  # A builtin without a signature.
        return {}


def _hints(annotated: Any) -> dict[str, Any]:
    """Return the types of a function's parameters, as far as its module has their names at run time."""
    try:
        return typing.get_type_hints(annotated)
    except NameError:
        # Some names are imported for type checkers only; options of plain types use none of them.
        found: dict[str, Any] = {}
        for name, annotation in annotated.__annotations__.items():
            one = types.SimpleNamespace(__annotations__={name: annotation})
            with contextlib.suppress(NameError):
                found |= typing.get_type_hints(one, vars(sys.modules[annotated.__module__]))
        return found


class Registry(Generic[T]):
    """Parts of one kind by name, including those of other packages."""

    def __init__(
        self,
        kind: str,
        plural: str,
        parts_of_users: bool = False,
        section: str | None = None,
        homes: tuple[str, ...] = (),
    ) -> None:
        self.kind = kind
        self.plural = plural
        self.section = section or kind
        """The part's key in a configuration."""
        self._homes = homes
        """Modules that register Covey's own parts; imported when the registry is first read."""
        self._home = False
        self._parts_of_users = parts_of_users
        self._entries: dict[str, Entry[T]] = {}
        self._held: dict[str, Entry[T]] = {}
        """Parts that were given as objects to this process, which no list shows."""

    def add(self, name: str, *, earlier: Mapping[str, Any] | None = None) -> Callable[[T], T]:
        """Decorator: register the part under `name`; `earlier` are options whose value in old folders is another."""

        def register(part: T) -> T:
            self._entries[name] = Entry(name, part, earlier or {})
            return part

        return register

    def hold(self, name: str, part: T) -> None:
        """Keep a part that was given as an object, under a name that `is_held`."""
        self._held[name] = Entry(name, part)

    def held(self, name: str) -> T | None:
        """Return the part that is kept under a name; None if this process was given none."""
        return self._held[name].part if name in self._held else None

    def lacks(self, name: str) -> bool:
        """True if a name stands for an object that this process was not given."""
        return is_held(name) and name not in self._held

    def _load_homes(self) -> None:
        if not self._home:
            self._home = True
            for module in self._homes:
                import_module(module)

    def names(self) -> list[str]:
        self._load_homes()
        return sorted({*self._entries, *self._plugins})

    def plugin_names(self) -> list[str]:
        """Return the names that the entry points of other packages provide."""
        return sorted(self._plugins)

    def __iter__(self) -> Iterator[Entry[T]]:
        return (self[name] for name in self.names())

    def __getitem__(self, name: str) -> Entry[T]:
        """Return the part called `name`, or the one at `package.module:name` if users may bring their own."""
        if name in self._held:
            return self._held[name]
        if name not in self._entries:
            self._load_homes()
        if name not in self._entries:
            if is_held(name):
                raise Refusal(self._absent(name))
            if name in self._plugins:
                self._entries[name] = Entry(name, self._load(self._plugins[name]))
            elif self._parts_of_users and ":" in name:
                return Entry(name, import_path(name, self.kind))
            else:
                raise Refusal(self._unknown(name))
        return self._entries[name]

    def name_of(self, part: T) -> str | None:
        """Return the name that a part is registered under, or None."""
        self._load_homes()
        return next((name for name, entry in self._entries.items() if entry.part is part), None)

    def options(self, name: str, given: Mapping[str, Any], *, earlier: bool = False) -> dict[str, Any]:
        """Return `given`, checked against the part's options and completed with their defaults.

        With `earlier`, options that are not given have the values that held in folders of earlier formats.
        """
        known = self[name].options
        given = {**self[name].earlier, **given} if earlier else given
        for option in given:
            if option not in known:
                raise Refusal(self.unknown_option(name, option))
        where = self.section
        for option, spec in known.items():
            needed = spec.default is inspect.Parameter.empty and option not in given
            require(not needed, f"The {self.kind} '{name}' needs the option {where}.{option}.")
        return {
            option: coerce(given[option], spec.annotation, f"{where}.{option}") if option in given else spec.default
            for option, spec in known.items()
        }

    def make(self, name: str, given: Mapping[str, Any]) -> Any:
        """Make the part with these options and its defaults."""
        part: Any = self[name].part
        options = self.options(name, given)
        require(not inspect.isabstract(part), f"The {self.kind} '{name}' leaves out what every {self.kind} has to do.")
        try:
            inspect.signature(part).bind(**options)
        except (TypeError, ValueError) as error:
            raise Refusal(
                f"The {self.kind} '{name}' cannot be made: {error}; options are arguments after a *, such as "
                "def __init__(self, *, step: float = 1.0)."
            ) from error
        return part(**options)

    def unknown_option(self, name: str, option: str) -> str:
        """Return the sentence that says that a part has no such option, and which it has."""
        known = sorted(self[name].options)
        if not known:
            return f"The {self.kind} '{name}' has no option '{option}'; it takes none."
        close = difflib.get_close_matches(option, known, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        return f"The {self.kind} '{name}' has no option '{option}'.{hint} It takes: {', '.join(known)}."

    @cached_property
    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=f"covey.{self.plural}")}

    def _load(self, point: EntryPoint) -> T:
        try:
            part: T = point.load()
        except Exception as error:
            raise Refusal(
                f"The {self.kind} '{point.name}' comes from the entry point {point.value}, "
                f"which cannot be loaded: {type(error).__name__}: {error}."
            ) from error
        return part

    def _absent(self, name: str) -> str:
        shown = name.partition("@")[0]
        return (
            f"The {self.kind} '{shown}' was given to its run as a Python object, which its folder does not hold: give "
            f"it again, as in covey.resume(folder, {self.section}={shown}) or Run.open(folder, {self.section}={shown})."
        )

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, self.names(), n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        own = " Your own goes by package.module:name." if self._parts_of_users else ""
        return f"There is no {self.kind} '{name}'.{hint} Known {self.plural}: {', '.join(self.names())}.{own}"


def is_held(name: Any) -> bool:
    """True if a part's name stands for a Python object, which the process that was given it holds: `Net@3f2a91c0`."""
    return isinstance(name, str) and bool(re.fullmatch(r"\w+@[0-9a-f]{8}(\.\d+)?", name))


def import_path(path: str, kind: str, also: type[Any] | None = None) -> Any:
    """Import the part at `package.module:name`: a class, a function, or an instance of `also`."""
    require(is_path(path), f"'{path}' cannot be the {kind}: give it as package.module:name.")
    module_name, _, attribute = path.partition(":")
    if path not in BUILT_IN:
        extend_path()
    try:
        part = getattr(import_module(module_name), attribute)
    except Exception as error:
        reason = str(error) if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: {error}"
        raise Refusal(
            f"The {kind} '{path}' cannot be imported: {reason}. Give it as package.module:name, importable from here."
        ) from error
    require(
        callable(part) or (also is not None and isinstance(part, also)),
        f"The {kind} '{path}' must be a class or a function; it is of the type {type(part).__name__}.",
    )
    return part


def coerce(value: Any, annotation: Any, where: str) -> Any:
    """Return `value` (typed, or text from a command line) as `annotation`, or refuse it by the name `where`."""
    if annotation is Any:
        return value
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _coerce_union(value, arguments, annotation, where)
    if origin is typing.Literal:
        if value in arguments:
            return value
    elif origin in (tuple, list):
        items = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        items = items if isinstance(items, (list, tuple)) else [value]
        return origin(coerce(item, arguments[0], where) for item in items)
    elif annotation is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "yes", "on", "1", "false", "no", "off", "0"):
            return value.lower() in ("true", "yes", "on", "1")
    elif annotation is int:
        number = _number(value)
        if number is not None and number == int(number):
            return int(number)
    elif annotation is float:
        number = _number(value)
        if number is not None:
            return float(number)
    elif annotation is str and isinstance(value, str):
        return value
    raise Refusal(f"{where} must be {_type_name(annotation)}, not {value!r}.")


def _coerce_union(value: Any, arguments: tuple[Any, ...], annotation: Any, where: str) -> Any:
    if value is None or (isinstance(value, str) and value.lower() == "none"):
        if type(None) in arguments:
            return None
    # int | float means "a count or a fraction"; the way it is written decides which.
    elif int in arguments and float in arguments and _number(value) is not None:
        if isinstance(value, str):
            value = float(value) if not value.strip().lstrip("+-").isdecimal() else value
        return coerce(value, float if isinstance(value, float) else int, where)
    else:
        for choice in arguments:
            if choice is not type(None):
                try:
                    return coerce(value, choice, where)
                except Refusal:
                    continue
    raise Refusal(f"{where} must be {_type_name(annotation)}, not {value!r}.")


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return None
        return _number(int(value) if value.strip().lstrip("+-").isdecimal() else number)
    return None


def _type_name(annotation: Any) -> str:
    """Return a type in words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        if int in arguments and float in arguments:
            return "a count or a fraction"
        return " or ".join(_type_name(argument) for argument in arguments)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (tuple, list):
        return f"a list of {_type_name(arguments[0])}"
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    return plain.get(annotation, getattr(annotation, "__name__", str(annotation)))
