"""The page of all methods on the digits is that of the stored runs, and has every method."""

from benchmarks.attacks import read_runs
from benchmarks.digits import OWN, ROOT, SEEDS, SETTINGS, VARIANTS, page
from covey import Config
from covey.job.demo.skew_cost import SETTING

STORED = ROOT / "results" / "digits.json"
PAGE = ROOT / "docs" / "results" / "digits.md"


def test_every_method_has_its_runs_and_its_row() -> None:
    runs = {(row["method"], row["seed"]) for row in read_runs(STORED, SETTINGS)["runs"]}
    assert runs == {(name, seed) for name in VARIANTS for seed in SEEDS}
    first, second = PAGE.read_text(encoding="utf-8").split("## Models of clients' own")
    for name in VARIANTS:
        assert f"\n| {name} | " in (second if name in OWN else first)


def test_the_page_is_made_of_the_stored_runs() -> None:
    assert page(read_runs(STORED, SETTINGS)) == PAGE.read_text(encoding="utf-8")


def test_runs_have_the_demo_s_federation_and_rounds() -> None:
    for name, settings in VARIANTS.items():
        found, demo = Config.of({**SETTINGS, **settings}), Config.of(SETTING, method="fedavg")
        for what in ("environment", "clients", "cohort", "rounds", "local", "dataset"):
            if (name, what) != ("fedprox", "local"):
                assert getattr(found, what) == getattr(demo, what), (name, what)
