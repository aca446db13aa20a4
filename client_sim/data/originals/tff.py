"""The data sets of TensorFlow Federated (TFF) by client: FEMNIST, Shakespeare, CIFAR-100 and StackOverflow.

Texts become examples of a network that predicts the next symbol (``lstm``, ``transformer``): each symbol is the class
of an example, whose features are the ``length`` symbols before it. A text has padding in front, begins with a special
symbol and ends with another. Symbols are numbered as in Reddi et al. 2021: 0 for padding, then the known ones, one for
all unknown ones, the beginning and the end.

Source: the pages of ``tff.simulation.datasets``; Reddi et al. 2021, *Adaptive Federated Optimization*, appendix C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from string import ascii_letters, digits
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedping.client_sim.data.originals import cifar, leaf
from fedping.client_sim.data.originals.hdf5 import Columns, Wanted
from fedping.client_sim.data.originals.reading import OfOneUser, OfUsers, damaged, of_users, reading
from fedping.client_sim.data.originals.tff_files import Part, parts_of
from fedping.client_sim.data.table import Table, Target, feature_names
from fedping.protocol.errors import FedpingError

CHARACTERS = "".join(sorted(f"{ascii_letters}{digits} \n\r!\"#$%&'()*,-./:;?@[]_"))
"""The 86 characters of Shakespeare in TFF's tutorial and in Reddi et al. 2021, here in the order of Unicode."""

SNIPPET = 80
"""Number of characters of an example, as in McMahan et al. 2017."""

PADDING = 0
WORD_COUNTS = "stackoverflow.word_count"


