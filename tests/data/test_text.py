"""Texts split by user: participants, samples, the vocabulary, and files that are refused."""

import gzip
import json
import lzma
import os
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from covey import run
from covey.client.learner import Learner
from covey.core.scores import LISTED_CLASSES, Scores, summary
from covey.data import Dataset, Samples, blogs, text, tweets
from covey.data.documents import json_lines
from covey.data.stackexchange import stack_exchange, without_tags
from covey.data.text import PADDING, UNKNOWN, Cut, from_writings, is_stop_word, words_of
from covey.environment.truth import Truth
from covey.errors import Refusal
from covey.randomness import generator

SMALL: dict[str, Any] = {"minimum": 4, "samples": 20, "test_users": 2, "test_samples": 15, "length": 5}
"""Options for the made-up corpus."""


def made_up(users: int, texts: int = 6, words: int = 8, seed: int = 0) -> list[dict[str, Any]]:
    """Texts of users of four topics, each with 30 words of its own; words are Zipf's, and half are the next in line."""
    rng = generator("made-up corpus", seed)
    popularity = 1 / np.arange(1, 31)
    popularity /= popularity.sum()
    records = []
    for user in range(users):
        for number in range(texts):
            word, said = 0, []
            for _ in range(words):
                word = (word + 1) % 30 if rng.random() < 0.5 else int(rng.choice(30, p=popularity))
                said.append(f"topic{user % 4}word{word}")
            records.append({"user": f"u{user}", "ts": f"2020-01-{number + 1:02}", "text": " ".join(said)})
    return records


def written(path: Path, records: list[dict[str, Any]]) -> Path:
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    pack: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.compress, ".gz": gzip.compress}
    path.write_bytes(pack.get(path.suffix, bytes)(content))
    return path


def in_words(dataset: Dataset, tokens: Tensor) -> list[str]:
    return [dataset.class_names[token] for token in tokens.tolist()]


def same(one: Dataset, other: Dataset) -> bool:
    pairs = ((one.x, other.x), (one.y, other.y), (one.test_x, other.test_x), (one.test_y, other.test_y))
    return all(torch.equal(*pair) for pair in pairs) and one.class_names == other.class_names


# ---------------------------------------------------------------------------------------------- users and samples


def test_users_become_clients_of_equal_size_and_the_last_ones_are_held_back(tmp_path):
    dataset = text(None, path=str(written(tmp_path / "a.jsonl", made_up(9))), **SMALL)
    assert dataset.group_names == tuple(f"u{user}" for user in range(7))
    assert dataset.groups is not None and torch.bincount(dataset.groups).tolist() == [20] * 7
    assert (dataset.x.shape, dataset.x.dtype, dataset.y.dtype) == ((140, 5), torch.int64, torch.int64)
    assert dataset.test_x.shape == (30, 5)
    assert dataset.class_names[:2] == ("<padding>", "<unknown>")
    assert dataset.never == (PADDING, UNKNOWN)
    topics = [{name.partition("word")[0] for name in in_words(dataset, dataset.y[dataset.groups == u])} for u in (0, 1)]
    assert topics == [{"topic0"}, {"topic1"}]


def test_words_are_known_from_users_who_train_only(tmp_path):
    records = [{"user": user, "text": f"one two three {word} four"} for user, word in
               [("a", "alpha"), ("b", "beta"), ("c", "gamma"), ("c", "gamma"), ("c", "gamma")]]  # fmt: skip
    file = written(tmp_path / "a.jsonl", records)
    dataset = text(None, path=str(file), minimum=1, samples=0, test_users=1, stop_words="keep")
    assert set(dataset.class_names[2:]) == {"one", "two", "three", "four", "alpha", "beta"}
    assert in_words(dataset, dataset.test_y[:4]) == ["two", "three", "<unknown>", "four"]


