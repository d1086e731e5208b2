"""The user's own data: arrays, tables, and federations whose clients are altered."""

import io
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import covey
from covey import Config, Refusal, resume, run
from covey.core.build import build_federation
from covey.page.run_report import report as write_report
from tests.conftest import SMALL

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 5))
Y = np.where(X[:, 0] + X[:, 1] > 0, "up", "down")
SITES = np.repeat(["hamburg", "kiel", "bremen"], [150, 100, 50])


def test_arrays_and_a_client_for_each_sample_make_a_federation(tmp_path):
    federation = covey.federation(X, Y, SITES)
    assert federation.names == ("bremen", "hamburg", "kiel")
    assert federation.sizes.tolist() == [40, 120, 80]
    assert federation.dataset.class_names == ("down", "up")
    assert len(federation.dataset.test_y) == 60
    result = run(federation=federation, cohort=2, rounds=10, workers=1, out=tmp_path / "run")
    assert result.metrics[-1]["accuracy"] > 0.85
    assert result.evaluate()["accuracy"] == result.metrics[-1]["accuracy"]


def test_parts_may_list_each_clients_samples_and_share_them():
    test = (X[:50], Y[:50])
    federation = covey.federation(X, Y, [range(100), range(50, 300), [7]], test=test)
    assert federation.sizes.tolist() == [100, 250, 1]
    assert federation.shared
    assert not covey.federation(X, Y, [range(100), range(100, 300)], test=test).shared
    first = federation.samples(2)
    assert torch.allclose(first.x[0], torch.tensor(X[7], dtype=torch.float32))


def test_clients_may_be_named_with_their_samples():
    pair: Any = [X[:50], Y[:50]]
    federation = covey.federation(X, Y, {"kiel": np.arange(100), "bremen": range(100, 300)}, test=pair)
    assert federation.names == ("kiel", "bremen")
    assert federation.sizes.tolist() == [100, 200]
    assert len(federation.dataset.test_y) == 50


@pytest.mark.parametrize("test", [None, "0.2", (X, Y, SITES), True])
def test_what_is_neither_a_share_nor_test_samples_is_refused(test):
    with pytest.raises(Refusal, match=r"a share to hold out, or a pair \(test_x, test_y\), not"):
        covey.federation(X, Y, SITES, test=test)


def test_classes_that_only_test_samples_have_are_told_of():
    test = (X[:50], np.where(np.arange(50) % 9, Y[:50], "aside"))
    with pytest.warns(UserWarning, match=r"own data: 1 class is in the test samples alone \('aside'\): no model can"):
        covey.federation(X, Y, SITES, test=test)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        covey.federation(X, Y, SITES, test=(X[:50], Y[:50]))
        covey.federation(X, np.arange(300), SITES, test=(X[:3], np.array([5.0, 400.0, 9.5])), task="regression")


