"""Texts of many users, for predicting the next word: the data of NCCB's experiments.

A sample is a place in a text: the input is the `length` words before it, the label is the word at it. Numbers stand for
words, 0 for padding (on the left, if fewer words come before) and 1 for words outside the vocabulary. Unknown words are
learned as a class of their own, so that the loss covers the whole text. In evaluation only words of the vocabulary are
answers, so a place with an unknown word always counts as wrong.
"""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.data.dataset import Dataset, DatasetLoader
from covey.data.documents import COMPRESSED, Writing, json_lines
from covey.data.stackexchange import stack_exchange
from covey.errors import Refusal, require
from covey.registries import datasets
from covey.task.classification import NextToken

PADDING, UNKNOWN = 0, 1
SPECIAL = ("<padding>", "<unknown>")

IntArray = NDArray[np.int64]
StopWords = Literal["remove", "keep"]

_WORD = re.compile(r"\w+(?:'\w+)*")
_LONGEST_WORD = 40
_DUMP = ("Posts.xml", "Comments.xml")


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Options of the data sets below: how texts become samples."""

    minimum: int
    texts: int
    samples: int
    users: int
    test_users: int
    test_samples: int
    vocabulary: int
    length: int
    stop_words: StopWords

    def __post_init__(self) -> None:
        for name, least in (("minimum", 1), ("test_users", 1), ("length", 1), ("vocabulary", len(SPECIAL) + 1)):
            value = getattr(self, name)
            extra = f" ({SPECIAL[PADDING]}, {SPECIAL[UNKNOWN]} and a word)" if name == "vocabulary" else ""
            require(value >= least, f"dataset.{name} must be at least {least}{extra}, not {value}.")
        for name in ("texts", "samples", "users", "test_samples"):
            value = getattr(self, name)
            require(value >= 0, f"dataset.{name} must be at least 1, or 0 for all there are, not {value}.")


@dataclass(eq=False)
class _Author:
    """One user's words, text after text, numbered in the order of first occurrence."""

    words: "array[int]" = field(default_factory=lambda: array("i"))
    ends: "array[int]" = field(default_factory=lambda: array("q"))
    """End of each text in `words`."""

    @property
    def places(self) -> int:
        """Number of samples: words that follow another one in the same text."""
        return len(self.words) - int(np.count_nonzero(np.diff(self.ends, prepend=0)))


@datasets.add("text")
def text(
    data_dir: Path | None,
    /,
    *,
    path: str = "",
    minimum: int = 150,
    texts: int = 0,
    samples: int = 300,
    users: int = 0,
    test_users: int = 50,
    test_samples: int = 100,
    vocabulary: int = 10_000,
    length: int = 10,
    stop_words: StopWords = "remove",
) -> Dataset:
    """Your own texts with their users: JSON lines (`user`, `text`), Yelp's reviews, or a Stack Exchange dump.

    `path` is a file of JSON lines, a Posts.xml or Comments.xml, or a folder with those two; each may end in .xz
    or .gz. Users with fewer than `minimum` texts are left out, and so are those whose texts give fewer than
    `samples` samples; the others have exactly that many, spread evenly over their first `texts` texts (0: all).
    The last `test_users` of the first `users` users (0: all) are held out, and give at most `test_samples` test
    samples each.
    """
    cut = Cut(
        minimum=minimum, texts=texts, samples=samples, users=users, test_users=test_users,
        test_samples=test_samples, vocabulary=vocabulary, length=length, stop_words=stop_words,
    )  # fmt: skip
    require(path != "", "Say which file: --set dataset.path=FILE.jsonl (or a Posts.xml, or the folder it is in).")
    places = [Path(path), *([data_dir / path] if data_dir else [])]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise Refusal(f"There is no file {' nor '.join(map(str, places))}.")
    files = _dump_in(found) if found.is_dir() else [found]
    return from_writings(found.name.partition(".")[0] or found.name, found, _reader(files), cut)