def test_the_vocabulary_is_the_most_frequent_words(tmp_path):
    records = made_up(9)
    file = written(tmp_path / "a.jsonl", records)
    dataset = text(None, path=str(file), vocabulary=12, **SMALL)
    counts = Counter(word for record in records[: 7 * 6] for word in record["text"].split())
    assert dataset.classes == 12
    least = min(counts[word] for word in dataset.class_names[2:])
    assert sorted(counts.values())[-10] == least
    assert (dataset.y == UNKNOWN).any() and not (dataset.y == PADDING).any()


word = st.sampled_from(["ant", "bee", "cat", "dog", "the", "it's", "BEE,"])
texts_of_a_user = st.lists(st.lists(word, max_size=6).map(" ".join), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    corpus=st.lists(texts_of_a_user, min_size=3, max_size=5),
    length=st.integers(1, 4),
    samples=st.integers(0, 3),
    vocabulary=st.integers(3, 8),
    keep=st.booleans(),
)
def test_a_sample_is_the_words_before_a_word_of_the_same_text(corpus, length, samples, vocabulary, keep):
    writings = [(f"u{user}", said) for user, texts in enumerate(corpus) for said in texts]
    cut = Cut(
        minimum=1, texts=0, samples=samples, users=0, test_users=1, test_samples=0, vocabulary=vocabulary,
        length=length, stop_words="keep" if keep else "remove",
    )  # fmt: skip
    try:
        dataset = from_writings("made up", Path("file"), lambda: iter(writings), cut)
    except Refusal:
        return
    known = set(dataset.class_names[2:])
    for user, name in enumerate(dataset.group_names):
        expected = []
        for author, said in writings:
            words = [w for w in words_of(said) if keep or w not in ("the", "it's")]
            seen = [w if w in known else "<unknown>" for w in words]
            for at in range(1, len(seen)) if author == name else ():
                before = seen[max(0, at - length) : at]
                expected.append((["<padding>"] * (length - len(before)) + before, seen[at]))
        assert dataset.groups is not None
        mine = torch.nonzero(dataset.groups == user).flatten()
        held = [(in_words(dataset, dataset.x[i]), dataset.class_names[dataset.y[i]]) for i in mine]
        if samples:
            assert len(held) == samples
            places = iter(expected)
            assert all(any(one == other for other in places) for one in held), "not in the order of the texts"
        else:
            assert held == expected


def test_users_with_too_little_are_left_out(tmp_path):
    records = [
        *made_up(4),
        *({"user": "few", "text": "so few texts"} for _ in range(3)),
        *({"user": "silent", "text": said} for said in ("", "  ", None, "\n", "", "")),
        *({"user": "short", "text": "word"} for _ in range(9)),
        *({"user": "last", "text": "this has words enough for some samples"} for _ in range(9)),
    ]
    dataset = text(
        None, path=str(written(tmp_path / "a.jsonl", records)), **{**SMALL, "test_users": 1}, stop_words="keep"
    )
    assert dataset.group_names == ("u0", "u1", "u2", "u3")
    assert set(in_words(dataset, dataset.test_y)) == {"<unknown>"}


def test_only_the_first_texts_and_users_count_where_asked(tmp_path):
    records = made_up(6)
    path = str(written(tmp_path / "a.jsonl", records))
    few = text(None, path=path, **{**SMALL, "samples": 0}, texts=2, users=5)
    assert few.group_names == ("u0", "u1", "u2")
    assert len(few.y) == 3 * 2 * 7
    heads = [record for record in records if record["ts"] < "2020-01-03"]
    assert same(few, text(None, path=str(written(tmp_path / "b.jsonl", heads)), **{**SMALL, "samples": 0, "minimum": 2},
                          users=5))  # fmt: skip


