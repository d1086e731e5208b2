import json
import re
from pathlib import Path

import numpy as np
import pytest

from covey import Refusal
from covey.job.demo import Demo, run_demo, seeds_of
from covey.job.demo.odd_clients import OddClients, find_odd_clients
from covey.job.demo.skew_cost import _costs, _gained
from covey.job.demo.wording import Difference, listed
from tests.job.demo.recomputed import claims

CLEAR = np.array([0.30, 0.34, 0.32, 0.31])
"""A difference far from zero."""
NOISE = np.array([0.30, -0.34, 0.12, -0.11])
ZERO = np.zeros(4)


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Demo:
    """The demo of the README; `tests/proof` has ten others."""
    return run_demo(tmp_path_factory.mktemp("demo") / "out", 0)


@pytest.mark.slow
def test_every_sentence_is_a_claim_and_says_what_the_records_say(demo):
    answers = json.loads((demo.folder / "answers.json").read_text())
    for claim in claims(answers):
        assert claim["true"], claim["sentence"]


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_prints(demo):
    shown = " ".join((Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8").split())
    for number, answer in enumerate(demo.answers, start=1):
        assert f"{number}. {answer.question}" in shown
        assert " ".join(answer.sentence.split()) in shown


@pytest.mark.slow
def test_the_page_holds_the_sentences_and_the_commands_and_links_to_nothing_outside(demo):
    pytest.importorskip("plotly")
    path = demo.draw(demo.folder / "demo.html")
    text = re.sub(r"<script.*?</script>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    shown = re.sub(r"</?span>", "", text).replace("\u00a0", " ").replace("&#x27;", "'")
    for answer in demo.answers:
        assert f"<br>{answer.sentence}</li>" in shown
        assert answer.command in shown
    assert all(link.startswith(("#", "data:")) for link in re.findall(r'(?:href|src)="([^"]*)"', text))
    assert path.stat().st_size < 2_000_000


@pytest.mark.slow
def test_the_same_folder_is_not_run_again(demo):
    before = {path: path.stat().st_mtime_ns for path in demo.folder.rglob("metrics.jsonl")}
    again = run_demo(demo.folder, demo.seed)
    assert [answer.sentence for answer in again.answers] == [answer.sentence for answer in demo.answers]
    assert {path: path.stat().st_mtime_ns for path in demo.folder.rglob("metrics.jsonl")} == before


@pytest.mark.parametrize("seed", range(3))
def test_flipped_labels_are_found_and_named(seed):
    odd = find_odd_clients(seed)
    assert odd.found == odd.flipped
    assert len(odd.flipped) == 6
    assert f"stand out: {listed(odd.flipped)}, exactly those" in odd.sentence


def test_a_wrong_finding_is_not_called_right():
    odd = find_odd_clients(0)
    other = next(client for client in range(60) if client not in odd.found)
    missed = OddClients(odd.analysis, (*odd.flipped, other))
    assert "exactly" not in missed.sentence
    assert f"6 of the 7 clients with flipped labels are among them and {other} went unnoticed" in missed.sentence
    wrong = OddClients(odd.analysis, odd.flipped[1:])
    assert "exactly" not in wrong.sentence
    assert f"the labels of {odd.flipped[0]} are sound" in wrong.sentence


@pytest.mark.parametrize(
    ("gain", "cost", "words"),
    [
        (CLEAR / 2, CLEAR, "covey wins back 15.9 ± "),
        (CLEAR * 2, CLEAR, "covey wins back more than that (63.5 ± "),
        (-CLEAR, CLEAR, "covey loses another 31.8 ± "),
        (NOISE, CLEAR, "the difference that covey makes is within the noise (-0.8 ± "),
        (CLEAR, NOISE, "covey is 31.8 ± "),
        (-CLEAR, -CLEAR, "points below FedAvg"),
    ],
)
def test_a_method_is_credited_only_with_what_is_clear_of_zero(gain, cost, words):
    clause = _gained("covey", Difference.of("", gain, ZERO), Difference.of("", cost, ZERO))
    assert words in clause
    assert ("wins back" in clause) == (words.startswith("covey wins back"))


def test_a_cost_within_the_noise_is_called_so():
    assert _costs(Difference.of("", CLEAR, ZERO)).startswith("skew costs FedAvg 31.8 ± ")
    assert "within the noise" in _costs(Difference.of("", NOISE, ZERO))
    assert "nothing" in _costs(Difference.of("", -CLEAR, ZERO))


def test_no_two_demos_share_a_federation():
    seeds = [seed for demo in range(50) for seed in seeds_of(demo)]
    assert len(set(seeds)) == len(seeds)
    with pytest.raises(Refusal, match="seed must be a whole number from 0 to 1,000,000,000,000, not -1"):
        seeds_of(-1)


def test_a_folder_of_something_else_is_refused_before_anything_runs(covey_command, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    answer = covey_command("demo", "--out", tmp_path)
    assert answer.code == 2
    assert "is not empty and holds no demo" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_folder_of_another_seed_is_refused(covey_command, tmp_path: Path):
    (tmp_path / "demo.json").write_text('{"format": 1, "seed": 4}')
    answer = covey_command("demo", "--out", tmp_path, "--seed", 5)
    assert answer.code == 2
    assert "holds the demo of seed 4; choose another --out." in answer.err
