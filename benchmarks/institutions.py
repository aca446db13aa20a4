"""Loss of accuracy by the protection of rows, for K institutions with n rows each, at ε = 1, 3 and 8.

    python -m benchmarks.institutions [--json] [--seeds 5] [--versions 20] [--rate 4] [--model logistic] [--table NAME]

Each seed draws K·n rows for the institutions and leaves the rest for the test. Features have mean 0 and deviation 1
over the institutions' rows, as if the institutions had agreed on the scale. In every version, each institution sends
one gradient at the version's weights, as computed by `fedping join` with protection
(:mod:`fedping.client_sim.joining.answering`), and the server takes a step by the mean over rows. `local` protects each
message by itself. In `sum` only the sum of the messages is visible, with the noise of a single message: each
institution adds a share of the noise, and institutions don't collude. δ is n^-1.1.

`pooled` and `alone` are scikit-learn's models of all institutions' rows and of one institution's rows, without noise.
Differences from `pooled` are taken for the same seed, with the standard error of their mean over the seeds. Seconds are
CPU seconds of an answer, and bytes are the size of its ping as JSON. A table whose package is not installed is skipped
with a message.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table as Printed

from fedping.client_sim.data.datasets import load
from fedping.client_sim.data.example_data import of_one
from fedping.client_sim.data.installed import table_file
from fedping.client_sim.data.table import Table, Target, table
from fedping.client_sim.fleet.pings import encoded_pings
from fedping.client_sim.joining.answering import Answer, Noise, answer
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.models.logistic_regression import LogisticRegression
from fedping.client_sim.learning.models.network import Network
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_table import ModelPings
from fedping.protocol.row_privacy import mu_of, noise_multiplier, noise_of_share, usual_delta
from fedping.protocol.training import OneGradient

EPSILONS = (1.0, 3.0, 8.0)
WAYS = ("local", "sum")
UNITS = 32
AFTERWARDS = ("INJURY_CRASH", "NO_INJ_I", "PRPTYDMG_CRASH", "FATALITIES", "MAX_SEV_IR")
"""Columns of accidents that describe consequences of the accident."""
NUMBERS = ("SPD_LIM", "VEH_INVL")
"""Columns of accidents with numbers; the others are categories."""


def accidents() -> Table:
    """Return 42,183 accidents with 27 features of time, place and persons; in class 1 (51 %) a person was hurt."""
    columns = table_file("accidentsFull")
    features: dict[str, Any] = {}
    for name, values in columns.items():
        if name in NUMBERS:
            features[name] = values
        elif name not in AFTERWARDS:
            features |= {f"{name}={each}": values == each for each in np.unique(values)[1:].tolist()}
    x = np.column_stack(list(features.values())).astype(np.float64)
    hurt = Target("injury", ("nobody", "somebody"))
    return table(x, columns["MAX_SEV_IR"] > 0, features=tuple(features), target=hurt)


class Case(NamedTuple):
    """A case: K institutions with n rows each of a table."""

    name: str
    read: Callable[[], Table]
    institutions: int
    rows: int

    def __str__(self) -> str:
        """Return the case as text for a table."""
        return f"{self.name} {self.institutions} × {self.rows:,}"


CASES = (
    Case("breast cancer", lambda: load("breast-cancer"), 3, 150),
    Case("credit", lambda: load("credit"), 3, 266),
    Case("spambase", lambda: load("spambase-logarithms"), 3, 300),
    Case("spambase", lambda: load("spambase-logarithms"), 12, 300),
    Case("spambase", lambda: load("spambase-logarithms"), 3, 1_200),
    Case("accidents", accidents, 20, 300),
)


@dataclass(frozen=True)
class Rounds:
    """Settings of a line's training: the number of versions that share a budget, the server's rate, and the model."""

    versions: int
    rate: float
    model: str = "logistic"


@dataclass(frozen=True)
class Divided:
    """The scaled rows of each institution and of the test."""

    institutions: tuple[Table, ...]
    test: Table


@dataclass(frozen=True)
class Row:
    """A method's accuracy over the seeds at one ε, in %, and the difference from pooled with its standard error."""

    table: str
    model: str
    way: str
    epsilon: float | None
    accuracy: float
    deviation: float
    beside_pooled: float
    error: float
    seconds: float | None
    ping_bytes: int | None