def test_stop_words_and_their_contractions_are_removed_unless_kept(tmp_path):
    said = "The senator didn’t say it's over; WE'RE the people's U.S. house, 2nd time"
    assert words_of(said)[:5] == ["the", "senator", "didn't", "say", "it's"]
    kept = [word for word in words_of(said) if not is_stop_word(word)]
    assert kept == ["senator", "say", "people's", "house", "2nd", "time"]
    assert words_of("x" * 100) == ["x" * 40]
    path = str(written(tmp_path / "a.jsonl", [{"user": user, "text": said} for user in "abc"]))
    options = {"minimum": 1, "samples": 0, "test_users": 1}
    assert text(None, path=path, **options).class_names[2:] == tuple(kept)
    whole = text(None, path=path, **options, stop_words="keep")
    assert len(whole.class_names) == 2 + 13
    # The data set names those that are kept; samples have them.
    assert [whole.class_names[place] for place in whole.stop_words] == [
        word for word in dict.fromkeys(words_of(said)) if is_stop_word(word)
    ]
    assert torch.isin(whole.x, torch.tensor(whole.stop_words)).any()
    assert text(None, path=path, **options).stop_words == ()


# ---------------------------------------------------------------------------------------------- evaluation


class Fixed(nn.Module):
    """Gives the same logits for every sample."""

    head = "layer"

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.layer = nn.Linear(1, len(logits))
        nn.init.zeros_(self.layer.weight)
        self.layer.bias.data = torch.tensor(logits)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x[:, :1] * 0.0)
        return logits


def test_unknown_words_and_padding_are_never_right_and_never_given():
    x, y = torch.ones(6, 3, dtype=torch.int64), torch.tensor([0, 1, 1, 2, 3, 2])
    names = ("<padding>", "<unknown>", "ant", "bee")
    dataset = Dataset("made up", x, y, x, y, names, never=(0, 1))
    learner = Learner(Fixed([9.0, 8.0, 1.0, 0.0]), dataset)
    loss, correct = learner.score(learner.layout.read(learner.module), Samples(x, y))
    assert correct.tolist() == [0, 0, 2, 0]
    # The loss is that of all classes, unknown words among them.
    logits = torch.tensor([[9.0, 8.0, 1.0, 0.0]]).expand(6, 4)
    assert float(loss) == pytest.approx(float(nn.functional.cross_entropy(logits, y, reduction="sum")), rel=1e-6)
    plain = Learner(Fixed([9.0, 8.0, 1.0, 0.0]), Dataset("made up", x, y, x, y, names))
    assert plain.score(learner.layout.read(learner.module), Samples(x, y))[1].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("classes", [LISTED_CLASSES, LISTED_CLASSES + 1])
def test_records_list_every_class_unless_there_are_thousands(classes):
    totals = np.full(classes, 2)
    scores = Scores(np.array([1.0]), np.ones((1, classes), dtype=np.int64), totals)
    said = summary(scores, Truth(np.full((3, classes), 1 / classes), np.zeros(3)), np.zeros(3, dtype=np.int64))
    assert said["accuracy"] == 0.5 and said["own_accuracy"] == pytest.approx(0.5)
    assert ("class_accuracy" in said) == (classes <= LISTED_CLASSES)


def test_own_accuracy_is_the_mean_over_clients_on_their_mixes_with_one_model_or_many():
    truth = Truth(np.array([[1.0, 0.0], [0.25, 0.75]]), np.zeros(2))
    totals, right = np.array([10, 10]), np.array([[5, 9], [2, 4]])

    def own(models: list[int], users: list[int]) -> object:
        return summary(Scores(np.zeros(len(models)), right[models], totals), truth, np.array(users))["own_accuracy"]

    # One model: 0.5 on the first mix, 0.25 · 0.5 + 0.75 · 0.9 = 0.8 on the second; the other model: 0.35 there.
    assert own([0], [0, 0]) == pytest.approx(0.65)
    assert own([0, 1], [0, 0]) == pytest.approx(0.65)
    assert own([0, 1], [0, 1]) == pytest.approx(0.425)


# ---------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("ending", [".xz", ".gz"])
def test_compressed_files_read_the_same(tmp_path, ending):
    records = made_up(5)
    plain = text(None, path=str(written(tmp_path / "a.jsonl", records)), **SMALL)
    packed = written(tmp_path / f"b.jsonl{ending}", records)
    assert same(plain, text(tmp_path, path=packed.name, **SMALL))


