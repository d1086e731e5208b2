import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import covey
from covey import Config, Refusal
from covey.core.build import build_federation
from covey.job.federation_summary import SHOWN, classes_of_cells, describe

SKEWED = {"clients": 50, "environment": {"name": "dirichlet", "alpha": 0.1}, "seed": 3}


def shown(description, width=100) -> list[str]:
    console = Console(width=width, color_system=None, record=True, file=io.StringIO())
    description.show(console)
    return console.export_text().splitlines()


def test_figures_are_those_of_the_federation():
    config = Config.of(SKEWED)
    federation = build_federation(config)
    figures = describe(config).as_mapping()
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    assert (figures["clients"], figures["classes"]) == (50, 10)
    assert figures["samples"] == sum(len(part) for part in federation.parts)
    assert figures["sizes"] == {
        "min": federation.sizes.min(),
        "median": np.median(federation.sizes),
        "max": federation.sizes.max(),
    }
    assert figures["skew"]["max"] == max(client["skew"] for client in figures["each"]) <= 1
    for client in (0, 49):
        labels = federation.dataset.y[federation.parts[client]]
        shares = figures["each"][client]["shares"]
        assert shares[4] == pytest.approx(float((labels == 4).float().mean()))
        assert sum(shares) == pytest.approx(1)


def test_clients_that_share_samples_are_said_to():
    alone, together = describe(SKEWED), describe({"clients": 50, "environment": "uniform"})
    assert (alone.shared, together.shared) == (False, True)
    assert alone.as_mapping()["samples"] == alone.distinct
    assert together.as_mapping()["samples"] > together.distinct


def test_ones_own_federation_is_described_by_the_names_of_its_clients():
    features = np.random.default_rng(0).normal(size=(90, 4))
    own = covey.federation(features, np.where(features[:, 0] > 0, "up", "down"), np.repeat(["kiel", "bremen"], 45))
    description = describe(own)
    assert [client["name"] for client in description.as_mapping()["each"]] == ["bremen", "kiel"]
    text = "\n".join(shown(description))
    assert "kiel" in text
    assert "1 up" in text


def test_altered_clients_are_counted():
    description = describe({"clients": 20, "altered": {"blurred": 0.25, "poison": 0.1, "noise": 0.2}})
    assert description.as_mapping()["altered"] == {"blurred": 5, "poisoned": 2}
    rows = dict(description.rows())
    assert rows["altered clients"] == "5 blurred, 2 poisoned"
    assert rows["noisy labels"].startswith("20.0%")
    assert "altered clients" not in dict(describe(SKEWED).rows())


def test_the_drawing_ends_with_the_most_skewed_client_and_shows_few_of_many():
    description = describe(SKEWED)
    lines = [line for line in shown(description) if line.rstrip()[-20:].isdigit()]
    assert len(lines) == SHOWN < description.clients
    assert int(lines[0].split()[0]) == np.argmin(description.skew)
    skews = [float(line.split()[2]) for line in lines]
    assert skews == sorted(skews)
    assert skews[-1] == pytest.approx(description.skew.max(), abs=0.006)


def test_the_drawing_needs_no_colour_since_each_cell_carries_its_class():
    description = describe(SKEWED)
    worst = int(description.order[-1])
    last = [line for line in shown(description) if line.split()[:1] == [str(worst)]][-1]
    bar = last.split()[-1]
    assert len(set(bar)) <= 2
    assert bar.count(str(description.shares[worst].argmax())) / len(bar) >= 0.8


def test_the_drawing_fits_a_narrow_terminal():
    assert max(map(len, shown(describe(SKEWED), width=60))) <= 60


def test_classes_with_names_get_a_legend():
    text = "\n".join(shown(describe({"clients": 5, "dataset": {"name": "synthetic", "classes": 12, "train": 500}})))
    assert "b class 11" in text
    assert "Classes" not in "\n".join(shown(describe(SKEWED)))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=70), st.integers(1, 80))
def test_cells_follow_the_shares_to_within_one(values, width):
    shares = (np.array(values) + 1e-6) / (sum(values) + 1e-6 * len(values))
    cells = np.bincount(classes_of_cells(shares, width), minlength=len(shares))
    assert cells.sum() == width
    assert np.all(np.abs(cells - shares * width) <= 1 + 1e-6)
    assert np.all(np.diff(classes_of_cells(shares, width)) >= 0)


def test_the_page_of_a_federation_holds_its_chart(tmp_path):
    pytest.importorskip("plotly")
    path = describe(SKEWED).draw(tmp_path / "deep" / "federation.html")
    text = path.read_text(encoding="utf-8")
    assert "<h1>50 clients with digits, environment dirichlet</h1>" in text
    assert text.count('class="chart"') == 1
    assert [item.name for item in path.parent.iterdir()] == ["federation.html"]


def test_an_impossible_federation_is_refused():
    with pytest.raises(Refusal, match="no environment 'dirichlett'"):
        describe({"environment": "dirichlett"})
