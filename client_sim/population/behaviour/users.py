"""Users of a simulated study: their words and pages, the pages' visits at any moment, and the users' activity.

Every draw depends only on the user and on the tick, the day or the page, so that any moment of a study can be computed
without earlier moments.

**Words** are encoded so that a prefix match compares two numbers. A word is packed into 60 bits, five per letter, the
first letter highest. Two words share their first k letters exactly if the XOR of their packed forms is below 2^(60 -
5k).

**Pages** live for a fixed time and then start a new life without a past. A page is visited at the beginning of its
life and then once in each gap of a constant length, at a random moment of the gap. So the time of visit number j
follows only from the page's key, its life and j, and the newest ten visits at any moment are known without stored
state. The number of visits in a life is gamma distributed with shape 2. At a uniformly random moment of the life, the
number of visits so far is then exponential, as the thesis states (7.3), at any time of a study.

**Activity** (the users who search at a time, with their model versions) advances in ticks of equal length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.models import MAX_SAMPLED, ORIGIN_NOT_KNOWN, Onward, PageTable, RankingModel, VisitType
from fedping.client_sim.population.settings import ActivitySettings, UserSettings
from fedping.client_sim.population.synthetic import true_weights
from fedping.protocol.draws import FloatArray, Keys, bits, child_keys, numbers_within, root_key, uniforms
from fedping.protocol.ping import NO_VERSION

LONGEST = 12
SHORTEST = 3
_BITS = 5
_CONSONANTS = "tnshrdlcmwfgypbvkjxqz"
_CONSONANT_SHARES = (91, 67, 63, 61, 60, 43, 40, 28, 24, 24, 22, 20, 20, 19, 15, 10, 8, 2, 2, 1, 1)
_VOWELS = "eaoiu"
_VOWEL_SHARES = (127, 82, 75, 70, 28)
_CODES = 2**16
"""Size of a table of shares: 16 random bits are an index into it, which saves a search."""


@dataclass(frozen=True)
class Vocabulary:
    """V words, the most frequent first.

    Attributes:
        packed: each word's letters packed into a number, shape (V,).
        length: each word's number of letters, shape (V,).
        word_of: the word for each value of 16 random bits, by Zipf's law, shape (65536,).
        host_of: one of a user's hosts for each value of 16 random bits, by Zipf's law, shape (65536,).
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
    """Return the upper bound for the XOR of two packed words that share this number of first letters."""
    return np.left_shift(np.uint64(1), (_BITS * (LONGEST - np.asarray(letters))).astype(np.uint64))


def _letters(rng: np.random.Generator, words: int) -> NDArray[np.uint8]:
    """Return words as letters, numbered from 1, with 0 after a word's end; consonants and vowels alternate."""
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
"""Number of words of a page: its host, one of its address, and one of its title."""

_USERS, _HOSTS, _PAGES = range(3)
_CONSIDERED, _GUMBEL, _WORD = range(3)


@dataclass(frozen=True)
class Wish:
    """The wishes of S users, each of shape (S,): the number of the wanted page, and the word of the page to type."""

    page: NDArray[np.intp]
    word: NDArray[np.uint16]


class Users:
    """All the users of a seed; a user is an integer of at least 0.

    Args:
        model: model with the true weights of wishes.
        settings: settings of users' pages and behaviour.
        seed: the seed of all draws.

    Raises:
        InvalidSettings: the number of true or of drifted weights differs from the model's.
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
        """Return the pages of these keys, shape (P,), at these times in days since the study began."""
        return pages_at(keys, day, self.settings, self._tables)

    def wishes(
        self, users: NDArray[np.int64], keys: Keys, day: FloatArray, iteration: int, words: NDArray[np.uint16]
    ) -> Wish:
        """Return the wish of each search.

        Args:
            users: the user of each search, shape (S,).
            keys: keys of the searches, shape (S,).
            day: times of the searches, in days since the study began, shape (S,).
            iteration: the iteration, which decides between the true and the drifted weights.
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


