"""MovieLens small as a task: will this user like this film, given what the user rated before.

The package has 100,836 ratings from half a star to five, of 9,742 films by 610 users, with times (Harper and Konstan
2015). An example is a rating; its class is 1 from four stars on, 48 % of them. A client is a user: the natural key.

Features look only at events strictly earlier, in seconds, than the rating. The user's own past is on its device; other
people's past is limited to what a catalogue could have published at that time. Every mean includes one additional
rating of 3.5 stars, so that it exists before any rating does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.installed import Columns, table_file
from fedping.client_sim.data.table import Table, Target, table
from fedping.client_sim.learning.batch import FloatArray

LIKED = 4.0
FILMS = 5
LEAST = 10
MIDDLE = 3.5
NO_GENRE = "(no genres listed)"
SECONDS_PER_YEAR = 31_556_952

PAST = ("user_ratings", "user_mean", "user_liked", "user_mean_of_genres", "film_ratings", "film_mean", "film_age")


def movielens() -> Table:
    """Return the ratings by 18 genres (1 if the film is of it) and :data:`PAST`.

    Four features describe the user's earlier ratings: their number (as log(1 + n)), their mean, the share of at least
    four stars, and their mean in each of the film's genres, averaged over these genres. Two describe all users'
    earlier ratings of the film: their number (log(1 + n)) and mean. The last feature is the film's age in years, 0 if
    the title doesn't give a year.
    """
    films, ratings = table_file("MovieLensMovies"), table_file("MovieLensRatings")
    genres, names = _genres(films)
    film = np.searchsorted(films["movieId"], ratings["movieId"])
    time, stars, user = ratings["timestamp"], ratings["rating"].astype(np.float64), ratings["userId"]
    of_film = genres[film]
    mine, its = _Past(user, time), _Past(film, time)
    counts, sums = mine.sums(of_film), mine.sums(of_film * (stars - MIDDLE)[:, None])
    by_genre = MIDDLE + sums / (1 + counts)
    past = (
        np.log1p(mine.count),
        mine.mean(stars),
        mine.sums(stars >= LIKED) / np.maximum(mine.count, 1),
        np.where(of_film.any(axis=1), (by_genre * of_film).sum(axis=1) / np.maximum(of_film.sum(axis=1), 1), MIDDLE),
        np.log1p(its.count),
        its.mean(stars),
        _age(films, film, time),
    )
    return table(
        np.column_stack([of_film, *past]),
        stars >= LIKED,
        features=(*names, *PAST),
        target=Target("liked", ("no", "yes")),
        key=user,
    )


def movielens_genres() -> Table:
    """Return :func:`movielens` with only the genres as features, so that only a user's model can have its taste."""
    ratings = movielens()
    genres = len(ratings.features) - len(PAST)
    return replace(ratings, x=np.ascontiguousarray(ratings.x[:, :genres]), features=ratings.features[:genres])


def movielens_choices() -> Table:
    """Return choices made of the ratings: the film that a user liked best among five that it rated in a row.

    Groups in which several films tie for the most stars are left out. The features are those of :func:`movielens`.
    """
    films, ratings = movielens(), table_file("MovieLensRatings")
    user, stars = ratings["userId"], ratings["rating"]
    order = np.lexsort((ratings["timestamp"], user))
    place = np.arange(len(order)) - np.searchsorted(user[order], user[order])
    of_user = np.bincount(user)[user[order]]
    fives = order[place < of_user // FILMS * FILMS].reshape(-1, FILMS)
    most = stars[fives] == stars[fives].max(axis=1, keepdims=True)
    clear = most.sum(axis=1) == 1
    return replace(
        films.rows(fives[clear].ravel()),
        y=most[clear].ravel().astype(np.int64),
        target=Target("liked_best", ("no", "yes")),
        choice=np.repeat(np.arange(clear.sum()), FILMS),
    )


def movielens_ratings() -> Table:
    """Return the stars of each rating by the film's number alone, for a model of films and users as factors.

    These are the 81,116 ratings of the 2,269 films that have at least :data:`LEAST` of them, numbered from 0 in the
    order of the package. Films with fewer ratings have too little data to learn from.
    """
    ratings = table_file("MovieLensRatings")
    _, film, count = np.unique(ratings["movieId"], return_inverse=True, return_counts=True)
    known = count >= LEAST
    number = np.cumsum(known) - 1
    rows = known[film]
    return table(
        number[film[rows], None].astype(np.float64),
        ratings["rating"][rows],
        features=("film",),
        target=Target("stars"),
        key=ratings["userId"][rows],
    )


class _Past:
    """For each rating, the earlier ratings of the same owner: a user or a film."""

    def __init__(self, owner: NDArray[np.int64], time: NDArray[np.int64]) -> None:
        self.order = np.lexsort((time, owner))
        owner, time = owner[self.order], time[self.order]
        position = np.arange(len(owner))
        new_owner = np.concatenate([[True], owner[1:] != owner[:-1]])
        new_time = new_owner | np.concatenate([[True], time[1:] != time[:-1]])
        # In sorted order: start of the owner's ratings, and start of those in the same second.
        self.begin = np.maximum.accumulate(np.where(new_owner, position, 0))
        self.end = np.maximum.accumulate(np.where(new_time, position, 0))
        self.count = self._unsorted((self.end - self.begin).astype(np.float64))

    def sums(self, values: NDArray[np.bool_] | FloatArray) -> FloatArray:
        """Return the sum of values over the earlier ratings of each rating's owner; any trailing shape."""
        running = np.cumsum(values[self.order], axis=0, dtype=np.float64)
        before = np.concatenate([np.zeros_like(running[:1]), running])
        return self._unsorted(before[self.end] - before[self.begin])

    def mean(self, stars: FloatArray) -> FloatArray:
        """Return the mean of the earlier ratings and one additional rating of :data:`MIDDLE` stars."""
        return MIDDLE + self.sums(stars - MIDDLE) / (1 + self.count)

    def _unsorted(self, values: FloatArray) -> FloatArray:
        back = np.empty_like(values)
        back[self.order] = values
        return back


def _genres(films: Columns) -> tuple[FloatArray, list[str]]:
    """Return the genres of each film, shape (films, genres), and the genres' names in alphabetical order."""
    lists = [[] if genres == NO_GENRE else genres.split("|") for genres in films["genres"]]
    names = sorted({genre for genres in lists for genre in genres})
    return np.array([[name in genres for name in names] for genres in lists], dtype=np.float64), names


def _age(films: Columns, film: NDArray[np.intp], time: NDArray[np.int64]) -> FloatArray:
    """Return the age of each rating's film in years."""
    years = np.array([_year(title) for title in films["title"]])[film]
    rated = 1970 + time // SECONDS_PER_YEAR
    return np.where(years > 0, np.maximum(rated - years, 0), 0).astype(np.float64)


def _year(title: str) -> int:
    """Return the year in brackets at the end of a film's title; 0 without one."""
    last = title.rstrip()[-5:-1]
    return int(last) if last.isdigit() else 0