def _corpus(name: str, about: str) -> DatasetLoader:
    """Register a loader of the file name.jsonl in the user's data folder."""

    def load(
        data_dir: Path | None,
        /,
        *,
        minimum: int = 150,
        texts: int = 0,
        samples: int = 300,
        users: int = 0,
        test_users: int = 50,
        test_samples: int = 100,
        vocabulary: int = 10_000,
        length: int = 10,
        stop_words: StopWords = "remove",
    ) -> Dataset:
        cut = Cut(
            minimum=minimum, texts=texts, samples=samples, users=users, test_users=test_users,
            test_samples=test_samples, vocabulary=vocabulary, length=length, stop_words=stop_words,
        )  # fmt: skip
        file = _locate(name, data_dir)
        return from_writings(name, file, _reader([file]), cut)

    load.__name__ = load.__qualname__ = name
    load.__doc__ = about
    return datasets.add(name)(load)


tweets = _corpus(
    "tweets",
    "Tweets of accounts of the US Congress, January to June 2019: the next word, 585 users with 150 texts each.",
)
blogs = _corpus(
    "blogs",
    "Posts from the Blog Authorship Corpus: the next word, 516 users with 150 texts each.",
)


def from_writings(name: str, source: Path, read: Callable[[], Iterator[Writing]], cut: Cut) -> Dataset:
    """Return the data set of the texts; `read()` yields all of them, and is called twice.

    The first pass counts texts, the second keeps the words of users with enough of them. So memory holds the samples'
    words and every user's name, never the texts.
    """
    authors, words = _words_of(read, _with_enough(read, source, cut.minimum), cut)
    wanted = max(1, cut.samples)
    enough = [user for user, author in authors.items() if author.places >= wanted]
    most = max(author.places for author in authors.values())
    remedy = "lower dataset.samples" if most else "keep stop words with dataset.stop_words=keep, if these are all"
    require(
        len(enough) > 0,
        f"{source} has no user whose texts give {wanted:,} samples (words after another word of the same text); the "
        f"one with most has {most:,}: {remedy}.",
    )
    require(
        cut.users <= len(enough),
        f"{source} has {len(enough):,} users with at least {cut.minimum:,} texts and {wanted:,} samples, and "
        f"dataset.users asks for {cut.users:,}.",
    )
    chosen = enough[: cut.users] if cut.users else enough
    require(
        cut.test_users < len(chosen),
        f"{source} gives {len(chosen):,} users, and dataset.test_users holds back {cut.test_users:,} of them for "
        "testing, which leaves nobody to train on; hold back fewer.",
    )
    training, testing = chosen[: -cut.test_users], chosen[-cut.test_users :]
    known, classes = _vocabulary([authors[user] for user in training], words, cut.vocabulary)
    train = [_samples(authors[user], classes, cut.length, cut.samples) for user in training]
    test = [_samples(authors[user], classes, cut.length, cut.test_samples) for user in testing]
    sizes = torch.tensor([len(y) for _, y in train])
    return Dataset(
        name,
        *_together(train),
        *_together(test),
        (*SPECIAL, *known),
        groups=torch.repeat_interleave(torch.arange(len(train)), sizes),
        group_names=tuple(training),
        never=(PADDING, UNKNOWN),
        stop_words=tuple(place for place, word in enumerate(known, start=len(SPECIAL)) if is_stop_word(word)),
        task=NextToken(),
    )


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case: letters, digits, and apostrophes between them."""
    return [word[:_LONGEST_WORD] for word in _WORD.findall(text.lower().replace("’", "'"))]


def is_stop_word(word: str) -> bool:
    """True if a word says little: single letters, and scikit-learn's English list with contractions of its words."""
    listed = _stop_words()
    if len(word) == 1 and word.isascii():
        return True
    return word in listed or ("'" in word and (word.partition("'")[0] in listed or word.endswith("n't")))


@lru_cache(maxsize=1)
def _stop_words() -> frozenset[str]:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return frozenset(ENGLISH_STOP_WORDS)


def _with_enough(read: Callable[[], Iterator[Writing]], source: Path, minimum: int) -> list[str]:
    """Return the users with at least `minimum` texts that are not blank, in order of first occurrence."""
    counts = Counter(user for user, text in read() if text and not text.isspace())
    require(len(counts) > 0, f"{source} has no texts.")
    enough = [user for user, count in counts.items() if count >= minimum]
    require(
        len(enough) > 0,
        f"{source} has {len(counts):,} users, none of them with {minimum} texts; the one with most has "
        f"{max(counts.values()):,}: lower dataset.minimum.",
    )
    return enough