def test_images_stay_uint8_and_are_normalised_by_their_own_statistics():
    images = RNG.integers(0, 200, size=(60, 3, 8, 8), dtype=np.uint8)
    federation = covey.federation(images, np.arange(60) % 4, np.arange(60) // 20)
    assert federation.dataset.x.dtype == torch.uint8
    assert federation.dataset.mean == pytest.approx(federation.dataset.x.double().mean(dim=(0, 2, 3)).tolist())
    assert federation.dataset.deviation == pytest.approx(
        federation.dataset.x.double().std(dim=(0, 2, 3), correction=0).tolist()
    )


class Seeing(torch.nn.Module):
    """A model that notes what it sees, of samples `[n, 2, 3]`."""

    seen: ClassVar[list[torch.Tensor]] = []

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(6, 2)

    def forward(self, x):
        self.seen.append(x.detach().clone())
        return self.last(x.flatten(1))


@pytest.mark.parametrize("kind", ["float", "uint8", "Dataset"])
@pytest.mark.parametrize("normalise", [False, (3, 2), ([1, 5], [2, 4])])
def test_samples_reach_the_model_as_they_are_or_as_normalise_says(kind, normalise, tmp_path):
    x = torch.arange(20 * 6).view(20, 2, 3).to(torch.uint8 if kind == "uint8" else torch.float32)
    y = torch.arange(20) % 2
    data = torch.utils.data.TensorDataset(x, y) if kind == "Dataset" else x
    more = {"clients": [0] * 20} if kind == "Dataset" else {"y": y, "clients": [0] * 20}
    federation = covey.federation(data, **more, normalise=normalise)
    Seeing.seen.clear()
    local = {"batch": 0, "epochs": 1}
    done = run(federation=federation, model=Seeing, cohort=1, rounds=1, workers=1, local=local, out=tmp_path / "run")
    mean, deviation = (torch.tensor(one).view(-1, 1) for one in (normalise or (0, 1)))
    known, seen = (x - mean) / deviation, torch.cat(Seeing.seen)
    others = [row for row in seen if not any(torch.allclose(row, one) for one in known)]
    # Two samples that are made up pass before the run begins, in evaluation and in training.
    assert len(others) <= 4 < 20 <= len(seen)
    done.export(tmp_path / "model.ts")
    program = torch.jit.load(tmp_path / "model.ts")
    torch.testing.assert_close(program(x[:3]), done.model()((x[:3] - mean) / deviation))
    with pytest.raises(Refusal, match="is not the one that this run was made with"):
        resume(tmp_path / "run", federation=covey.federation(data, **more), model=Seeing)


@pytest.mark.parametrize(
    ("normalise", "sentence"),
    [
        ("no", r"own data: normalise must be True, False, or a pair \(mean, deviation\), not 'no'"),
        ((1, 0), "of finite numbers, with deviations above 0"),
        (("a", 1), "of finite numbers, with deviations above 0"),
        (([1, 2], 1), "normalise has 2 numbers, and samples have 5 channels or features"),
    ],
)
def test_an_impossible_normalise_is_refused(normalise, sentence):
    with pytest.raises(Refusal, match=sentence):
        covey.federation(X, Y, SITES, normalise=normalise)


def test_a_run_on_passed_in_data_resumes_with_the_same_data_only(tmp_path):
    federation = covey.federation(X, Y, SITES)
    whole = run(federation=federation, rounds=3, workers=1, cohort=2, out=tmp_path / "run")
    with pytest.raises(Refusal, match="was passed in from Python"):
        resume(tmp_path / "run")
    with pytest.raises(Refusal, match="is not the one that this run was made with"):
        resume(tmp_path / "run", federation=covey.federation(X + 1, Y, SITES))
    again = resume(tmp_path / "run", federation=covey.federation(X, Y, SITES))
    assert again.metrics == whole.metrics


@pytest.mark.parametrize("work", [run, covey.analyze])
def test_another_number_of_clients_than_the_federation_has_is_refused(tmp_path, work):
    federation = covey.federation(X, Y, SITES)
    for given, settings in (({"clients": 50}, {}), ({}, {"clients": 50})):
        with pytest.raises(Refusal, match="passed in has 3 clients, and clients asks for 50"):
            work(given, federation=federation, **settings)
    assert run({"clients": "3"}, federation=federation, rounds=1, workers=1, out=tmp_path / "run").finished


def test_crops_and_flips_are_for_images(tmp_path):
    for local in ({"flip": True}, {"crop": 2}):
        with pytest.raises(Refusal, match="are for images, and samples of 'own data' have the shape 5"):
            run(federation=covey.federation(X, Y, SITES), local=local, out=tmp_path / "run")


@pytest.mark.slow
def test_words_as_numbers_go_to_a_model_of_words(tmp_path):
    words = RNG.integers(0, 6, size=(300, 4))
    names = [f"word{number}" for number in range(6)]
    federation = covey.federation(words, (words[:, -1] + 1) % 6, np.arange(300) % 5, class_names=names, tokens=True)
    assert federation.dataset.x.dtype == torch.int64
    small = {"name": "lstm", "embedding": 8, "hidden": 16, "layers": 1}
    work = {"epochs": 10, "batch": 10, "rate": 1.0}
    result = run(federation=federation, model=small, cohort=5, rounds=5, local=work, workers=1, out=tmp_path / "run")
    assert result.metrics[-1]["accuracy"] > 0.9
    with pytest.raises(Refusal, match="tokens must be whole numbers from 0"):
        covey.federation(words - 1, words[:, 0], np.arange(300) % 5, tokens=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((X, Y[:10], SITES), "300 samples but 10 labels"),
        ((X, Y, SITES[:3].tolist()), "client of each of the 300 samples, .*; it says the client of 3 samples"),
        ((X, Y, np.arange(200)), "client of each of the 300 samples, .*; it says the client of 200 samples"),
        ((X, Y, [["kiel"], ["hamburg"]]), r"must list whole sample numbers; to client 0 it gives \['kiel'\]"),
        ((X, Y, [[0, 1], [0.5]]), r"must list whole sample numbers; to client 1 it gives \[0.5\]"),
        ((X, Y, [[[1], [2, 3]]]), "must list whole sample numbers; to client 0"),
        ((X, Y, {"kiel": [1], "bremen": [300]}), "parts gives client bremen samples outside 0 to 299"),
        ((X, Y, [*SITES[:299], ["kiel", "bremen"]]), "clients must be one per sample"),
        (
            (X, Y, None),
            r"own data: say whose the samples are: clients, a number or a name for each of them \(or parts\)",
        ),
        ((X, 3, SITES), "y must be an array or a list, not 3"),
        ((X, [[1], [1, 2]] * 150, SITES), "labels must be one per sample"),
        (([[1, 2], [3]] * 150, Y, SITES), "samples must be an array"),
        ((X, Y, []), "parts names no client"),
        ((X[:0], Y[:0], SITES[:0]), "own data: there are no samples"),
        ((X[:, 0], Y, SITES), "samples must be an array"),
        ((X, np.zeros(300), SITES), "there is only one class"),
        ((X, Y, [[0, 1], []]), "parts gives client 1 no sample"),
        ((X, Y, [[0, 1], [999]]), "parts gives client 1 samples outside 0 to 299"),
        ((X, Y, [[0, 1], [2]]), "give test samples too"),
        ((np.array([["a", "b"]] * 300), Y, SITES), "samples must be numbers"),
        ((X, np.array([*Y[:9], *range(291)], dtype=object), SITES), "labels must be all numbers or all words"),
        ((X, Y[:, None], SITES), "labels must be one per sample"),
    ],
)
def test_impossible_arrays_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        covey.federation(*arguments)