_PAGE, _VISITS = range(2)
_FEWEST = 1e-3
"""Minimum number of visits in a page's life, so that a gap is finite."""
_KINDS = np.array([VisitType.LINK, VisitType.TYPED, VisitType.BOOKMARK], np.uint8)
_OTHERS = np.array(
    [
        VisitType.EMBED,
        VisitType.PERM_REDIRECT,
        VisitType.TEMP_REDIRECT,
        VisitType.DOWNLOAD,
        VisitType.FRAMED_LINK,
        VisitType.RELOAD,
    ],
    np.uint8,
)
_NOT_COUNTED = np.isin(np.arange(len(VisitType)), [VisitType.EMBED, *_OTHERS[3:].tolist()])
_NOT_COUNTED_OF_OTHERS = 4 / 6
_IS_TARGET = np.isin(np.arange(len(VisitType)), [VisitType.PERM_REDIRECT, VisitType.TEMP_REDIRECT])

# A visit takes a single number of 64 random bits, which is cut into five parts:
_MOMENT_BITS, _TYPE_BITS, _HABIT_BITS, _ONWARD_BITS, _ORIGIN_BITS = 20, 16, 12, 10, 6


@dataclass(frozen=True)
class VisitTables:
    """Tables of the meanings of a visit's random bits, made once from the settings."""

    type: NDArray[np.uint8]
    onward: NDArray[np.uint8]
    origin: NDArray[np.int8]

    @classmethod
    def of(cls, settings: UserSettings) -> VisitTables:
        """Return the tables of the settings; a page's habit may later replace common kinds in ``type``."""
        at, redirects = _levels(_TYPE_BITS), settings.redirect_sources
        other = _OTHERS[(at / max(settings.other_visits, 1e-300) * len(_OTHERS)).clip(0, len(_OTHERS) - 1).astype(int)]
        common = _kinds((at - settings.other_visits) / max(1 - settings.other_visits, 1e-300), settings)
        onward = _levels(_ONWARD_BITS)
        return cls(
            type=np.where(at < settings.other_visits, other, common),
            onward=np.select(
                [onward < redirects / 2, onward < redirects], [Onward.PERMANENTLY, Onward.TEMPORARILY], Onward.NO
            ).astype(np.uint8),
            origin=_kinds(_levels(_ORIGIN_BITS), settings).astype(np.int8),
        )


def pages_at(keys: Keys, day: FloatArray, settings: UserSettings, tables: VisitTables) -> PageTable:
    """Return one page for each key.

    Args:
        keys: keys of the pages, shape (P,).
        day: the moment of each page, in days since the study began, shape (P,).
        settings: the distributions.
        tables: the tables of the settings.
    """
    rate, other_rate, phase, never, bookmark, kind = uniforms(child_keys(keys, _PAGE), 6).T
    unvisited = never < settings.unvisited
    in_life = settings.mean_visits * -(np.log1p(-rate) + np.log1p(-other_rate))
    gap = settings.days / np.maximum(in_life, _FEWEST)
    lives = phase + day / settings.days
    life = np.floor(lives)
    clock = (lives - life) * settings.days / gap
    visits, newest = _newest_visits(child_keys(child_keys(keys, _VISITS), life.astype(np.int64)), clock)
    count = np.where(unvisited, 0, newest.astype(np.int64) + 1)
    sampled = np.minimum(count, MAX_SAMPLED)
    present = np.arange(MAX_SAMPLED) < sampled[:, None]
    types = np.where(present, _types(visits, _kinds(kind, settings), settings, tables), VisitType.UNKNOWN)
    number = newest[:, None] - np.arange(MAX_SAMPLED, dtype=np.float64)
    ages = (clock[:, None] - _places(visits, number)) * gap[:, None]
    return PageTable(
        age_days=np.where(present, np.maximum(ages, 0.0), 0).astype(np.int32),
        visit_type=types,
        origin_type=_origins(visits, types, tables),
        onward=np.where(present, tables.onward[_part(visits, 48, _ONWARD_BITS)], Onward.NO).astype(np.uint8),
        sampled=sampled.astype(np.int8),
        visit_count=_counter(types, count, settings),
        typed=np.where(unvisited, kind < settings.kinds[1], (types == VisitType.TYPED).any(axis=1)),
        bookmarked=unvisited | (bookmark < settings.bookmarked),
        is_query=np.zeros(len(keys), np.bool_),
    )


def _newest_visits(keys: Keys, clock: FloatArray) -> tuple[NDArray[np.uint64], FloatArray]:
    """Return the random bits of the 10 newest visits, newest first, and the number of the newest visit.

    The clock counts gaps. If the visit of the present gap is in the future, the previous visit is the newest.
    """
    gap_now: FloatArray = np.floor(clock)
    numbers: FloatArray = gap_now[:, None] - np.arange(MAX_SAMPLED + 1)
    drawn = child_keys(keys[:, None], numbers.astype(np.int64))
    to_come = _places(drawn[:, :1], numbers[:, :1])[:, 0] > clock
    visits = np.where(to_come[:, None], drawn[:, 1:], drawn[:, :-1])
    return visits, gap_now - to_come


