"""Composing a class mix: its distance, the chosen clients, averaging by ratios, and the forms of targets."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import Config, Refusal
from covey.aggregation.fixed_weights import Ratios
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.interfaces import Setting
from covey.core.replies import Replies
from covey.data.class_mix import parse_target, parse_targets
from covey.data.paper_targets import target
from covey.environment.federated_data import Federation
from covey.job.on_demand.composition import Composition, Pairing, compose, sizes_note
from covey.model import build_model
from covey.model.layout import Layout
from covey.selection.composed import ComposedSelector


def federation(seed: int, alpha: float = 0.1) -> Federation:
    return build_federation(
        Config.of(
            dataset={"name": "synthetic", "shape": (1, 2, 2), "train": 10_000, "test": 100},
            environment={"name": "dirichlet", "alpha": alpha},
            clients=100,
            seed=seed,
        )
    )


FEDERATIONS = [federation(seed) for seed in range(6)]


@pytest.mark.parametrize("name", ["td1", "td2", "td3"])
def test_true_shares_compose_the_papers_targets_from_10_to_15_of_100_clients(name):
    mix = target(name, 10)
    found = [compose(one.truth.shares, mix, at_least=10) for one in FEDERATIONS]
    assert max(one.distance for one in found) < 0.3
    assert all(len(one.clients) >= 10 for one in found)
    assert 10 <= np.mean([len(one.clients) for one in found]) <= 15
    assert all(1 <= one.passes <= 4 for one in found)


def test_local_targets_are_composed_too():
    shares = FEDERATIONS[0].truth.shares
    found = [compose(shares, shares[client], at_least=10) for client in range(0, 100, 5)]
    assert np.mean([one.distance for one in found]) < 0.3
    assert 10 <= np.mean([len(one.clients) for one in found]) <= 15


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(2, 8), st.integers(1, 12), st.integers(0, 10_000))
def test_ratios_are_a_mix_of_different_clients_and_give_the_reported_mix(clients, classes, at_least, seed):
    rng = np.random.default_rng(seed)
    shares, wish = rng.dirichlet([0.3] * classes, clients), rng.dirichlet([0.5] * classes)
    found = compose(shares, wish, at_least=at_least)
    assert found.ratios.sum() == pytest.approx(1)
    assert np.all(found.ratios > 0)
    assert np.all(np.diff(found.clients) > 0)
    np.testing.assert_allclose(found.mix, found.ratios @ shares[found.clients])
    assert found.mix.sum() == pytest.approx(1)
    assert 0 <= found.distance <= 2


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_one_pass_is_at_least_as_near_as_any_single_client(seed):
    rng = np.random.default_rng(seed)
    shares, wish = rng.dirichlet([0.4] * 5, 20), rng.dirichlet([1.0] * 5)
    found = compose(shares, wish, at_least=1)
    assert found.passes == 1
    # Least squares concern unscaled ratios, so the mix is scaled back before comparing.
    scale = float(found.mix @ wish / (found.mix @ found.mix))
    own = np.linalg.norm(scale * found.mix - wish)
    each = [np.linalg.norm((row @ wish / (row @ row)) * row - wish) for row in shares]
    assert own <= min(each) + 1e-9


def test_a_target_equal_to_one_clients_mix_takes_that_client():
    shares = np.array([[1.0, 0.0], [0.0, 1.0], [0.3, 0.7]])
    found = compose(shares, np.array([0.3, 0.7]), at_least=1)
    assert found.distance == pytest.approx(0)
    again = compose(np.eye(3), np.eye(3)[1], at_least=1)
    assert again.clients.tolist() == [1]
    assert again.ratios.tolist() == [1.0]


def test_later_passes_choose_among_those_who_remain():
    """Two clients for each class: the first pass takes one pair (or a mix of both), the second must take the other."""
    shares = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    found = compose(shares, np.array([0.5, 0.5]), at_least=4)
    assert found.clients.tolist() == [0, 1, 2, 3]
    assert found.passes == 2
    np.testing.assert_allclose(found.ratios, 0.25)


def test_there_are_never_more_clients_than_there_are():
    found = compose(np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([0.6, 0.4]), at_least=10)
    assert found.clients.tolist() == [0, 1]


def test_the_authors_pairing_makes_another_mix_than_it_solves_for():
    """Columns scaled by samples but weights not: off by 0.44 to 0.71, where both coherent pairings are near."""
    off: dict[Pairing, list[float]] = {"unscaled": [], "scaled_rn": [], "scaled_r": []}
    for one in FEDERATIONS:
        for name in ("td1", "td2", "td3"):
            for pairing, found in off.items():
                mix, sizes = target(name, 10), one.sizes.astype(float)
                found.append(compose(one.truth.shares, mix, at_least=10, sizes=sizes, pairing=pairing).distance)
    mean = {pairing: np.mean(found) for pairing, found in off.items()}
    assert mean["unscaled"] < 0.15
    assert mean["scaled_rn"] < 0.15
    assert 0.4 < mean["scaled_r"] < 0.8


@pytest.mark.parametrize("pairing", ["scaled_r", "scaled_rn"])
def test_clients_of_unknown_size_count_with_the_mean_of_the_others_and_a_note(pairing):
    shares = np.random.default_rng(3).dirichlet([0.4] * 3, 6)
    sizes, filled = np.array([10.0, np.nan, 60, 20, np.nan, 30]), np.array([10.0, 30, 60, 20, 30, 30])
    given = {"at_least": 4, "pairing": pairing}
    found, expected = (compose(shares, np.full(3, 1 / 3), sizes=some, **given) for some in (sizes, filled))
    assert {1, 4} & set(found.clients.tolist())
    assert found.clients.tolist() == expected.clients.tolist()
    np.testing.assert_array_equal(found.ratios, expected.ratios)
    (note,) = sizes_note(sizes, pairing, asked=False)
    assert "unknown for 2 of 6 clients" in note
    assert "the mean of the others, 30. To ask all clients: --survey" in note
    assert "--survey" not in sizes_note(sizes, pairing, asked=True)[0]
    assert sizes_note(filled, pairing, asked=False) == sizes_note(sizes, "unscaled", asked=False) == []


@pytest.mark.parametrize("sizes", [None, np.array([np.nan, np.nan])])
def test_scaled_pairings_are_refused_where_no_size_is_known(sizes):
    with pytest.raises(Refusal, match=r"none is known: ask the clients with --survey .* or use the pairing unscaled"):
        compose(np.eye(2), np.array([0.5, 0.5]), at_least=1, sizes=sizes, pairing="scaled_r")


def test_for_a_class_that_nobody_holds_the_nearest_mix_comes_with_a_warning():
    shares = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]])
    found = compose(shares, np.array([0.3, 0.2, 0.5]), at_least=2)
    assert found.far
    assert found.distance == pytest.approx(1.0, abs=0.05)
    assert found.mix[:2] == pytest.approx([0.6, 0.4], abs=0.02)
    warning = found.warning(["cat", "dog", "emu"])
    assert warning is not None
    assert "50% away" in warning
    assert "too little of emu (0.0% instead of 50.0%)" in warning


def test_a_near_mix_has_no_warning():
    assert compose(np.eye(2), np.array([0.3, 0.7]), at_least=2).warning(["a", "b"]) is None


def test_nobody_to_choose_is_refused():
    with pytest.raises(Refusal, match="No client holds any sample of the classes"):
        compose(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0.0, 1.0]), at_least=2)


def test_a_composition_is_kept_in_json():
    found = compose(FEDERATIONS[0].truth.shares, target("td1", 10), at_least=10)
    again = Composition.of(found.as_mapping())
    np.testing.assert_array_equal(again.clients, found.clients)
    np.testing.assert_array_equal(again.ratios, found.ratios)
    assert again.distance == found.distance


# --- selecting composed clients and averaging their models


def setting(clients: int = 20, cohort: int = 4) -> Setting:
    layout = Layout.of(build_model("mlp", {"hidden": (4,)}, (1, 2, 2), 3, 0))
    return Setting(clients, cohort, 10, 3, 0, layout, Local())


def begun(part, **given):
    part.begin(setting(**given))
    return part


def test_only_composed_clients_are_invited_and_all_of_them_in_time():
    selector = begun(ComposedSelector(clients=(3, 5, 8, 13, 15, 19)))
    cohorts = [selector.select(t, np.arange(20)) for t in range(1, 60)]
    assert all(len(np.unique(cohort)) == 4 for cohort in cohorts)
    invited, times = np.unique(np.concatenate(cohorts), return_counts=True)
    assert invited.tolist() == [3, 5, 8, 13, 15, 19]
    assert times.max() < 1.5 * times.min()


def test_a_small_set_is_invited_whole_and_who_cannot_be_reached_is_not():
    selector = begun(ComposedSelector(clients=(3, 5)))
    assert sorted(selector.select(1, np.arange(20))) == [3, 5]
    assert selector.select(1, np.array([0, 5, 9])).tolist() == [5]
    assert len(selector.select(1, np.array([0, 1]))) == 0


@pytest.mark.parametrize(
    ("clients", "sentence"), [((), "is empty"), ((3, 20), "from 0 to 19"), ((4, 4), "names a client twice")]
)
def test_an_impossible_set_of_clients_is_refused(clients, sentence):
    with pytest.raises(Refusal, match=sentence):
        begun(ComposedSelector(clients=clients))


def replies(clients: list[int], states: torch.Tensor) -> Replies:
    count = len(clients)
    samples = torch.arange(1, count + 1) * 100
    return Replies(np.array(clients), states, samples, torch.zeros(count, dtype=torch.float64))


def test_models_count_by_their_ratios_among_those_who_replied_and_not_by_samples():
    aggregator = begun(Ratios(clients=(2, 7, 9), ratios=(0.5, 0.3, 0.2)))
    states = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    combined = aggregator.combine(1, torch.zeros(2), replies([2, 9], states))
    np.testing.assert_allclose(combined, [5 / 7, 2 / 7], rtol=1e-6)


def test_replies_that_count_nothing_leave_the_model_as_it_is():
    aggregator = begun(Ratios(clients=(2, 7), ratios=(0.5, 0.5)))
    model = torch.tensor([3.0, 4.0])
    assert torch.equal(aggregator.combine(1, model, replies([4], torch.ones(1, 2))), model)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "all zero"),
        ({"clients": (1, 2), "ratios": (0.5,)}, "2 clients have 1 ratios"),
        ({"clients": (1, 2), "ratios": (0.5, -0.1)}, "must not be negative"),
    ],
)
def test_impossible_ratios_are_refused(options, sentence):
    with pytest.raises(Refusal, match=sentence):
        begun(Ratios(**options))


# --- forms of targets

NAMES = ("cat", "dog", "emu", "7")


def test_classes_go_by_name_and_else_by_number():
    np.testing.assert_allclose(parse_target("cat=0.5, 2=0.3 ,7=0.2", NAMES).mix, [0.5, 0, 0.3, 0.2])
    np.testing.assert_allclose(parse_target({"dog": 1}, NAMES).mix, [0, 1, 0, 0])
    np.testing.assert_allclose(parse_target({0: 0.25, 3: 0.75}, NAMES).mix, [0.25, 0, 0, 0.75])
    np.testing.assert_allclose(parse_target(np.array([0.1, 0.2, 0.3, 0.4]), NAMES).mix, [0.1, 0.2, 0.3, 0.4])


def test_shares_that_do_not_sum_to_one_are_scaled_with_a_note():
    found = parse_target("cat=50,dog=30", NAMES)
    np.testing.assert_allclose(found.mix, [0.625, 0.375, 0, 0])
    assert found.notes == ("The shares of 'cat=50,dog=30' sum to 80 and were scaled to sum to 1.",)
    assert parse_target("cat=0.7,dog=0.3", NAMES).notes == ()


def test_the_papers_targets_go_by_name():
    np.testing.assert_allclose(parse_target("TD3", NAMES).mix, [0.5, 0.5, 0, 0])
    shares = np.array([[1.0, 0, 0, 0], [0, 0.5, 0.5, 0]])
    np.testing.assert_allclose(parse_target("local:1", NAMES, shares).mix, [0, 0.5, 0.5, 0])


def test_the_mix_of_a_client_goes_by_its_name():
    shares = np.array([[1.0, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1]])
    for asked, row in (("local:ulm", 1), ("LOCAL:1", 1), ("local:2", 0), ("local:0", 0)):
        found = parse_target(asked, NAMES, shares, ("2", "ulm", "Kiel"))
        assert (found.name, found.mix.tolist()) == (asked, shares[row].tolist())
    with pytest.raises(Refusal, match=r"There is no client 'kiel'. Did you mean 'Kiel'\? Clients: 2, ulm, Kiel; or by"):
        parse_targets("local:kiel", NAMES, shares, ("2", "ulm", "Kiel"))


def test_one_target_or_many():
    assert len(parse_targets("cat=1", NAMES)) == 1
    assert len(parse_targets([0.1, 0.2, 0.3, 0.4], NAMES)) == 1
    assert len(parse_targets(["cat=1", "td1", {"dog": 1}, [0, 0, 0, 1]], NAMES)) == 4
    assert len(parse_targets(np.eye(4), NAMES)) == 4


def test_the_mix_of_a_file_of_labels(tmp_path: Path):
    plain = tmp_path / "labels.csv"
    plain.write_text("cat\ncat\n\ndog\n2\n")
    np.testing.assert_allclose(parse_target(plain, NAMES).mix, [0.5, 0.25, 0.25, 0])
    headed = tmp_path / "table.csv"
    headed.write_text("time,Label\n10:00,emu\n10:05,emu\n10:10,cat\n")
    found = parse_target(headed, NAMES)
    np.testing.assert_allclose(found.mix, [1 / 3, 0, 2 / 3, 0])
    assert found.name == "table.csv"


@pytest.mark.parametrize("heading", ["target,y", "Y,target", "target,y,id", "class,Label", "dog,label"])
def test_of_several_columns_that_could_be_labels_the_likelier_heading_wins(tmp_path: Path, heading):
    """In the order label, labels, class, y, target, wherever the columns are; a class's name is no heading."""
    place = [name.lower() in ("y", "label") for name in heading.split(",")].index(True)
    rows = [["cat"] * len(heading.split(",")) for _ in range(3)]
    for row in rows:
        row[place] = "emu"
    path = tmp_path / "table.csv"
    path.write_text("\n".join([heading, *map(",".join, rows)]))
    np.testing.assert_allclose(parse_target(path, NAMES).mix, [0, 0, 1, 0])


