"""Users: their keys, their pages' keys and words, and the pages that they want.

Words are encoded so that matching a prefix is a comparison of two numbers. A word is packed into 60 bits, five per
letter, the first letter highest. Two words share their first k letters exactly if the exclusive or of their packed
forms is below 2^(60 - 5k).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.models import PageTable, RankingModel
from fedping.client_sim.population.behaviour.pages import VisitTables, pages_at
from fedping.client_sim.population.behaviour.settings import UserSettings
from fedping.client_sim.population.synthetic import true_weights
from fedping.protocol.draws import FloatArray, Keys, bits, child_keys, root_key, uniforms

LONGEST = 12
SHORTEST = 3
_BITS = 5
_CONSONANTS = "tnshrdlcmwfgypbvkjxqz"
_CONSONANT_SHARES = (91, 67, 63, 61, 60, 43, 40, 28, 24, 24, 22, 20, 20, 19, 15, 10, 8, 2, 2, 1, 1)
_VOWELS = "eaoiu"
_VOWEL_SHARES = (127, 82, 75, 70, 28)
_CODES = 2**16
"""Resolution of a table of shares: an index of 16 random bits finds a word without a search."""


@dataclass(frozen=True)
class Vocabulary:
    """V words, the most frequent first.

    Attributes:
        packed: each word's letters packed into a number, shape (V,).
        length: each word's number of letters, shape (V,).
        word_of: from 16 random bits to a word, by Zipf's law, shape (65536,).
        host_of: from 16 random bits to one of a user's hosts, by Zipf's law, shape (65536,).
    """

    packed: NDArray[np.uint64]
    length: NDArray[np.int8]
    word_of: NDArray[np.uint16]
    host_of: NDArray[np.uint16]


def made_vocabulary(words: int, hosts: int, zipf: float, seed: int) -> Vocabulary:
    """Return ``words`` different pronounceable words, by the letter frequencies of English."""
    rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
    packed = np.zeros(0, np.uint64)
    while len(packed) < words:
        more = np.concatenate([packed, _packed(_letters(rng, 2 * words))])
        packed = more[np.sort(np.unique(more, return_index=True)[1])]
    packed = packed[:words]
    return Vocabulary(packed, _lengths(packed), _zipf_table(words, zipf), _zipf_table(hosts, zipf))


def below(letters: int | NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return the bound that the exclusive or of two packed words is below if they share so many first letters."""
    return np.left_shift(np.uint64(1), (_BITS * (LONGEST - np.asarray(letters))).astype(np.uint64))


def _letters(rng: np.random.Generator, words: int) -> NDArray[np.uint8]:
    """Return letters from 1, and 0 beyond the end of a word; consonants and vowels alternate."""
    shape = (words, LONGEST)
    consonants = _drawn(rng, _CONSONANTS, _CONSONANT_SHARES, shape)
    vowels = _drawn(rng, _VOWELS, _VOWEL_SHARES, shape)
    place = np.arange(LONGEST)
    first_is_vowel = rng.random((words, 1)) < 0.25
    lengths = np.clip(SHORTEST + rng.poisson(4.0, (words, 1)), SHORTEST, LONGEST)
    letters = np.where((place % 2 == 0) != first_is_vowel, consonants, vowels)
    return np.where(place < lengths, letters, 0).astype(np.uint8)


def _drawn(
    rng: np.random.Generator, letters: str, shares: tuple[int, ...], shape: tuple[int, int]
) -> NDArray[np.uint8]:
    numbers = np.array([ord(letter) - ord("a") + 1 for letter in letters], np.uint8)
    weights = np.array(shares)
    return rng.choice(numbers, shape, p=weights / weights.sum())


def _packed(letters: NDArray[np.uint8]) -> NDArray[np.uint64]:
    shifts = (_BITS * np.arange(LONGEST - 1, -1, -1)).astype(np.uint64)
    packed: NDArray[np.uint64] = np.bitwise_or.reduce(letters.astype(np.uint64) << shifts, axis=1)
    return packed


def _lengths(packed: NDArray[np.uint64]) -> NDArray[np.int8]:
    shifts = (_BITS * np.arange(LONGEST)).astype(np.uint64)
    letters: NDArray[np.int8] = np.count_nonzero((packed[:, None] >> shifts) & np.uint64(31), axis=1).astype(np.int8)
    return letters