def divided(whole: Table, case: Case, seed: int) -> Divided:
    """Return a seed's rows of institutions and of the test, scaled by mean and deviation of the institutions' rows."""
    order = np.random.default_rng(seed).permutation(len(whole))
    k, n = case.institutions, case.rows
    x = whole.x[order[: k * n]]
    deviation = x.std(axis=0)
    scaled = (whole.x - x.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    all_rows = table(scaled, whole.y, features=whole.features, target=whole.target)
    own = tuple(all_rows.rows(order[number * n : (number + 1) * n]) for number in range(k))
    return Divided(own, all_rows.rows(order[k * n :]))


def model_of(name: str, features: int, seed: int) -> Model[Any]:
    """Return the model that institutions train."""
    return LogisticRegression(features) if name == "logistic" else Network(features, 2, hidden=(UNITS,), seed=seed)


def federated(rows: Divided, rounds: Rounds, epsilon: float, way: str, seed: int) -> tuple[float, float, Answer]:
    """Train over all versions; return the accuracy in %, the CPU seconds of an answer, and the last answer."""
    model = model_of(rounds.model, rows.test.x.shape[1], seed)
    random = np.random.default_rng([seed, round(epsilon * 1000), WAYS.index(way)])
    k, key, seconds = len(rows.institutions), np.zeros(1, np.uint64), 0.0
    noises = []
    for own in rows.institutions:
        z = noise_multiplier(mu_of(epsilon, usual_delta(len(own))), rounds.versions)
        noises.append(Noise(z if way == "local" else noise_of_share(z, k, 0), random.bytes))
    weights = np.asarray(model.start, np.float64)
    votes = np.array([len(own) for own in rows.institutions], np.float64)
    for _ in range(rounds.versions):
        began = time.process_time()
        answers = [
            answer(model, OneGradient(), own, weights, key, noise)
            for own, noise in zip(rows.institutions, noises, strict=True)
        ]
        seconds += time.process_time() - began
        weights = weights + rounds.rate * np.average([each.update for each in answers], axis=0, weights=votes)
    return accuracy_of(model, weights, rows.test), seconds / (k * rounds.versions), answers[-1]


def accuracy_of(model: Model[Any], weights: np.ndarray, test: Table) -> float:
    """Return the accuracy of weights on the test rows, in %."""
    predicted = model.predict(weights, of_one(test).batch(np.zeros(1, np.intp)))[0]
    labels = predicted.argmax(axis=-1) if predicted.ndim > 1 else predicted > 0.5
    return 100 * float(np.mean(labels == test.y))


def without_noise(rows: Divided, model: str, seed: int) -> tuple[float, float]:
    """Return accuracies in %: of scikit-learn's model of all rows, and the mean of the institutions' own models."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression as Logistic
    from sklearn.neural_network import MLPClassifier

    def fitted(own: tuple[Table, ...]) -> float:
        made = (
            Logistic(max_iter=5_000) if model == "logistic" else MLPClassifier((UNITS,), random_state=seed, alpha=0.1)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # MLPClassifier ends after 200 epochs
            made.fit(np.concatenate([each.x for each in own]), np.concatenate([each.y for each in own]))
        return 100 * float(made.score(rows.test.x, rows.test.y))

    return fitted(rows.institutions), statistics.fmean(fitted((each,)) for each in rows.institutions)


def ping_bytes(answered: Answer, rows: int) -> int:
    """Return the size of an answer's ping as JSON."""
    ping = ModelPings(
        document_ids=np.zeros((1, 16), np.uint8),
        client_ids=np.zeros((1, 16), np.uint8),
        arm="hospitals",
        version=1,
        updates=answered.update[None].astype(np.float32),
        losses=np.array([answered.loss]),
        examples=np.array([rows]),
    )
    [(_, body)] = encoded_pings(ping)
    return len(body)


def measure(case: Case, rounds: Rounds, seeds: int) -> Iterator[Row]:
    """Yield the rows of a case: pooled, alone, and each ε in both ways."""
    whole = case.read()
    all_rows = [divided(whole, case, seed) for seed in range(seeds)]
    pooled, alone = np.array([without_noise(rows, rounds.model, seed) for seed, rows in enumerate(all_rows)]).T

    def row(way: str, epsilon: float | None, found: np.ndarray, seconds: float | None, size: int | None) -> Row:
        beside = found - pooled
        return Row(
            table=str(case),
            model=rounds.model,
            way=way,
            epsilon=epsilon,
            accuracy=float(found.mean()),
            deviation=float(found.std(ddof=1)),
            beside_pooled=float(beside.mean()),
            error=float(beside.std(ddof=1)) / math.sqrt(seeds),
            seconds=seconds,
            ping_bytes=size,
        )

    yield row("pooled", None, pooled, None, None)
    yield row("alone", None, alone, None, None)
    for epsilon in EPSILONS:
        for way in WAYS:
            done = [federated(rows, rounds, epsilon, way, seed) for seed, rows in enumerate(all_rows)]
            found = np.array([accuracy for accuracy, _, _ in done])
            seconds = statistics.median(each for _, each, _ in done)
            yield row(way, epsilon, found, seconds, ping_bytes(done[-1][2], case.rows))


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON, a row an accuracy")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--versions", type=int, default=20)
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--model", choices=("logistic", "network"), default="logistic")
    parser.add_argument("--table", choices=sorted({case.name for case in CASES}), help="this one alone")
    given = parser.parse_args()
    if given.seeds < 2 or given.versions < 1 or not given.rate > 0:
        parser.error("--seeds is 2 or more, --versions 1 or more, and --rate above 0")
    rounds, rows = Rounds(given.versions, given.rate, given.model), []
    for case in CASES:
        if given.table in (None, case.name):
            try:
                rows += list(measure(case, rounds, given.seeds))
            except FedpingError as error:
                print(f"{case} is left out: {error}", file=sys.stderr)
    if given.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    printed = Printed("table", "way", "ε", "accuracy", "deviation", "beside pooled", "ms an answer", "bytes")
    for row in rows:
        printed.add_row(
            row.table,
            row.way,
            "" if row.epsilon is None else f"{row.epsilon:g}",
            f"{row.accuracy:.1f}",
            f"{row.deviation:.1f}",
            f"{row.beside_pooled:+.1f} ± {row.error:.1f}",
            "" if row.seconds is None else f"{1000 * row.seconds:.0f}",
            "" if row.ping_bytes is None else f"{row.ping_bytes:,}",
        )
    Console(width=120).print(printed)


if __name__ == "__main__":
    main()
