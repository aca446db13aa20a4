"""Users' searches (typed text, shown and inspected pages, selection) for all users of one arm and version."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.fleet.interactions import PLAIN, Conditions, Interactions, Keystrokes, Ranking, finished
from fedping.client_sim.models import NO_CANDIDATE, NOTHING_CHOSEN, PageTable, Searches
from fedping.client_sim.population.behaviour.users import LONGEST, Users, Wish, below
from fedping.client_sim.population.settings import UserSettings
from fedping.protocol.draws import FloatArray, Keys, child_keys, numbers_within, uniforms

_FIRST, _TAKES, _LEAVES = range(3)


@dataclass(frozen=True)
class Looks:
    """The looks of S users.

    Attributes:
        first: number of characters at the first look, at least 1, shape (S,).
        length: length of the word that each user types, shape (S,).
        leaves: whether users leave without a choice, whatever the list, shape (S,).
        takes: a uniform number for each look, indexed by the number of characters, shape (S, LONGEST + 1).
        settings: the probabilities.
    """

    first: NDArray[np.intp]
    length: NDArray[np.intp]
    leaves: NDArray[np.bool_]
    takes: FloatArray
    settings: UserSettings

    def outcome(self, ranks: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the final number of typed characters, and the selected rank or -1.

        Args:
            ranks: the wanted page's rank after each number of characters, shape (S, LONGEST + 1).
        """
        characters = np.arange(LONGEST + 1)
        looking = (characters >= self.first[:, None]) & (characters <= self.length[:, None])
        last = characters == self.length[:, None]
        visible = ranks < self.settings.rows
        refusal = 1 - self.settings.take * self.settings.fade ** np.minimum(ranks, self.settings.rows)
        refusal *= self.settings.patience ** np.maximum(characters - self.first[:, None], 0)
        taken = looking & visible & ((self.takes >= refusal) | last) & ~self.leaves[:, None]
        chosen = taken.any(axis=1)
        typed = np.where(chosen, taken.argmax(axis=1), self.length)
        rank = np.where(chosen, np.take_along_axis(ranks, typed[:, None], axis=1)[:, 0], NOTHING_CHOSEN)
        return typed, rank

    def first_entry(self, ranks: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the number of typed characters after which the wanted page was first visible to a look."""
        characters = np.arange(LONGEST + 1)
        visible = (characters >= self.first[:, None]) & (ranks < self.settings.rows)
        first: NDArray[np.intp] = visible.argmax(axis=1)
        return first


def look(keys: Keys, length: NDArray[np.int8], settings: UserSettings) -> Looks:
    """Draw users' looks from the keys of their searches; the first look is at the latest at the end of the word."""
    whole = length.astype(np.intp)
    uniform = uniforms(child_keys(keys, _FIRST), 1)[:, 0]
    more = settings.first_look - 1
    later = np.floor(np.log1p(-uniform) / np.log(more / (1 + more))) if more > 0 else np.zeros(len(keys))
    return Looks(
        first=np.minimum(1 + later, whole).astype(np.intp),
        length=whole,
        leaves=uniforms(child_keys(keys, _LEAVES), 1)[:, 0] < settings.nothing_selected,
        takes=uniforms(child_keys(keys, _TAKES), LONGEST + 1),
        settings=settings,
    )


_WISH, _LOOK, _HANDS, _TRAINING = range(4)


@dataclass(frozen=True)
class Seekers:
    """S coming searches; arrays have shape (S,).

    Attributes:
        users: the user of each search.
        keys: keys of the searches; every draw for a search follows from its key.
        day: times of the searches, in days since the study began.
    """

    users: NDArray[np.int64]
    keys: Keys
    day: FloatArray

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True)
class Behaved:
    """S finished searches: the interactions and their keystrokes."""

    seen: Interactions
    typed: Keystrokes


@dataclass(frozen=True)
class _Matches:
    """Pages that match the text typed before the user's first look, ordered by search, then by page number.

    Attributes:
        search: the search of each match, shape (P,).
        letters: the number of first letters that the page's best word shares with the typed word, shape (P,).
        wanted: whether the page is the wanted one, shape (P,).
        pages: P pages.
        scores: the scores that rank the pages, shape (P,).
    """

    search: NDArray[np.intp]
    letters: NDArray[np.intp]
    wanted: NDArray[np.bool_]
    pages: PageTable
    scores: FloatArray


