"""The README is short, its pictures and targets exist, its Python runs, and its figures are those of the results."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.page_blocks import ROOT, blocks, files

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
VERDICTS = ("holds", "holds in part", "open", "does not hold")
POINTS = r"[+-]?\d+\.\d+ ± \d+\.\d+"


def test_it_is_a_page_of_700_words() -> None:
    assert len(TEXT.split()) <= 700


def test_its_pictures_are_there_for_light_and_dark() -> None:
    named = re.findall(r'(?:src|srcset)="([^"]+)"', TEXT)
    assert len(named) >= 4
    assert [one for one in named if not (ROOT / one).is_file()] == []


def test_its_make_targets_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"^make ([\w-]+)|`make ([\w-]+)`", TEXT, re.MULTILINE)
    assert {"demo", "test", "docs"} == {one or other for one, other in named} <= set(targets)


def _points(text: str) -> list[tuple[float, float]]:
    """Return the differences of a text, rounded as the README has them."""
    pairs = (one.split(" ± ") for one in re.findall(POINTS, text.replace("\u00a0", " ")))
    return [(round(float(mean), 1) + 0.0, round(float(half), 1)) for mean, half in pairs]


def judged(text: str) -> list[tuple[str, str, str]]:
    """Return the items of a list that link to a verdict: text, verdict and page."""
    items = (" ".join(one.split()) for one in re.findall(r"^- (.+(?:\n  .+)*)", text, re.MULTILINE))
    found = [(item, re.search(r"\[([^]]+)\]\((docs/results/\w+\.md)\)", item)) for item in items]
    return [(item, link[1], link[2]) for item, link in found if link and link[1] in VERDICTS]


def unfounded(item: str, verdict: str, page: str) -> bool:
    """True if no line of a results page has the item's figures and its verdict."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    same = [one for one in lines if set(_points(item)) <= set(_points(one)) and f"**{verdict}**" in one]
    return not _points(item) or not same


def test_figures_and_verdicts_are_those_of_the_results() -> None:
    found = judged(TEXT)
    assert {page for _, _, page in found} == {
        f"docs/results/{name}.md" for name in ("fedacs", "feddrl", "ondemand", "nccb")
    }
    assert [item for item, verdict, page in found if unfounded(item, verdict, page)] == []


def test_another_verdict_and_other_figures_are_found() -> None:
    (item, verdict, page), *_ = judged(TEXT)
    assert unfounded(item, next(one for one in VERDICTS if one != verdict), page)
    assert unfounded(re.sub(POINTS, "+9.9 ± 0.1", item), verdict, page)


@pytest.mark.slow
def test_the_lines_about_data_run_and_print_a_line_for_each_method(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    (source,) = [text for language, text in blocks(README) if language == "python" and "load_digits" in text]
    assert "rounds=40, seeds=5" in source
    monkeypatch.chdir(tmp_path)
    exec(compile(source.replace("rounds=40, seeds=5", "rounds=2, seeds=2, progress=False"), "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed[-2:]] == ["fedavg", "covey"]
    assert printed[-1].endswith("points against fedavg, within the noise of these seeds")


@pytest.mark.slow
def test_the_lines_about_flower_run_with_the_tutorial_s_app_and_plain_clients_stay_as_they_are(
    monkeypatch: Any,
) -> None:
    pytest.importorskip("flwr")
    from flwr.app import ArrayRecord, ConfigRecord

    import covey.flower

    own: dict[str, Any] = {"__name__": "client_app"}
    exec(files(ROOT / "docs/tutorials/from-flower.md")["client_app.py"], own)
    (source,) = [text for language, text in blocks(README) if language == "python" and "flower" in text]
    names = dict(own)
    exec(compile(source, "README.md", "exec"), names)
    names["app"].train()(own["train"])
    names["app"].evaluate()(own["evaluate"])
    stay = re.search(r"With (.+?), \[clients stay as they are\]", TEXT)
    assert stay
    plain = re.findall(r"`([\w-]+)`", stay[1])
    assert plain == ["fedacs", "fedavgm"]
    strategies = [(names["strategy"], names["app"])]
    strategies += [(covey.flower.Strategy(name, clients=10, cohort=0.4), own["app"]) for name in plain]
    for strategy, app in strategies:
        first = ArrayRecord(own["Net"]().state_dict())
        grid = covey.flower.InProcessGrid(app, 10)
        done = strategy.start(grid=grid, initial_arrays=first, train_config=ConfigRecord({"lr": 0.1}), num_rounds=2)
        assert sorted(done.evaluate_metrics_clientapp) == [1, 2]