def write_csv(path, rows=None) -> None:
    rows = rows if rows is not None else [(*x, y, site) for x, y, site in zip(X[:, :2], Y, SITES, strict=True)]
    path.write_text("a,b,outcome,site\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\n")


def test_a_csv_file_with_a_client_column_runs_from_the_command_line(tmp_path, covey_command):
    write_csv(tmp_path / "table.csv")
    answer = covey_command(
        "run", "--dataset", "csv", "--environment", "natural", "--data-dir", tmp_path,
        "--set", "dataset.path=table.csv", "--set", "dataset.label=outcome", "--set", "dataset.client=site",
        "--cohort", 2, "--rounds", 8, "--workers", 1, "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert answer.json["accuracy"] > 0.85
    config = covey.Run.open(tmp_path / "run").config
    assert config.clients == 3
    assert sorted(build_federation(config).names) == ["bremen", "hamburg", "kiel"]


@pytest.mark.parametrize(
    ("rows", "settings", "sentence"),
    [
        (None, {"client": "town"}, "has no column 'town' \\(it has: a, b, outcome, site\\)"),
        (
            [(1, 2, "up", "kiel"), (1, "x", "up", "kiel"), (1, 3, "up", "kiel")],
            {},
            "line 3, column 'b': 'x' is not a number, as most of the column are; .* dataset.categorical=b.$",
        ),
        (None, {"client": "client"}, r"name the clients: a CSV file in a column \(dataset.client=COLUMN\)"),
        ([(1, 2, "up")], {}, "line 2: 3 values for 4 columns"),
        (
            [(1, 2, "up", "kiel"), (1, "nan", "down", "kiel")],
            {"missing": "refuse"},
            "line 3, column 'b': 'nan' is a missing value; with dataset.missing=median",
        ),
        ([(1, 2, "up", "kiel"), (), ("1e39", 2, "down", "kiel")], {}, "line 4, column 'a': '1e39' is not a finite"),
        ([(1, 2, "up", "kiel"), (1, 2, " ", "kiel")], {}, "line 3: the column 'outcome' is empty"),
        ([(1, 2, "up", "kiel"), (1, 2, "down", "")], {}, "line 3: the column 'site' is empty"),
        ([], {}, "has no rows"),
    ],
)
def test_faulty_tables_are_refused_with_the_line(tmp_path, rows, settings, sentence):
    write_csv(tmp_path / "table.csv", rows)
    options = {"path": str(tmp_path / "table.csv"), "label": "outcome", "client": "site", **settings}
    with pytest.raises(Refusal, match=sentence):
        build_federation(Config.of(dataset={"name": "csv", **options}, environment="natural", clients=1, cohort=1))


def test_an_npz_file_is_read_and_pickles_in_it_are_not(tmp_path):
    np.savez(tmp_path / "own.npz", x=X, y=Y, client=SITES, test_x=X[:20], test_y=Y[:20])
    config = Config.of(dataset={"name": "npz", "path": str(tmp_path / "own.npz")}, environment="natural")
    federation = build_federation(config)
    sizes = dict(zip(federation.names, federation.sizes.tolist(), strict=True))
    assert sizes == {"bremen": 50, "hamburg": 150, "kiel": 100}
    assert len(federation.dataset.test_y) == 20
    np.savez(tmp_path / "bad.npz", x=X, y=np.array([object()] * 300), client=SITES)
    with pytest.raises(Refusal, match="cannot be read: its array 'y' is damaged, or holds Python objects"):
        Config.of(dataset={"name": "npz", "path": str(tmp_path / "bad.npz")}, environment="natural")


def test_truth_values_and_tables_of_several_types_of_numbers_are_samples():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"age": X[:, 0], "count": np.arange(300), "site": SITES})
    numbers = pandas.get_dummies(table)
    assert np.asarray(numbers).dtype == object
    found = covey.federation(numbers, Y, SITES, test=(numbers[:9], Y[:9])).dataset.x
    np.testing.assert_allclose(found.numpy(), numbers.to_numpy(dtype=np.float32))
    assert covey.federation(X > 0, Y, SITES, test=(X[:9] > 0, Y[:9])).dataset.x.dtype == torch.float32
    with pytest.raises(
        Refusal, match=r"samples must be numbers, not object; write words as columns of 0 and 1 .*get_dum"
    ):
        covey.federation(table, Y, SITES)