class OfSentences(OfUsers, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of StackOverflow: ``words`` is the number of most frequent words that make up the vocabulary.

    ``length`` is the number of words that are read of a sentence, and the number of symbols of an example.
    ``sentences`` is the maximum number of sentences of a user in each part, the first ones; all if None. ``users`` has
    the meaning of :class:`OfUsers`.
    """

    words: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    length: Annotated[int, Meta(ge=1, le=1_000)] = 20
    sentences: Annotated[int, Meta(ge=1)] | None = None


def femnist_parts(folder: Path) -> list[Part]:
    """Return TFF's files of FEMNIST in a folder; an empty list without any."""
    return parts_of(folder, "fed_emnist", "emnist_all", "all_")


def shakespeare_parts(folder: Path) -> list[Part]:
    """Return TFF's files of Shakespeare in a folder; an empty list without any."""
    return parts_of(folder, "shakespeare", "shakespeare")


def cifar_100_parts(folder: Path) -> list[Part]:
    """Return TFF's files of CIFAR-100 in a folder; an empty list without any."""
    return parts_of(folder, "fed_cifar100", "cifar100")


def femnist(parts: Sequence[Part], settings: OfUsers) -> Table:
    """Return FEMNIST from TFF's files, in the form of :func:`leaf.femnist`."""

    def examples(part: Part, _: str, columns: Columns) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        pixels = _numbers(columns, "pixels")
        if not np.isfinite(pixels).all():
            raise damaged(part.file, "a pixel is not a finite number")
        return pixels, _classes(part, columns, "label", len(leaf.CHARACTERS.classes))

    wanted = {"pixels": (leaf.SIDE, leaf.SIDE), "label": ()}
    rows = _rows(parts, wanted, examples, settings)
    return of_users(rows, features=lambda _: leaf.PIXELS, target=leaf.CHARACTERS)


def cifar_100(parts: Sequence[Part], settings: OfUsers) -> Table:
    """Return CIFAR-100 from TFF's files; the natural key is the client. The test has other clients (``test 0``)."""

    def examples(part: Part, _: str, columns: Columns) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        pixels = _numbers(columns, "image")
        if pixels.min(initial=0) < 0 or pixels.max(initial=0) > 255:
            raise damaged(part.file, "a pixel is not from 0 to 255")
        return pixels.astype(np.uint8), _classes(part, columns, "label", cifar.FINE)

    wanted = {"image": (cifar.SIDE, cifar.SIDE, cifar.COLOURS), "label": ()}
    rows = _rows(parts, wanted, examples, settings, apart=True)
    target = Target("object", tuple(map(str, range(cifar.FINE))))
    return of_users(rows, features=lambda _: cifar.PIXELS, target=target)


def shakespeare(parts: Sequence[Part], settings: OfUsers) -> Table:
    """Return sequences of 80 characters, each with the next as one of 90 classes, from TFF's files of snippets."""
    numbers = {character: number for number, character in enumerate(CHARACTERS, 1)}
    unknown, begin, end = _marks(len(CHARACTERS))

    def examples(part: Part, user: str, columns: Columns) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        snippets = [_text(part, user, snippet) for snippet in _texts(columns, "snippets")]
        coded = [[begin, *(numbers.get(each, unknown) for each in snippet), end] for snippet in snippets]
        return _windows(coded, SNIPPET)

    rows = _rows(parts, {"snippets": None}, examples, settings)
    return of_users(rows, features=feature_names, target=Target("next", _symbols(CHARACTERS)))


def stackoverflow(folder: Path, settings: OfSentences) -> Table:
    """Return sequences of 20 words, each with the next word, from TFF's StackOverflow; the natural key is the user.

    The vocabulary consists of the ``words`` most frequent words (10,000) of the file ``stackoverflow.word_count``, and
    four more symbols: padding, unknown words, the beginning and the end of a sentence. Titles, tags and scores are not
    read.
    """
    parts = _stackoverflow_parts(folder)
    words = frequent_words(folder / WORD_COUNTS, settings.words)
    numbers = {word: number for number, word in enumerate(words, 1)}
    unknown, begin, end = _marks(len(words))
    seen: dict[tuple[bool, str], int] = {}

    def coded(sentence: str) -> list[int]:
        spoken = sentence.split()
        symbols = [begin, *(numbers.get(word, unknown) for word in spoken[: settings.length])]
        return symbols if len(spoken) > settings.length else [*symbols, end]

    def examples(part: Part, user: str, columns: Columns) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        sentences = _texts(columns, "tokens")
        if settings.sentences is not None:
            before = seen.get((part.for_test, user), 0)
            sentences = sentences[: max(0, settings.sentences - before)]
            seen[part.for_test, user] = before + len(sentences)
        return _windows([coded(_text(part, user, sentence)) for sentence in sentences], settings.length)

    rows = _rows(parts, {"tokens": None}, examples, settings)
    return of_users(rows, features=feature_names, target=Target("next", _symbols(words)))


def files_of_stackoverflow(folder: Path) -> list[Path]:
    """Return TFF's files of StackOverflow, including the file of the words' frequencies.

    Raises:
        FedpingError: they are missing.
    """
    return [*files_of(_stackoverflow_parts(folder)), folder / WORD_COUNTS]


def files_of(parts: Sequence[Part]) -> list[Path]:
    """Return the files of the parts of a data set, each once."""
    return list(dict.fromkeys(part.file for part in parts))


def frequent_words(file: Path, count: int) -> tuple[str, ...]:
    """Return the most frequent words of a file, most frequent first; its lines have a word and its number of users.

    Raises:
        FedpingError: the file is missing, damaged, or not in that order.
    """
    if not file.is_file():
        raise FedpingError(
            f"the folder {file.parent} lacks {file.name}, TFF's list of words. Unpack {file.name}.tar.bz2 there"
        )
    words: dict[str, None] = {}
    last = None
    with reading(file, UnicodeDecodeError), file.open("rb") as opened:
        while len(words) < count and (line := opened.readline(10_000)):
            word, _, users = line.decode("utf-8").strip().rpartition("\t" if b"\t" in line else " ")
            if not word or not users.isdecimal() or len(users) > 18 or word in words:
                raise damaged(file, f"line {len(words) + 1} is not a new word and its number of users")
            if last is not None and int(users) > last:
                raise damaged(file, f"line {len(words) + 1} is more frequent than the one before it")
            words[word], last = None, int(users)
    if not words:
        raise damaged(file, "it has no words")
    return tuple(words)


def _stackoverflow_parts(folder: Path) -> list[Part]:
    if parts := parts_of(folder, "stackoverflow", "stackoverflow"):
        return parts
    raise FedpingError(
        f"the folder {folder} has neither stackoverflow_train.h5 nor stackoverflow.sqlite. Name the folder with the "
        "files of TensorFlow Federated"
    )


def _rows(
    parts: Sequence[Part],
    wanted: Wanted,
    examples: Callable[[Part, str, Columns], tuple[NDArray[np.generic], NDArray[np.int64]]],
    settings: OfUsers,
    apart: bool = False,
) -> Iterator[OfOneUser]:
    """Yield the examples of the first users.

    Args:
        parts: the files, training before test.
        wanted: the features to read.
        examples: returns the features and the classes of a block of a user's examples.
        settings: the number of users to read, and the time limit of a file.
        apart: whether users of the test part are different users, even if their names are the same.
    """
    users: set[str] = set()
    most = settings.users

    def takes(user: str) -> bool:
        if user not in users and most is not None and len(users) >= most:
            return False
        users.add(user)
        return True

    for part in parts:
        if apart:
            users = set()
        for user, columns in part.clients(wanted, takes, settings.patience):
            x, y = examples(part, user, columns)
            yield OfOneUser(f"test {user}" if apart and part.for_test else user, x, y, part.for_test)


def _numbers(columns: Columns, name: str) -> NDArray[np.generic]:
    values = columns[name]
    assert isinstance(values, np.ndarray)
    return values


def _texts(columns: Columns, name: str) -> list[bytes]:
    values = columns[name]
    assert isinstance(values, list)
    return values


def _classes(part: Part, columns: Columns, name: str, count: int) -> NDArray[np.int64]:
    values = _numbers(columns, name)[:, 0]
    if values.dtype.kind not in "ui" or values.min(initial=0) < 0 or values.max(initial=0) >= count:
        raise damaged(part.file, f"'{name}' is not a class from 0 to {count - 1}")
    return values.astype(np.int64)


def _text(part: Part, user: str, text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged(part.file, f"a text of the client '{user[:80]}' is not UTF-8") from error


def _marks(known: int) -> tuple[int, int, int]:
    """Return the numbers of an unknown symbol, of the beginning and of the end, given the number of known symbols."""
    return known + 1, known + 2, known + 3


def _symbols(known: Sequence[str]) -> tuple[str, ...]:
    return ("<padding>", *known, "<unknown>", "<begin>", "<end>")


def _windows(texts: Sequence[Sequence[int]], length: int) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return windows of ``length`` symbols of the texts, shape (n, length), and the symbol after each, shape (n,)."""
    before = [PADDING] * (length - 1)
    windows = [sliding_window_view(np.array([*before, *text], np.int32), length + 1) for text in texts]
    both = np.concatenate([np.empty((0, length + 1), np.int32), *windows])
    return both[:, :-1], both[:, -1].astype(np.int64)