def test_yelps_reviews_read_as_any_texts(tmp_path):
    records = made_up(5)
    reviews = [
        {"review_id": "r", "user_id": r["user"], "stars": 4.0, "text": r["text"], "date": r["ts"]} for r in records
    ]
    plain = text(None, path=str(written(tmp_path / "a.jsonl", records)), **SMALL)
    assert same(plain, text(None, path=str(written(tmp_path / "review.json", reviews)), **SMALL))


def test_tweets_and_blogs_are_found_in_the_data_folder(tmp_path):
    records = made_up(5)
    (tmp_path / "blogs").mkdir()
    written(tmp_path / "tweets.jsonl.xz", records)
    written(tmp_path / "blogs" / "blogs.jsonl", records)
    assert same(tweets(tmp_path, **SMALL), blogs(tmp_path, **SMALL))
    with pytest.raises(Refusal, match=r"'tweets' needs the file tweets.jsonl .plain or as .xz or .gz., looked for as"):
        tweets(tmp_path / "blogs")
    with pytest.raises(Refusal, match="no data folder is given"):
        blogs(None)


def dump(path: Path, name: str, rows: list[str]) -> Path:
    path.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n<{name}>\n' + "\n".join(rows) + f"\n</{name}>")
    return path


def test_a_stack_exchange_dump_is_read_by_owner(tmp_path):
    posts = [
        '<row Id="1" OwnerUserId="7" Body="&lt;p&gt;Mount &amp;amp; unmount&lt;/p&gt;&lt;pre&gt;&lt;code&gt;ls -l'
        '&lt;/code&gt;&lt;/pre&gt;now" />',
        '<row Id="2" Body="nobody owns this" />',
        '<row Id="3" OwnerUserId="8" Title="no body" />',
    ]
    dump(tmp_path / "Posts.xml", "posts", posts)
    dump(tmp_path / "Comments.xml", "comments", ['<row Id="1" Text="Bee &lt; cat &lt;code&gt;" UserId="8" />'])
    assert [(user, said.split()) for user, said in stack_exchange(tmp_path / "Posts.xml")] == [
        ("7", ["Mount", "&", "unmount", "now"]),
        ("8", []),
    ]
    assert list(stack_exchange(tmp_path / "Comments.xml")) == [("8", "Bee < cat <code>")]
    dataset = text(None, path=str(tmp_path), minimum=1, samples=0, test_users=1)
    assert (dataset.group_names, dataset.class_names[2:]) == (("7",), ("mount", "unmount"))


def test_posts_and_comments_make_the_same_data_as_json_lines(tmp_path):
    records = made_up(5)
    half = len(records) // 2
    plain = text(None, path=str(written(tmp_path / "a.jsonl", records)), **SMALL)
    rows = [f'<row OwnerUserId="{r["user"]}" Body="&lt;b&gt;{r["text"]}&lt;/b&gt;" />' for r in records[:half]]
    more = [f'<row UserId="{r["user"]}" Text="{r["text"]}" />' for r in records[half:]]
    folder = tmp_path / "dump"
    folder.mkdir()
    dump(folder / "Posts.xml", "posts", rows)
    (folder / "Comments.xml.gz").write_bytes(
        gzip.compress(dump(tmp_path / "Comments.xml", "comments", more).read_bytes())
    )
    assert same(plain, text(None, path=str(folder), **SMALL))


def test_tags_that_are_never_closed_cost_no_more_than_others():
    assert without_tags("a <code> b <pre> c </code> d").split() == ["a"]
    assert without_tags("</code> a < b <i>c").split() == ["a", "<", "b", "c"]
    assert without_tags("<code" * 200_000).startswith("<code")


LAUGHS = (
    '<!DOCTYPE posts [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>\n'
    '<posts><row OwnerUserId="1" Body="&b;"/></posts>'
)

