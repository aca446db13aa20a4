"""Number of clients' updates computed per second: of a whole fleet at once, and with one object per client.

    python -m benchmarks.clients [--json] [--clients 10000] [--seconds 2] [--seed 1]

Two workloads, each by finite differences (ε = 1) and analytically:

- a linear model of 22 weights, 2 searches of 10 candidates a client;
- full frecency, one search of 10 candidates with 10 visits each.

The plain way follows thesis 7.3: an object for each client scores the client's pages. Both ways get the same data, and
the run stops if their updates differ. Both are repeated for the given time, in one process, and the fastest run counts,
since other load can only slow a run down.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedping.client_sim.models import (
    FrecencyWeights,
    Onward,
    Page,
    PageTable,
    Searches,
    Visit,
    VisitType,
    frecency_start,
    model_for,
)
from fedping.client_sim.models.arrays import FloatArray
from fedping.client_sim.models.linear import linear_analytic_updates, linear_finite_differences
from fedping.client_sim.models.pages import MICROSECONDS_PER_DAY, age_in_days
from fedping.client_sim.models.reference import bonus_of, bucket_weight, descent_by_finite_differences, frecency, loss

WEIGHTS = 22
CANDIDATES = 10
VISITS = 10
SEARCHES_A_CLIENT = 2
PLAIN_CLIENTS = 50
FEWEST_REPEATS = 3
MARGIN = 10.0
NOW = 1_530_000_000_000_000
FIELDS = {name: i for i, name in enumerate(FrecencyWeights._fields)}


@dataclass(frozen=True)
class Row:
    """A measurement, in client updates per second."""

    model: str
    gradient: str
    goal: int
    fleet_at_once: float
    one_object_a_client: float
    times_as_fast: float


@dataclass(frozen=True)
class Case:
    """The same update computed in both ways: for all clients at once, shape (n, m), and for client i, shape (m,)."""

    model: str
    gradient: str
    goal: int
    clients: int
    at_once: Callable[[], FloatArray]
    of_client: Callable[[int], FloatArray]


@dataclass
class PlainLinearClient:
    """A client with its searches: each has the candidates' features, shape (C, m), and the chosen candidate."""

    searches: list[tuple[FloatArray, int]]

    def loss(self, weights: FloatArray) -> float:
        """Return the loss, summed over the searches."""
        total = 0.0
        for features, chosen in self.searches:
            scores = features @ weights
            hinges = np.maximum(0.0, scores + MARGIN - scores[chosen])
            total += hinges.sum() - hinges[chosen]
        return total

    def finite_differences(self, weights: FloatArray) -> FloatArray:
        """Return the update by central finite differences."""
        return descent_by_finite_differences(self.loss, weights)

    def analytic(self, weights: FloatArray) -> FloatArray:
        """Return the update by the negative gradient."""
        update = np.zeros(len(weights))
        for features, chosen in self.searches:
            scores = features @ weights
            violating = scores + MARGIN - scores[chosen] > 0
            violating[chosen] = False
            update += violating.sum() * features[chosen] - features[violating].sum(axis=0)
        return update


@dataclass
class PlainFrecencyClient:
    """A client with one search: the candidates as objects, and the chosen one."""

    pages: list[Page]
    chosen: int

    def loss(self, weights: FloatArray) -> float:
        """Return the loss of the search."""
        return loss([frecency(weights, page, NOW) for page in self.pages], self.chosen, MARGIN)

    def finite_differences(self, weights: FloatArray) -> FloatArray:
        """Return the update by central finite differences."""
        return descent_by_finite_differences(self.loss, weights)

    def analytic(self, weights: FloatArray) -> FloatArray:
        """Return the update by the negative gradient."""
        w = FrecencyWeights(*weights.tolist())
        scored = [_smooth_score_and_gradient(w, page) for page in self.pages]
        best, best_gradient = scored[self.chosen]
        update = np.zeros(len(weights))
        for j, (score, gradient) in enumerate(scored):
            if j != self.chosen and score + MARGIN - best > 0:
                update += np.subtract(best_gradient, gradient)
        return update


