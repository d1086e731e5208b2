"""What an open project promises in files: how to cite it, contribute to it, report to it, and what has changed."""

import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
TEXTS = ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "CHANGELOG.md")

REFERENCE_KEYS = {"type", "notes", "title", "authors", "journal", "conference", "doi", "year"}
"""Those keys of CFF 1.2.0 for references that the file uses."""


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_citation_is_complete_and_of_this_version() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == [{"name": "The Covey maintainers"}]
    assert f"## [{citation['version']}] - {citation['date-released']}" in CHANGELOG
    assert isinstance(citation["date-released"], date)


def test_the_citation_names_the_four_papers() -> None:
    references = read_yaml(ROOT / "CITATION.cff")["references"]
    assert [one["notes"] for one in references] == ["FedACS", "FedDRL", "On-Demand FL", "NCCB"]
    for one in references:
        assert set(one) <= REFERENCE_KEYS
        assert one["type"] in ("article", "conference-paper")
        assert ("journal" in one) == (one["type"] == "article")
        assert ("conference" in one) == (one["type"] == "conference-paper")
        assert isinstance(one["year"], int)
        assert all(set(person) == {"family-names", "given-names"} for person in one["authors"])
    pages = tomllib.loads((ROOT / "docs" / "_ext" / "methods.toml").read_text(encoding="utf-8"))
    for one, method in zip(references, ("fedacs", "feddrl", "ondemand", "nccb"), strict=True):
        assert one["title"] in pages[method]["paper"]
        assert str(one["year"]) in pages[method]["paper"]
        people = re.split(", | and ", pages[method]["paper"].partition(', "')[0])
        assert [person.split()[-1] for person in people] == [person["family-names"] for person in one["authors"]]


FORMS = [path for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
NEEDED = {
    "markdown": {"value"},
    "textarea": {"label"},
    "input": {"label"},
    "dropdown": {"label", "options"},
    "checkboxes": {"label", "options"},
}
"""Kinds of fields of a form → the attributes that they need."""


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_for_issues_is_one(path: Path) -> None:
    form = read_yaml(path)
    assert set(form) <= {"name", "description", "title", "labels", "body"}
    assert {"name", "description", "body"} <= set(form)
    for field in form["body"]:
        assert set(field) <= {"type", "id", "attributes", "validations"}
        assert NEEDED[field["type"]] <= set(field["attributes"])
    names = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    labels = [field["attributes"].get("label") for field in form["body"]]
    assert len(set(names)) == len(names)
    assert len(set(labels)) == len(labels)
    assert all(re.fullmatch(r"[a-z_-]+", name) for name in names)
    assert names


def test_there_are_forms_for_bugs_and_for_questions() -> None:
    assert [path.stem for path in FORMS] == ["bug", "question"]
    assert read_yaml(FORMS[0].with_name("config.yml")) == {"blank_issues_enabled": False}
    runtimes = next(field for field in read_yaml(FORMS[0])["body"] if field.get("id") == "runtime")
    assert {"local", "stacked", "flower", "fleet"} <= set(runtimes["attributes"]["options"])


def test_the_changelog_has_versions_newest_first_and_its_six_kinds_of_headings() -> None:
    versions = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", one) for one in versions[1:]]
    assert None not in released
    order = [(date.fromisoformat(one[2]), Version(one[1])) for one in released if one]
    assert order == sorted(order, reverse=True)
    assert str(order[0][1]) == PROJECT["version"]
    for section in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.*)$", section, re.MULTILINE)
        allowed = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
        assert set(kinds) <= set(allowed)
        assert len(set(kinds)) == len(kinds)


def make_targets() -> dict[str, str]:
    """Return the targets of the Makefile and the comments above them."""
    found = {}
    comment: list[str] = []
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            comment.append(line[2:])
        elif target := re.match(r"([a-z]+):", line):
            found[target[1]] = " ".join(comment)
        if not line.startswith("# "):
            comment = []
    return found


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/install.md", ".github/pull_request_template.md"])
def test_make_has_every_target_that_a_text_names(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = set(re.findall(r"^make ([a-z]+)|`make ([a-z ]+)`", text, re.MULTILINE))
    words = {word for first, second in named for word in (first or second).split()}
    assert words
    assert words <= set(make_targets())


def test_the_times_of_the_tiers_are_those_of_the_makefile() -> None:
    targets = make_targets()
    rows = re.findall(r"^\| `make (\w+)` \| (.*?) \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == ["quick", "test", "proof", "docs", "bench"]
    for name, time in rows:
        if name != "docs":
            assert time.lower() in targets[name].lower(), f"make {name}"


@pytest.mark.parametrize("name", TEXTS)
def test_relative_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / name).read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_paths_that_the_guide_for_contributors_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:src|docs|tests|scripts)/[\w./-]+)`|python ((?:docs|tests|scripts)/[\w./-]+\.py)", text)
    assert len(paths) >= 10
    assert [one for pair in paths for one in pair if one and not (ROOT / one).exists()] == []