def saved(save, *arrays, **named) -> bytes:
    stream = io.BytesIO()
    save(stream, *arrays, **named)
    return stream.getvalue()


WHOLE = saved(np.savez, x=X, y=Y)
NOT_WHOLE = " is not an NPZ file, or not a whole one: numpy.savez(file, x=..., y=...) writes them."


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"junk", NOT_WHOLE),
        (b"", NOT_WHOLE),
        (saved(np.save, X), NOT_WHOLE),
        (WHOLE[:-9], NOT_WHOLE),
        (b"junk" + WHOLE, NOT_WHOLE),
        (WHOLE.replace(b"PK\1\2", b"junk"), NOT_WHOLE),
        (WHOLE[:900] + b"damaged" + WHOLE[907:], " cannot be read: its array 'x' is damaged, or holds Python objects"),
        (saved(np.savez), " has no array 'x' (it has: none)."),
        (saved(np.savez, x=X[:0], y=Y[:0]), ": there are no samples."),
    ],
    ids=["junk", "empty", "npy", "cut off", "begun with junk", "no index", "damaged", "no array", "no sample"],
)
def test_what_is_no_npz_file_with_samples_is_refused_in_a_sentence(tmp_path, content, sentence):
    path = tmp_path / "own.npz"
    path.write_bytes(content)
    with pytest.raises(Refusal) as caught:
        Config.of(dataset={"name": "npz", "path": str(path)}, environment="natural")
    assert str(caught.value).startswith(f"{path}{sentence}")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("part", ["x", "test_x"])