def _smooth_score_and_gradient(w: FrecencyWeights, page: Page) -> tuple[float, list[float]]:
    """Return a visited page's score without ceilings, and the score's derivative by each weight."""
    points, gradient = 0.0, [0.0] * len(w)
    for visit in page.visits:
        age = age_in_days(visit, NOW)
        weight, bonus = bucket_weight(w, age), bonus_of(w, visit, page.bookmarked)
        points += weight * bonus / 100
        gradient[FIELDS["first_bucket_weight"] + _bucket(w, age)] += bonus / 100
        gradient[_bonus_weight(visit)] += weight / 100
        if page.bookmarked:
            gradient[FIELDS["bookmark_visit_bonus"]] += weight / 100
    scale = page.visit_count / len(page.visits)
    return scale * points, [scale * derivative for derivative in gradient]


def _bucket(w: FrecencyWeights, age: int) -> int:
    return next((i for i, cutoff in enumerate((*w[:4], math.inf)) if age <= cutoff))


def _bonus_weight(visit: Visit) -> int:
    is_target = visit.type in (VisitType.PERM_REDIRECT, VisitType.TEMP_REDIRECT)
    visit_type = visit.origin_type if is_target and visit.origin_type is not None else visit.type
    temporarily = visit.onward == Onward.TEMPORARILY and visit_type != VisitType.TYPED
    if temporarily or visit.onward == Onward.PERMANENTLY:
        return FIELDS["redirect_source_visit_bonus"]
    return FIELDS["default_visit_bonus" if visit_type == 0 else f"{VisitType(visit_type).name.lower()}_visit_bonus"]


def linear_cases(n: int, seed: int) -> list[Case]:
    rng = np.random.default_rng(seed)
    pages = n * SEARCHES_A_CLIENT * CANDIDATES
    features = rng.poisson(0.5, (pages, WEIGHTS)) * rng.exponential(7, (pages, 1))
    weights = rng.uniform(0, 100, WEIGHTS)
    searches = _searches(n * SEARCHES_A_CLIENT, rng)
    per_client = features.reshape(n, SEARCHES_A_CLIENT, CANDIDATES, WEIGHTS)[: _plain_clients(n)]
    chosen = searches.chosen.reshape(n, SEARCHES_A_CLIENT).tolist()
    clients = [PlainLinearClient(list(zip(mine, chosen[i], strict=True))) for i, mine in enumerate(per_client)]

    def summed(updates: FloatArray) -> FloatArray:
        return updates[0::SEARCHES_A_CLIENT] + updates[1::SEARCHES_A_CLIENT]

    def by_differences() -> FloatArray:
        return summed(linear_finite_differences(weights, features.__getitem__, searches, MARGIN))

    def analytic() -> FloatArray:
        return summed(linear_analytic_updates(weights, features.__getitem__, searches, MARGIN))

    name = f"linear {SEARCHES_A_CLIENT}×{CANDIDATES}"
    return [
        Case(name, "finite differences", 150_000, n, by_differences, lambda i: clients[i].finite_differences(weights)),
        Case(name, "analytic", 1_000_000, n, analytic, lambda i: clients[i].analytic(weights)),
    ]


def frecency_cases(n: int, seed: int) -> list[Case]:
    rng = np.random.default_rng(seed)
    pages, searches = random_pages(n * CANDIDATES, rng), _searches(n, rng)
    model, weights = model_for("frecency-2018"), frecency_start()
    clients = [
        PlainFrecencyClient(page_objects(pages, range(i * CANDIDATES, (i + 1) * CANDIDATES)), int(searches.chosen[i]))
        for i in range(_plain_clients(n))
    ]

    def by_differences() -> FloatArray:
        return model.finite_differences(weights, pages, searches, MARGIN)

    def analytic() -> FloatArray:
        return model.analytic_updates(weights, pages, searches, MARGIN)

    name = f"frecency 1×{CANDIDATES}×{VISITS}"
    return [
        Case(name, "finite differences", 20_000, n, by_differences, lambda i: clients[i].finite_differences(weights)),
        Case(name, "analytic", 100_000, n, analytic, lambda i: clients[i].analytic(weights)),
    ]