def _places(visits: NDArray[np.uint64], numbers: FloatArray) -> FloatArray:
    """Return the times of visits by the page's clock: the first is at the start, others at random in their gaps."""
    return numbers + np.where(numbers > 0, _moment(visits), 0.0)


def _types(
    visits: NDArray[np.uint64], own: NDArray[np.uint8], settings: UserSettings, tables: VisitTables
) -> NDArray[np.uint8]:
    drawn = tables.type[_part(visits, 20, _TYPE_BITS)]
    habitual = _part(visits, 36, _HABIT_BITS) < settings.habit * 2**_HABIT_BITS
    return np.where(habitual & (drawn <= VisitType.BOOKMARK), own[:, None], drawn)


def _origins(visits: NDArray[np.uint64], types: NDArray[np.uint8], tables: VisitTables) -> NDArray[np.int8]:
    origin = tables.origin[_part(visits, 58, _ORIGIN_BITS)]
    return np.where(_IS_TARGET[types], origin, np.int8(ORIGIN_NOT_KNOWN))


def _counter(types: NDArray[np.uint8], count: NDArray[np.int64], settings: UserSettings) -> NDArray[np.int64]:
    """Return the stored counter, which omits some types: exactly in the sample, by the types' share beyond it."""
    beyond = np.maximum(count - MAX_SAMPLED, 0) * settings.other_visits * _NOT_COUNTED_OF_OTHERS
    counted = count - _NOT_COUNTED[types].sum(axis=1) - np.rint(beyond).astype(np.int64)
    return np.where(count > 0, np.maximum(counted, 1), 0)


def _kinds(uniform: FloatArray, settings: UserSettings) -> NDArray[np.uint8]:
    link, typed, _ = settings.kinds
    return _KINDS[(uniform >= link).astype(np.intp) + (uniform >= link + typed)]


def _levels(width: int) -> FloatArray:
    levels: FloatArray = (np.arange(2**width) + 0.5) / 2**width
    return levels


def _part(drawn: NDArray[np.uint64], start: int, width: int) -> NDArray[np.intp]:
    return ((drawn >> np.uint64(start)) & np.uint64(2**width - 1)).astype(np.intp)


def _moment(drawn: NDArray[np.uint64]) -> FloatArray:
    """Return the position of a visit in its gap, in [0, 1)."""
    return _part(drawn, 0, _MOMENT_BITS).astype(np.float64) * 2.0**-_MOMENT_BITS


_ACTIVITY, _SEARCHES, _AWAY, _ENROLS, _FETCHES = range(5)
_AT_A_TIME = 2**16
"""Number of users in a batch, so that it fits into the processor's cache."""


@dataclass(frozen=True)
class Searching:
    """The searches of one tick, shape (S,): their users, ascending, and their numbers among a user's, from 0."""

    users: NDArray[np.int64]
    number: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.users)