def test_samples_that_are_not_finite_are_refused_with_the_first_row(tmp_path, part, value):
    arrays: dict[str, Any] = {"x": X.copy(), "y": Y, "client": SITES, "test_x": X[:20].copy(), "test_y": Y[:20]}
    arrays[part][[7, 13], 2] = value
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(Refusal, match=rf"own\.npz: {part}\[7\] holds a value that is not a finite float32 number"):
        Config.of(dataset={"name": "npz", "path": str(tmp_path / "own.npz")}, environment="natural")
    with pytest.raises(Refusal, match=rf"own data: {part}\[7\] holds a value that is not a finite float32 number"):
        covey.federation(arrays["x"], Y, SITES, test=(arrays["test_x"], arrays["test_y"]))


NUMBERS = np.arange(300) % 3
MISSING = [
    np.where(np.arange(300) < 7, NUMBERS, np.nan),
    np.array([*Y[:7], "", *Y[8:]]),
    [*Y[:7], float("nan"), *Y[8:]],
    [*NUMBERS[:7], None, *NUMBERS[8:]],
]


@pytest.mark.parametrize("gaps", MISSING, ids=["nan", "empty", "nan among words", "none"])
def test_a_sample_without_a_label_or_a_client_is_refused(gaps):
    for y, parts, test, sentence in (
        (gaps, SITES, 0.2, r"own data: x\[7\] has no label"),
        (Y, SITES, (X, gaps), r"own data: test_x\[7\] has no label"),
        (Y, gaps, 0.2, r"own data: x\[7\] has no client"),
    ):
        with pytest.raises(Refusal, match=sentence):
            covey.federation(X, y, parts, test=test)


@pytest.mark.parametrize(("array", "lacking"), [("y", "label"), ("client", "client")])
def test_an_npz_file_with_a_gap_is_refused(tmp_path, array, lacking):
    arrays: dict[str, Any] = {"x": X, "y": NUMBERS, "client": NUMBERS, array: MISSING[0]}
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(Refusal, match=rf"own\.npz: x\[7\] has no {lacking}"):
        Config.of(dataset={"name": "npz", "path": str(tmp_path / "own.npz")}, environment="natural")


def test_natural_clients_need_data_that_names_them():
    with pytest.raises(Refusal, match="does not say which client a sample belongs to"):
        Config.of(dataset="digits", environment="natural")


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_only_natural_clients_need_a_file_that_names_them(tmp_path, kind):
    file = tmp_path / f"own.{kind}"
    if kind == "csv":
        file.write_text("a,b,label\n" + "\n".join(f"{a},{b},{y}" for (a, b), y in zip(X[:, :2], Y, strict=True)))
    else:
        np.savez(file, x=X[:, :2], y=Y)
    dataset = {"name": kind, "path": str(file)}
    federation = build_federation(Config.of(dataset=dataset, environment="dirichlet", clients=6))
    assert federation.clients == 6
    assert len(federation.dataset.y) == 240
    with pytest.raises(Refusal, match=r"'natural' cannot split it; .* \(dataset.client=COLUMN\), .* an array 'client'"):
        Config.of(dataset=dataset, environment="natural")


def test_another_environment_splits_own_data_anew(tmp_path):
    write_csv(tmp_path / "table.csv")
    options = {"path": str(tmp_path / "table.csv"), "label": "outcome", "client": "site"}
    config = Config.of(dataset={"name": "csv", **options}, environment={"name": "dirichlet", "alpha": 0.1}, clients=6)
    assert build_federation(config).clients == 6


def test_altered_clients_hold_altered_samples_and_the_stored_ones_stay():
    plain = build_federation(Config.of(SMALL))
    poisoned = build_federation(Config.of({**SMALL, "altered": {"poison": 0.5, "inverted": 0.25}}))
    assert poisoned.altered is not None
    for client in range(8):
        before, after = plain.samples(client), poisoned.samples(client)
        flipped = poisoned.altered.poisoned[client]
        assert torch.equal(after.y, (before.y + 1) % 10 if flipped else before.y)
        inverted = poisoned.altered.features[client] == "inverted"
        assert torch.equal(after.x, 16 - before.x if inverted else before.x)
    assert sum(poisoned.altered.poisoned) == 4
    assert np.array_equal(plain.truth.shares, poisoned.truth.shares)


