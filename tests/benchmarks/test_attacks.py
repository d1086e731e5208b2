"""The page of attacks is that of the stored runs."""

from benchmarks.attacks import ATTACKS, COMPARED, FURTHER, ROOT, RULES, SEEDS, SETTINGS, Case, cases, page, read_runs
from covey import Config

STORED = ROOT / "results" / "attacks.json"


def test_every_case_is_one_that_can_be_run() -> None:
    found = list(cases())
    assert len(found) == len(set(found))
    assert {case.seed for case in found} == {*range(SEEDS), *FURTHER}
    for case in (case for case in found if case.seed in (0, FURTHER[0])):
        assert Config.of(case.settings).rounds == 30
    assert Case("0.2", "fedavg", "flip x5", 3).settings["attack"] == {"kind": "flip", "factor": 5, "attackers": 0.2}


def test_the_page_is_made_of_the_stored_runs() -> None:
    text = page(read_runs(STORED, SETTINGS))
    assert text == (ROOT / "docs" / "results" / "attacks.md").read_text(encoding="utf-8")
    for name in (*RULES, *COMPARED, *ATTACKS):
        assert name in text