def behave(
    users: Users,
    ranking: Ranking,
    seekers: Seekers,
    iteration: int,
    conditions: Conditions = PLAIN,
) -> Behaved:
    """Have users search with a ranking, and train under the conditions; return the finished searches."""
    settings = users.settings
    words = users.words(seekers.users)
    wish = users.wishes(seekers.users, child_keys(seekers.keys, _WISH), seekers.day, iteration, words)
    looks = look(child_keys(seekers.keys, _LOOK), users.vocabulary.length[wish.word], settings)
    matches = _matches(users, ranking, seekers, words, wish, looks)
    ranks = _ranks(matches, len(seekers))
    typed, rank = looks.outcome(ranks)
    shown = _shown(matches, typed, rank, settings.rows)
    first = looks.first_entry(ranks)
    return Behaved(
        _seen(ranking, matches, shown, child_keys(seekers.keys, _TRAINING), conditions),
        _typed(seekers.keys, typed, rank, first, users),
    )


def _matches(
    users: Users, ranking: Ranking, seekers: Seekers, words: NDArray[np.uint16], wish: Wish, looks: Looks
) -> _Matches:
    packed = users.vocabulary.packed
    target = packed[wish.word]
    apart = packed[words[:, :, 0]] ^ target[:, None]
    for slot in range(1, words.shape[2]):
        np.minimum(apart, packed[words[:, :, slot]] ^ target[:, None], out=apart)
    search, page = np.nonzero(apart < below(looks.first)[:, None])
    keys = users.page_keys(seekers.users[search], page)
    pages = users.pages(keys, seekers.day[search])
    scores = ranking.scores(pages)
    visible = scores != 0  # a score of 0 hides a page
    keep = slice(None) if visible.all() else np.flatnonzero(visible)
    letters = _shared_letters(apart[search, page])
    return _Matches(search[keep], letters[keep], (page == wish.page[search])[keep], pages.rows(keep), scores[keep])


def _shared_letters(apart: NDArray[np.uint64]) -> NDArray[np.intp]:
    letters: NDArray[np.intp] = np.count_nonzero(apart[:, None] < below(np.arange(1, LONGEST + 1)), axis=1)
    return letters


def _ranks(matches: _Matches, searches: int) -> NDArray[np.intp]:
    """Return the wanted page's rank after each number of characters, from 0 to LONGEST, shape (S, LONGEST + 1).

    If the wanted page is missing (hidden), the rank is beyond every list.
    """
    wanted = np.full(searches, np.inf)
    place = np.full(searches, -1, np.intp)
    at = np.flatnonzero(matches.wanted)
    wanted[matches.search[at]] = matches.scores[at]
    place[matches.search[at]] = at
    best = wanted[matches.search]
    earlier = np.arange(len(matches.search)) < place[matches.search]
    above = (matches.scores > best) | ((matches.scores == best) & earlier)
    cells = matches.search[above] * (LONGEST + 1) + matches.letters[above]
    by_letters = np.bincount(cells, minlength=searches * (LONGEST + 1)).reshape(searches, LONGEST + 1)
    ranks = by_letters[:, ::-1].cumsum(axis=1)[:, ::-1]
    ranks[place < 0] = np.iinfo(np.int32).max
    return ranks


def _shown(matches: _Matches, typed: NDArray[np.intp], rank: NDArray[np.intp], rows: int) -> Searches:
    """Return the visible lists when the searches ended: rows of the matches, the highest score at the top."""
    left = np.flatnonzero(matches.letters >= typed[matches.search])
    order = left[np.lexsort((-matches.scores[left], matches.search[left]))]
    counts = np.bincount(matches.search[left], minlength=len(typed))
    place = numbers_within(counts)
    visible = place < rows
    candidates = np.full((len(typed), rows), NO_CANDIDATE, np.int64)
    candidates[matches.search[order[visible]], place[visible]] = order[visible]
    return Searches(candidates, np.where(rank >= 0, rank, NOTHING_CHOSEN))


def _seen(
    ranking: Ranking,
    matches: _Matches,
    shown: Searches,
    keys: Keys,
    conditions: Conditions,
) -> Interactions:
    """Return the interactions of the searches, which include only the shown pages."""
    present = shown.candidates != NO_CANDIDATE
    rows = shown.candidates[present]
    local = np.full(shown.candidates.shape, NO_CANDIDATE, np.int64)
    local[present] = np.arange(len(rows))
    searches = Searches(local, shown.chosen)
    return finished(ranking, matches.pages.rows(rows), matches.scores[rows], searches, keys, conditions)


def _typed(
    keys: Keys, typed: NDArray[np.intp], rank: NDArray[np.intp], first: NDArray[np.intp], users: Users
) -> Keystrokes:
    settings = users.settings
    selected = rank >= 0
    pressed = typed + np.maximum(rank, 0)
    hand = uniforms(child_keys(keys, _HANDS), 1)[:, 0]
    return Keystrokes(
        characters=typed.astype(np.int64),
        keys=pressed.astype(np.int64),
        keys_at_first_entry=np.where(selected, first, -1).astype(np.int64),
        milliseconds=(pressed * settings.milliseconds).astype(np.int64),
        milliseconds_at_first_entry=np.where(selected, first * settings.milliseconds, -1).astype(np.int64),
        enter=selected & (hand < settings.enter),
    )