def test_noisy_labels_are_the_same_in_every_round():
    noisy = build_federation(Config.of({**SMALL, "altered": {"noise": 0.3}}))
    plain = build_federation(Config.of(SMALL))
    assert torch.equal(noisy.samples(3).y, noisy.samples(3).y)
    assert (noisy.samples(3).y != plain.samples(3).y).sum() == 6
    assert not torch.equal(noisy.samples(3).y != plain.samples(3).y, noisy.samples(4).y != plain.samples(4).y)


def test_poison_costs_accuracy(tmp_path):
    given = {**SMALL, "rounds": 15, "environment": {"name": "iid", "samples": 60}, "local": {"epochs": 3}}
    clean = run(given, out=tmp_path / "clean").metrics[-1]["accuracy"]
    poisoned = run(given, altered={"poison": 0.5}, out=tmp_path / "poisoned").metrics[-1]["accuracy"]
    assert clean > poisoned + 0.1


def test_references_are_free_of_alterations():
    for method in ("iid", "central"):
        experiment = covey.Experiment.of(Config.of({**SMALL, "method": method, "altered": {"poison": 1.0}}))
        experiment.runtime.close()
        part = experiment.federation.parts[0]
        assert torch.equal(experiment.federation.samples(0).y, experiment.federation.dataset.y[part])


def test_methods_are_compared_on_a_federation_that_is_passed_in(tmp_path):
    federation = covey.federation(X, Y, SITES)
    settings: dict[str, Any] = {"rounds": 2, "cohort": 2, "workers": 1, "fairness": True}
    found = covey.compare(
        ["fedavg", "uniform+loss-softmax"], 2, federation=federation, out=tmp_path / "all", **settings
    )
    alone = covey.run(
        selector="uniform",
        aggregator="loss-softmax",
        seed=1,
        federation=federation,
        out=tmp_path / "one",
        rounds=2,
        cohort=2,
        workers=1,
    )
    assert found.runs["uniform+loss-softmax"][1].metrics[-1]["loss"] == alone.metrics[-1]["loss"]
    assert found.runs["fedavg"][0].model() is not None
    again = covey.Comparison.open(tmp_path / "all", federation)
    assert again.rows == found.rows
    page = write_report([tmp_path / "all"]).read_text()
    assert "covey.compare([&#x27;fedavg&#x27;, &#x27;uniform+loss-softmax&#x27;], [0, 1], federation=..." in page

    (tmp_path / "all" / "fedavg" / "seed-1" / "checkpoint.safetensors").unlink()
    (tmp_path / "all" / "fedavg" / "seed-1" / "metrics.jsonl").unlink()
    with pytest.raises(Refusal, match=r"all is not complete yet; resume with: covey resume"):
        covey.Comparison.open(tmp_path / "all")
    other = covey.federation(X[:200], Y[:200], SITES[:200])
    with pytest.raises(Refusal, match=r"The folder .* holds another comparison"):
        covey.compare(["fedavg", "uniform+loss-softmax"], 2, federation=other, out=tmp_path / "all", **settings)
    resumed = covey.compare(
        ["fedavg", "uniform+loss-softmax"], 2, federation=federation, out=tmp_path / "all", **settings
    )
    assert resumed.rows == found.rows


def test_a_lockstep_takes_a_federation_that_is_passed_in(tmp_path):
    federation = covey.federation(X, Y, SITES)
    settings: dict[str, Any] = {"rounds": 2, "cohort": 2, "federation": federation, "device": "cpu"}
    one, other = (
        covey.compare("fedavg", 2, runtime=runtime, out=tmp_path / runtime, **settings)
        for runtime in ("local", "stacked")
    )
    losses = [[run.metrics[-1]["loss"] for run in found.runs["fedavg"]] for found in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