class Activity:
    """The activity of ``users`` users over time.

    Args:
        users: the number of users, who are numbered from 0.
        settings: settings of the activity.
        seed: the seed of all draws.
        tick_days: length of a tick, in days.
        start_hour: the time of day (UTC) at which tick 0 begins.
    """

    def __init__(self, users: int, settings: ActivitySettings, seed: int, tick_days: float, start_hour: float) -> None:
        self._users = users
        self._settings = settings
        self._root = child_keys(root_key(seed), 0x0AC7)
        self._tick_days = tick_days
        self._start_hour = start_hour

    def means(self, searches_per_day: float, shape: float, users: range | None = None) -> NDArray[np.float32]:
        """Return each user's mean number of searches on a day with activity, without the swing, shape (N,).

        It is gamma distributed with this shape. The average user makes ``searches_per_day`` searches, with days away
        included. A user has the same rank among all users for every shape.

        Args:
            searches_per_day: the average user's searches per day.
            shape: shape of the gamma distribution; a lower shape is more unequal.
            users: the N users; None for all.
        """
        from scipy.special import gammaincinv

        users = range(self._users) if users is None else users
        means = np.empty(len(users), np.float32)
        for part in _parts(len(users)):
            place = uniforms(self._keys_of(np.arange(part.start, part.stop) + users.start, _ACTIVITY), 1)[:, 0]
            means[part] = gammaincinv(shape, place) / shape * (searches_per_day / (1 - self._settings.away))
        return means

    def swing(self, tick: int) -> float:
        """Return the activity at this tick, 1 on average over a day: a sine, highest at the peak hour."""
        height = (self._settings.swing - 1) / (self._settings.swing + 1)
        hour = self._start_hour + 24 * self._tick_days * (tick + 0.5)
        return float(1 + height * np.cos(2 * np.pi * (hour - self._settings.peak_hour) / 24))

    def searching(self, tick: int, means: NDArray[np.float32], first: int = 0) -> Searching:
        """Return the searches of a tick: a Poisson number for each user that is enrolled and present.

        Args:
            tick: the tick's number.
            means: means of some consecutive users (:meth:`means`).
            first: the first of these users.
        """
        groups = [self._searching(tick, means[part], first + part.start) for part in _parts(len(means))]
        users = np.concatenate([users for users, _ in groups])
        counts = np.concatenate([counts for _, counts in groups])
        number = numbers_within(counts)
        return Searching(np.repeat(users, counts), number)

    def held_versions(self, users: NDArray[np.int64], tick: int, newest: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the version that each of these active users holds in a tick, shape (S,).

        Args:
            users: the users, shape (S,).
            tick: the tick.
            newest: the newest version at the beginning of every tick up to this one, shape (tick + 1,) or more.

        Returns:
            The version of the latest fetch, -1 before the first.
        """
        held = np.full(len(users), NO_VERSION, np.int64)
        open_ = np.arange(len(users))
        for past in range(tick, -1, -1):
            fetched = self._fetches(users[open_], past)
            held[open_[fetched]] = newest[past]
            open_ = open_[~fetched]
            if len(open_) == 0:
                break
        return held

    def search_keys(self, searching: Searching, tick: int) -> Keys:
        """Return the key of each search of a tick, shape (S,)."""
        in_tick = child_keys(child_keys(self._keys_of(searching.users, _SEARCHES), tick), 1)
        return child_keys(in_tick, searching.number)

    def _searching(
        self, tick: int, means: NDArray[np.float32], first: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        expected = means * (self._tick_days * self.swing(tick))
        drawn = uniforms(child_keys(self._keys_of(first + np.arange(len(means)), _SEARCHES), tick), 1)[:, 0]
        some = np.flatnonzero(drawn >= np.exp(-expected))
        users = first + some
        counts = _poisson(drawn[some], expected[some].astype(np.float64))
        there = self._enrolled(users, tick) & self._present(users, tick)
        return users[there], counts[there]

    def _fetches(self, users: NDArray[np.int64], tick: int) -> NDArray[np.bool_]:
        drawn = uniforms(child_keys(self._keys_of(users, _FETCHES), tick), 1)[:, 0]
        there = self._present(users, tick) & self._enrolled(users, tick)
        return (drawn >= self._settings.fetch_late) & there

    def _present(self, users: NDArray[np.int64], tick: int) -> NDArray[np.bool_]:
        day = int((self._start_hour / 24) + tick * self._tick_days)
        drawn = uniforms(child_keys(self._keys_of(users, _AWAY), day), 1)[:, 0]
        return drawn >= self._settings.away

    def _enrolled(self, users: NDArray[np.int64], tick: int) -> NDArray[np.bool_]:
        if self._settings.rollout_days == 0:
            return np.ones(len(users), np.bool_)
        since = uniforms(self._keys_of(users, _ENROLS), 1)[:, 0] * self._settings.rollout_days
        return since <= tick * self._tick_days

    def _keys_of(self, users: NDArray[np.int64], what: int) -> Keys:
        return child_keys(child_keys(self._root, what), users)


def _parts(users: int) -> list[slice]:
    return [slice(at, min(at + _AT_A_TIME, users)) for at in range(0, users, _AT_A_TIME)]


def _poisson(uniform: FloatArray, mean: FloatArray) -> NDArray[np.int64]:
    """Return Poisson numbers from uniform ones by inversion."""
    counts = np.zeros(len(mean), np.int64)
    term = np.exp(-mean)
    reached = term.copy()
    open_ = np.flatnonzero(uniform >= reached)
    while len(open_):
        counts[open_] += 1
        term[open_] *= mean[open_] / counts[open_]
        reached[open_] += term[open_]
        still = (uniform[open_] >= reached[open_]) & (term[open_] > 0)
        open_ = open_[still]
    return counts