BAD_FILES: list[tuple[str, bytes, str]] = [
    ("a.jsonl", b"", "has no texts"),
    ("a.jsonl", b'\n\n{"user": "a", "text": " "}\n', "has no texts"),
    ("a.jsonl", b'{"user": "a", "text": "x"}\n{"text": "caf\xe9"}\n', "line 2 is not UTF-8 text: byte 14 is 0xe9"),
    ("a.jsonl", b'{"user": "a", "text": "x"}\nhello\n', "line 2 is not a JSON object, one to a line: Expecting value"),
    ("a.jsonl", b"[1, 2]\n", "line 1 is not a JSON object, one to a line, but a list"),
    ("a.jsonl", b"[" * 100_000, "line 1 is not a JSON object"),
    ("a.jsonl", b'{"text": "x"}\n', "line 1 does not say who wrote it"),
    ("a.jsonl", b'{"user": true, "text": "x"}\n', "line 1 does not say who wrote it"),
    ("a.jsonl", b'{"user": "a", "text": 7}\n', "line 1 has no 'text'"),
    ("a.jsonl", b'{"user": "a"}\n', "line 1 has no 'text'"),
    ("a.jsonl", b'{"user": "a", "text": "' + b"x " * (9 << 20) + b'"}\n', "line 1 is longer than 16 MiB"),
    ("a.jsonl.xz", b"not xz", "cannot be read: Input format not supported"),
    ("a.jsonl.gz", gzip.compress(b'{"user": "a", "text": "x"}\n' * 99)[:-9], "cannot be read: Compressed file ended"),
    ("Posts.xml", LAUGHS.encode(), "line 1 declares a document type"),
    ("Posts.xml.xz", lzma.compress(LAUGHS.encode()), "line 1 declares a document type"),
    ("Posts.xml", b"", "cannot be read as XML: no element found"),
    ("Posts.xml", b'<posts>\n<row Body="caf\xe9"/></posts>', "cannot be read as XML: .*line 2"),
    ("Posts.xml", b'<posts>\n<row Body="&b;"/></posts>', "cannot be read as XML: undefined entity: line 2"),
    ("Posts.xml", b"<posts><row></posts>", "cannot be read as XML: mismatched tag"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "sentence"), BAD_FILES, ids=[bad[2] for bad in BAD_FILES])
def test_a_file_that_cannot_be_read_is_refused_with_its_line(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Refusal, match=sentence):
        text(None, path=str(tmp_path / name), minimum=1)


def test_a_row_of_xml_longer_than_any_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("covey.data.stackexchange.LONGEST", 1 << 20)
    path = dump(tmp_path / "Posts.xml", "posts", [f'<row OwnerUserId="1" Body="{"x " * (1 << 20)}"/>'])
    with pytest.raises(Refusal, match="line 3: a row is longer than 1 MiB"):
        list(stack_exchange(path))


def test_a_line_of_ten_megabytes_is_read(tmp_path):
    said = "word " * (2 << 20)
    path = written(tmp_path / "a.jsonl", [{"user": "a", "text": said}, {"user": "b", "text": "other words"}])
    assert [len(text) for _, text in json_lines(path)] == [len(said), 11]


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"path": ""}, "Say which file"),
    ({"path": "missing.jsonl"}, "There is no file missing.jsonl nor .*missing.jsonl"),
    ({"path": "."}, "holds neither Posts.xml nor Comments.xml"),
    ({"minimum": 7}, r"has 6 users, none of them with 7 texts; the one with most has 6: lower dataset.minimum"),
    ({"samples": 43}, r"no user whose texts give 43 samples .*most has 42: lower dataset.samples"),
    ({"users": 7}, "has 6 users with at least 4 texts and 20 samples, and dataset.users asks for 7"),
    ({"test_users": 6}, "gives 6 users, and dataset.test_users holds back 6 of them"),
    ({"users": 2}, "gives 2 users, and dataset.test_users holds back 2 of them"),
    ({"test_users": 0}, "dataset.test_users must be at least 1, not 0"),
    ({"vocabulary": 2}, "dataset.vocabulary must be at least 3"),
    ({"length": 0}, "dataset.length must be at least 1"),
    ({"samples": -1}, "dataset.samples must be at least 1, or 0 for all there are, not -1"),
]