def test_a_file_whose_column_is_headed_otherwise_is_refused_with_what_is_allowed(tmp_path: Path):
    path = tmp_path / "site.csv"
    path.write_text("animal\ncat\nemu\n")
    with pytest.raises(Refusal) as refusal:
        parse_target(path, NAMES)
    said = str(refusal.value)
    assert said.startswith(f"In the file {path}: There is no class 'animal'. Classes: cat, dog, emu, 7;")
    assert said.endswith("one label a line, or a table with a column headed label, labels, class, y or target.")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("", "The target is empty"),
        ("cats=1", "There is no class 'cats'. Did you mean 'cat'?"),
        ("9=1", "There is no class '9'."),
        ("cat=-0.5,dog=1.5", "The share of 'cat' must not be negative"),
        ("cat=much", "The share of 'cat' must be a number, not 'much'"),
        ("cat=nan", "must not be negative or infinite"),
        ("cat=1e308,dog=1e308", "too large to be added up"),
        ("cat=0,dog=0", "all of its shares are zero"),
        ("cat=0.5,0=0.5", "names 'cat' twice"),
        ("=0.5", "not of the form class=share"),
        ("cat", "'cat' is not a target"),
        ("local:0", "There is no target 'local:0'"),
        (",".join(["cat"] * 100), "is not a target"),
        ([0.5, 0.5], "a share for each of the 4 classes, and this one has 2"),
        ({}, "The target is empty"),
        ([], "There is no target"),
    ],
)
def test_targets_that_make_no_sense_are_refused_with_a_sentence(asked, sentence):
    with pytest.raises(Refusal) as refusal:
        parse_targets(asked, NAMES)
    assert sentence in str(refusal.value)


def test_a_file_in_place_of_shares_is_refused_with_where_files_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mix.csv").write_text("cat\n")
    with pytest.raises(Refusal, match=r"'mix.csv' is a file: .* --target-csv 'mix.csv', or in Python a Path"):
        parse_target("mix.csv", NAMES)
    assert parse_target(Path("mix.csv"), NAMES).mix.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "sentence"), [("", "holds no labels"), ("cat\nwolf\n", "no class 'wolf'"), ("a,label\n1\n", "no label")]
)
def test_files_without_labels_are_refused(tmp_path, text, sentence):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(Refusal, match=sentence):
        parse_target(path, NAMES)
    with pytest.raises(Refusal, match="cannot be read"):
        parse_target(tmp_path / "absent.csv", NAMES)