def random_pages(n: int, rng: np.random.Generator) -> PageTable:
    """Return pages with 10 visits of all kinds, a tenth of them sources or targets of redirects."""
    kinds = [0.5, 0.15, 0.15, 0.02, 0.04, 0.04, 0.03, 0.03, 0.04]
    shape = (n, VISITS)
    return PageTable(
        age_days=np.sort(180 * rng.random(shape) ** 1.5, axis=1).astype(np.int32),
        visit_type=rng.choice(np.arange(1, 10, dtype=np.uint8), size=shape, p=kinds),
        origin_type=rng.integers(-1, 4, shape).astype(np.int8),
        onward=rng.choice(np.arange(3, dtype=np.uint8), size=shape, p=[0.9, 0.05, 0.05]),
        sampled=np.full(n, VISITS, np.int8),
        visit_count=VISITS + rng.exponential(7, n).astype(np.int64),
        typed=rng.random(n) < 0.2,
        bookmarked=rng.random(n) < 0.2,
        is_query=np.zeros(n, np.bool_),
    )


def page_objects(table: PageTable, rows: range) -> list[Page]:
    """Return rows of a table as objects, one per page."""
    return [
        Page(
            visits=tuple(
                Visit(
                    time=NOW - int(table.age_days[i, v]) * MICROSECONDS_PER_DAY,
                    type=int(table.visit_type[i, v]),
                    origin_type=int(table.origin_type[i, v]) if table.origin_type[i, v] >= 0 else None,
                    onward=Onward(int(table.onward[i, v])),
                )
                for v in range(VISITS)
            ),
            visit_count=int(table.visit_count[i]),
            typed=bool(table.typed[i]),
            bookmarked=bool(table.bookmarked[i]),
        )
        for i in rows
    ]


def _searches(n: int, rng: np.random.Generator) -> Searches:
    return Searches(np.arange(n * CANDIDATES).reshape(n, CANDIDATES), rng.integers(0, CANDIDATES, n))


def _plain_clients(n: int) -> int:
    return min(n, PLAIN_CLIENTS)


def measured(case: Case, seconds: float) -> Row:
    """Return the rates of both ways, after checking that their updates are equal."""
    expected = np.array([case.of_client(i) for i in range(_plain_clients(case.clients))])
    np.testing.assert_allclose(case.at_once()[: len(expected)], expected, rtol=1e-9, atol=1e-6)
    plain_clients = range(_plain_clients(case.clients))
    at_once = case.clients / _fastest(case.at_once, seconds)
    plain = len(plain_clients) / _fastest(lambda: [case.of_client(i) for i in plain_clients], seconds)
    return Row(case.model, case.gradient, case.goal, round(at_once), round(plain), round(at_once / plain, 1))


def _fastest(run: Callable[[], object], for_seconds: float) -> float:
    """Return the seconds of the fastest run, among runs repeated for ``for_seconds``."""
    durations: list[float] = []
    while sum(durations) < for_seconds or len(durations) < FEWEST_REPEATS:
        started = time.perf_counter()
        run()
        durations.append(time.perf_counter() - started)
    return min(durations)


def show(rows: list[Row]) -> None:
    title = "client updates a second (searches × candidates × visits a client)"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("model", "gradient", "goal", "at once", "one by one", "ratio"):
        table.add_column(heading, justify="left" if heading in ("model", "gradient") else "right")
    for row in rows:
        rates = (row.goal, row.fleet_at_once, row.one_object_a_client)
        table.add_row(row.model, row.gradient, *(f"{rate:,.0f}" for rate in rates), f"{row.times_as_fast:,.0f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--clients", type=int, default=10_000, help="number of clients that compute an update at once")
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each measurement's repetitions")
    parser.add_argument("--seed", type=int, default=1, help="of the data")
    options = parser.parse_args()
    cases = [*linear_cases(options.clients, options.seed), *frecency_cases(options.clients, options.seed)]
    rows = [measured(case, options.seconds) for case in cases]
    if options.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        show(rows)


if __name__ == "__main__":
    main()