@pytest.mark.parametrize(("options", "sentence"), IMPOSSIBLE, ids=[str(options) for options, _ in IMPOSSIBLE])
def test_what_cannot_be_cut_is_refused_with_a_sentence(tmp_path, options, sentence):
    written(tmp_path / "a.jsonl", made_up(6))
    with pytest.raises(Refusal, match=sentence):
        text(tmp_path, **{**SMALL, "path": "a.jsonl", **options})


def test_texts_without_words_leave_no_vocabulary_and_are_refused(tmp_path):
    path = written(tmp_path / "a.jsonl", [{"user": user, "text": "the and of it"} for user in "abc"])
    with pytest.raises(Refusal, match=r"no user whose texts give 1 samples.*has 0: keep stop words with dataset.stop"):
        text(None, path=str(path), minimum=1, samples=0, test_users=1)
    kept = text(None, path=str(path), minimum=1, samples=0, test_users=1, stop_words="keep")
    assert "the" in kept.class_names


@pytest.mark.parametrize("kind", ["jsonl", "xml"])
def test_memory_holds_what_is_kept_and_not_the_file(tmp_path, kind):
    filler = "some words that nobody will keep " * 60
    records = [*made_up(5), *({"user": f"once{number}", "text": filler} for number in range(3000))]
    if kind == "jsonl":
        path = written(tmp_path / "a.jsonl", records)
    else:
        rows = [f'<row OwnerUserId="{record["user"]}" Body="{record["text"]}" />' for record in records]
        path = dump(tmp_path / "Posts.xml", "posts", rows)
    assert path.stat().st_size > 5_500_000
    text(None, path=str(path), **SMALL)
    tracemalloc.start()
    text(None, path=str(path), **SMALL)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


# ---------------------------------------------------------------------------------------------- runs


def test_a_run_from_the_command_line_has_a_client_for_each_user(covey_command, tmp_path):
    path = written(tmp_path / "a.jsonl", made_up(8))
    options = [f"dataset.path={path}", *(f"dataset.{name}={value}" for name, value in SMALL.items())]
    options += ["model.embedding=8", "model.hidden=8", "model.layers=1", "local.epochs=1"]
    sets = [part for option in options for part in ("--set", option)]
    flags = ["--dataset", "text", "--model", "lstm", "--environment", "natural", "--rounds", "2", "--cohort", "3"]
    answer = covey_command("run", *flags, *sets, "--workers", "1", "--out", tmp_path / "run", "--json")
    assert answer.code == 0, answer.err
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["clients"] == 6


def test_measurements_and_words_are_not_mistaken_for_each_other(tmp_path):
    rows = "".join(f"{n % 2},{n % 3},{n / 7},{n / 5}\n" for n in range(30))
    (tmp_path / "t.csv").write_text("label,client,one,two\n" + rows)
    with pytest.raises(Refusal, match=r"WordLSTM takes words .tokens., and the samples of 't' are measurements"):
        run(dataset={"name": "csv", "path": str(tmp_path / "t.csv")}, environment="natural", model="lstm",
            out=tmp_path / "run")  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not os.environ.get("COVEY_DATA"), reason="COVEY_DATA names no folder with data sets")
@pytest.mark.parametrize(("load", "users"), [(tweets, 585), (blogs, 516)])
def test_the_real_texts_are_150_of_each_user(load, users):
    folder = Path(os.environ["COVEY_DATA"])
    try:
        dataset = load(folder, minimum=150, samples=0, test_samples=0)
    except Refusal as refusal:
        pytest.skip(str(refusal))
    assert len(dataset.group_names) == users - 50
    assert dataset.classes == 10_000
    with pytest.raises(Refusal, match=f"has {users} users, none of them with 151 texts"):
        load(folder, minimum=151)
    equal = load(folder)
    assert equal.groups is not None and set(torch.bincount(equal.groups).tolist()) == {300}
    assert len(equal.test_y) == 50 * 100
    # Rare words are unknown, even more so those of users who did not contribute to the vocabulary.
    unknown = [float((y == UNKNOWN).float().mean()) for y in (dataset.y, dataset.test_y)]
    assert 0.05 < unknown[0] < unknown[1] < 0.20