def _words_of(
    read: Callable[[], Iterator[Writing]], users: Sequence[str], cut: Cut
) -> tuple[dict[str, _Author], list[str]]:
    """Return the words of these users' texts as numbers, and the words that the numbers stand for."""
    authors = {user: _Author() for user in users}
    numbers: dict[str, int] = {}
    skipped = -1
    for user, text in read():
        author = authors.get(user)
        if author is None or not text or text.isspace() or (cut.texts and len(author.ends) == cut.texts):
            continue
        for word in words_of(text):
            number = numbers.get(word)
            if number is None:
                stopped = cut.stop_words == "remove" and is_stop_word(word)
                number = numbers[word] = skipped if stopped else len(numbers)
            if number != skipped:
                author.words.append(number)
        author.ends.append(len(author.words))
    return authors, list(numbers)


def _vocabulary(authors: Sequence[_Author], words: Sequence[str], size: int) -> tuple[list[str], IntArray]:
    """Return the words that these authors use most, and the class of every number `[words]`."""
    counts = np.zeros(len(words), dtype=np.int64)
    for author in authors:
        used, times = np.unique(np.asarray(author.words), return_counts=True)
        counts[used] += times
    # Stable: among equally frequent words, the one that occurred first.
    often = np.argsort(-counts, kind="stable")[: size - len(SPECIAL)]
    often = often[counts[often] > 0]
    classes = np.full(len(words), UNKNOWN, dtype=np.int64)
    classes[often] = len(SPECIAL) + np.arange(len(often))
    return [words[number] for number in often], classes


def _samples(author: _Author, classes: IntArray, length: int, most: int) -> tuple[IntArray, IntArray]:
    """Return the words before a place `[n, length]` and the word at it `[n]`; `most` places, evenly spread (0: all)."""
    words = classes[np.asarray(author.words)]
    lengths = np.diff(author.ends, prepend=0)
    begin = np.repeat(np.asarray(author.ends) - lengths, lengths)
    places = np.flatnonzero(np.arange(len(words)) > begin)
    count = min(most or len(places), len(places))
    chosen = places[(2 * np.arange(count) + 1) * len(places) // (2 * count)]
    before = chosen[:, None] + np.arange(-length, 0)
    x = np.where(before >= begin[chosen, None], words[np.maximum(before, 0)], PADDING)
    return x, words[chosen]


def _together(pieces: Sequence[tuple[IntArray, IntArray]]) -> tuple[Tensor, Tensor]:
    """Join the samples of several users, one user after another."""
    x, y = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    return torch.from_numpy(x), torch.from_numpy(y)


def _reader(files: Sequence[Path]) -> Callable[[], Iterator[Writing]]:
    def read() -> Iterator[Writing]:
        for file in files:
            yield from stack_exchange(file) if ".xml" in file.suffixes[-2:] else json_lines(file)

    return read


def _dump_in(folder: Path) -> list[Path]:
    """Return the files of a Stack Exchange dump in a folder."""
    found = [path for path in (_plain_or_compressed(folder / file) for file in _DUMP) if path]
    require(len(found) > 0, f"The folder {folder} holds neither {' nor '.join(_DUMP)}; give a file as dataset.path.")
    return found


def _locate(name: str, data_dir: Path | None) -> Path:
    """Return the file of a corpus in the user's data folder, in a folder of its own or not."""
    file = f"{name}.jsonl"
    places = [data_dir / name / file, data_dir / file] if data_dir else []
    for place in places:
        if found := _plain_or_compressed(place):
            return found
    looked = f"looked for as {' and as '.join(map(str, places))}" if places else "but no data folder is given"
    raise Refusal(
        f"The dataset '{name}' needs the file {file} (plain or as {' or '.join(COMPRESSED)}), {looked}: one JSON "
        "object a line with user and text. Give its folder as --data-dir or COVEY_DATA; files of your own are read by "
        "the dataset 'text'."
    )


def _plain_or_compressed(path: Path) -> Path | None:
    return next((one for end in ("", *COMPRESSED) if (one := path.with_name(path.name + end)).is_file()), None)