def _zipf_table(things: int, exponent: float) -> NDArray[np.uint16]:
    shares: FloatArray = np.power(np.arange(1, things + 1, dtype=np.float64), -exponent)
    bounds = np.cumsum(shares / shares.sum())
    at = (np.arange(_CODES) + 0.5) / _CODES
    return np.minimum(np.searchsorted(bounds, at), things - 1).astype(np.uint16)


WORDS = 3
"""The words of a page: its host, one of its address, one of its title."""

_USERS, _HOSTS, _PAGES = range(3)
_CONSIDERED, _GUMBEL, _WORD = range(3)


@dataclass(frozen=True)
class Wish:
    """What S users want, each of shape (S,): the number of the page among the user's, and its word to be typed."""

    page: NDArray[np.intp]
    word: NDArray[np.uint16]


class Users:
    """All the users of a seed; a user is an integer of at least 0.

    Args:
        model: the model whose true weights users want pages by.
        settings: how users live and behave.
        seed: the seed of all draws.

    Raises:
        InvalidSettings: the number of the true weights, or of the drifted ones, is not the model's.
    """

    def __init__(self, model: RankingModel, settings: UserSettings, seed: int) -> None:
        self.settings = settings
        self.vocabulary: Vocabulary = made_vocabulary(settings.vocabulary, settings.hosts, settings.zipf, seed)
        self._tables = VisitTables.of(settings)
        self._model = model
        self._truth = true_weights(model, settings.true_weights)
        self._drifted = true_weights(model, settings.drifted_weights) if settings.drifted_weights else self._truth
        self._root = child_keys(root_key(seed), _USERS)

    def page_keys(self, users: NDArray[np.int64], pages: NDArray[np.intp]) -> Keys:
        """Return the keys of pages; ``users`` and ``pages`` broadcast."""
        return child_keys(child_keys(child_keys(self._root, users), _PAGES), pages)

    def words(self, users: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Return the words of all pages of some users, as word numbers, shape (S, pages, WORDS)."""
        keys = self.page_keys(users[:, None], np.arange(self.settings.pages))
        drawn = bits(keys.ravel(), 1).reshape(keys.shape)
        host_keys = child_keys(child_keys(self._root, users), _HOSTS)
        hosts = self.vocabulary.word_of[_sixteen(bits(host_keys, self.settings.hosts), 0)]
        of_page = self.vocabulary.host_of[_sixteen(drawn, 0)]
        host = np.take_along_axis(hosts, of_page.astype(np.intp), axis=1)
        others = (self.vocabulary.word_of[_sixteen(drawn, 16 * slot)] for slot in range(1, WORDS))
        return np.stack([host, *others], axis=2)

    def pages(self, keys: Keys, day: FloatArray) -> PageTable:
        """Return the pages of these keys, shape (P,), on these days since the study began."""
        return pages_at(keys, day, self.settings, self._tables)

    def wishes(
        self, users: NDArray[np.int64], keys: Keys, day: FloatArray, iteration: int, words: NDArray[np.uint16]
    ) -> Wish:
        """Return what each search is for.

        Args:
            users: the user of each search, shape (S,).
            keys: keys of the searches, shape (S,).
            day: times of the searches, in days since the study began, shape (S,).
            iteration: decides between the true and the drifted weights.
            words: the words of the users' pages.
        """
        settings = self.settings
        considered = (uniforms(child_keys(keys, _CONSIDERED), settings.considered) * settings.pages).astype(np.intp)
        page_keys = self.page_keys(users[:, None], considered)
        pages = self.pages(page_keys.ravel(), np.repeat(day, settings.considered))
        drifted = settings.drift_at is not None and iteration >= settings.drift_at
        scores = self._model.scores(self._drifted if drifted else self._truth, pages).reshape(considered.shape)
        noise = -np.log(-np.log1p(-uniforms(child_keys(keys, _GUMBEL), settings.considered)) + 1e-300)
        best = (settings.sharpness * np.log(np.maximum(scores, 0.1)) + noise).argmax(axis=1)
        page = np.take_along_axis(considered, best[:, None], axis=1)[:, 0]
        slot = (uniforms(child_keys(keys, _WORD), 1)[:, 0] * WORDS).astype(np.intp)
        return Wish(page, words[np.arange(len(page)), page, slot])


def _sixteen(drawn: NDArray[np.uint64], start: int) -> NDArray[np.intp]:
    return ((drawn >> np.uint64(start)) & np.uint64(0xFFFF)).astype(np.intp)
