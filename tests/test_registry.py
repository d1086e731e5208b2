from dataclasses import dataclass
from typing import Literal

import pytest

from covey.errors import Refusal
from covey.registry import Entry, Registry, coerce


def test_options_are_the_keyword_parameters_checked_and_completed():
    registry: Registry = Registry("thing", "things")

    @registry.add("box")
    def box(content: str, *, size: float = 1.0, kind: Literal["open", "shut"] = "open", tags: tuple[int, ...] = ()):
        """A box. It holds content.

        More about boxes.
        """

    assert registry["box"].summary == "A box. It holds content."
    assert registry.options("box", {"size": "2"}) == {"size": 2.0, "kind": "open", "tags": ()}
    assert registry.options("box", {"tags": "1,2"})["tags"] == (1, 2)
    for given, sentence in (
        ({"sise": 1}, "Did you mean 'size'?"),
        ({"kind": "ajar"}, "thing.kind must be one of open, shut, not 'ajar'."),
        ({"content": "x"}, "has no option 'content'"),
    ):
        with pytest.raises(Refusal, match=sentence.replace("?", r"\?")):
            registry.options("box", given)


@dataclass(frozen=True, kw_only=True)
class BoxOptions:
    size: float = 1.0
    kind: Literal["open", "shut"] = "open"


def test_a_class_may_declare_its_options_in_a_dataclass():
    class Box:
        Options = BoxOptions

        def __init__(self, **options):
            self.options = BoxOptions(**options)

    class Crate(Box):
        def __init__(self, *, wood: str = "oak", **options):
            super().__init__(**options)

    class Plain(Box):
        def __init__(self, *, wood: str = "oak"):
            super().__init__(size=2.0)

    registry: Registry = Registry("thing", "things")
    for part in (Box, Crate, Plain):
        registry.add(part.__name__)(part)
    assert registry.make("Box", {"size": "3"}).options == BoxOptions(size=3.0)
    assert list(registry["Crate"].options) == ["size", "kind", "wood"]
    assert list(registry["Plain"].options) == ["wood"]
    with pytest.raises(Refusal, match=r"thing\.kind must be one of open, shut, not 'ajar'\."):
        registry.make("Box", {"kind": "ajar"})


def test_types_that_only_a_type_checker_imports_do_not_hide_the_others():
    def load(data_dir: "Elsewhere", *, count: "int" = 3) -> "Elsewhere":  # type: ignore[name-defined]  # noqa: F821
        return data_dir

    (option,) = Entry("load", load).options.values()
    assert (option.name, option.annotation, option.default) == ("count", int, 3)


def test_a_users_own_part_is_imported_by_path():
    registry: Registry = Registry("model", "models", parts_of_users=True)
    assert registry["collections:OrderedDict"].part is __import__("collections").OrderedDict
    with pytest.raises(Refusal, match="cannot be imported"):
        _ = registry["no_such_package.models:Net"]


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ("3", int, 3),
        (3.0, int, 3),
        ("1e-3", float, 0.001),
        ("yes", bool, True),
        ("none", int | None, None),
        ("5", int | None, 5),
        ("5", int | float, 5),
        ("0.5", int | float, 0.5),
        ("1.0", int | float, 1.0),
        ([1, 2], tuple[int, ...], (1, 2)),
        ("7", tuple[int, ...], (7,)),
    ],
)
def test_text_and_values_become_the_annotated_type(value, annotation, expected):
    result = coerce(value, annotation, "it")
    assert result == expected
    assert type(result) is type(expected)
