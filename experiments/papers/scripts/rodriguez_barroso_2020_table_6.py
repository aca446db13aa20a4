"""Prints the rows with privacy of table 6 in Rodríguez-Barroso et al. 2020.

Five clients fit least squares to their own homes (two features and an intercept) and add Laplace noise to the three
parameters; the server takes the mean. The noise is scaled by a sampled sensitivity, which guarantees nothing. The
paper's data, California Housing, is in no package; this script uses the 5,801 homes of West Roxbury, with values in
1,000 $, and keeps a tenth of them for the sampler, as the paper does.

The paper's rows are means of 20, 8 and 5 runs for ε = 0.2, 0.5 and 0.8: the number that the basic filter allows under a
budget of ε = 4. The paper's text speaks of advanced composition; its filter allows 6, 1 and none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.datasets import load
from fedping.experiments.privacy.composition import AdvancedFilter, BasicFilter, Guarantee
from fedping.experiments.privacy.mechanisms import Laplace, SampledSensitivity, sampled_sensitivity

EPSILONS = (0.2, 0.5, 0.8)
BUDGET = Guarantee(4.0, 1e-5)
CLIENTS = 5
FEATURES = ("LIVING AREA", "LOT SQFT")

Floats = NDArray[np.float64]
Rows = tuple[Floats, Floats]


class Row(NamedTuple):
    """A row of the table: the mean over its runs."""

    approach: str
    rmse: float
    """RMSE on the test homes, in 1,000 $."""
    r_squared: float
    runs: int = 1
    """Number of runs that the basic filter allows."""
    by_advanced: int | None = None
    """Number of runs that the advanced filter allows."""


def table_6(seed: int) -> tuple[list[Row], SampledSensitivity]:
    """Return the table's rows, and the sensitivity that was sampled for them."""
    rng = np.random.default_rng(seed)
    kept, test, *clients = _parts(rng)
    everybody = (np.concatenate([x for x, _ in clients]), np.concatenate([y for _, y in clients]))
    size = len(clients[0][1])

    def neighbours(rng: np.random.Generator) -> tuple[Rows, Rows]:
        drawn = rng.integers(len(kept[1]), size=size + 1)
        one, other = drawn[:-1], drawn[1:]
        return (kept[0][one], kept[1][one]), (kept[0][other], kept[1][other])

    sensitivity = sampled_sensitivity(_fit, neighbours, 0.05, rng)
    fits = [_fit(client) for client in clients]
    rows = [
        Row("centralised", *_errors(_fit(everybody), test)),
        Row("federated", *_errors(np.mean(fits, axis=0), test)),
    ]
    for epsilon in EPSILONS:
        noisy, answer = Laplace(sensitivity, epsilon), Guarantee(epsilon)
        runs = BasicFilter(BUDGET).allowed(answer)
        each = [_errors(np.mean([noisy(fit, rng) for fit in fits], axis=0), test) for _ in range(runs)]
        rmse, r_squared = np.mean(each, axis=0)
        advanced = AdvancedFilter(BUDGET).allowed(answer)
        rows.append(Row(f"federated, ε = {epsilon:g}", float(rmse), float(r_squared), runs, advanced))
    return rows, sensitivity


def _parts(rng: np.random.Generator) -> list[Rows]:
    """Return the sampler's homes, the test homes, and each client's homes, standardised and in random order."""
    homes = load("west-roxbury")
    x = homes.x[:, [homes.features.index(name) for name in FEATURES]]
    order = rng.permutation(len(x))
    tenth, fifth = len(x) // 10, len(x) // 5
    train = order[tenth + fifth :]
    x = (x - x[train].mean(axis=0)) / x[train].std(axis=0)
    size = len(train) // CLIENTS
    places = [order[:tenth], order[tenth : tenth + fifth], *(train[i * size : (i + 1) * size] for i in range(CLIENTS))]
    return [(x[place], homes.y[place].astype(np.float64)) for place in places]


def _fit(rows: Rows) -> Floats:
    """Return the coefficients and the intercept of least squares, shape (3,)."""
    x, y = rows
    return np.asarray(np.linalg.lstsq(_with_ones(x), y, rcond=None)[0])


def _errors(fit: Floats, rows: Rows) -> tuple[float, float]:
    """Return RMSE and R²."""
    x, y = rows
    squares = float(np.mean((_with_ones(x) @ fit - y) ** 2))
    return float(np.sqrt(squares)), 1 - squares / float(np.var(y))


def _with_ones(x: Floats) -> Floats:
    return np.column_stack([x, np.ones(len(x))])


def main() -> None:
    """Print the table in Markdown."""
    rows, sensitivity = table_6(seed=1234)
    largest, mean, pairs, _ = sensitivity
    print(f"sampled sensitivity: largest {largest:.4g}, mean {mean:.4g}, {pairs} pairs\n")
    print("| approach | RMSE | R² | runs by the basic filter | by the advanced one |\n|---|---|---|---|---|")
    for row in rows:
        advanced = "" if row.by_advanced is None else row.by_advanced
        runs = "" if row.by_advanced is None else row.runs
        print(f"| {row.approach} | {row.rmse:.3f} | {row.r_squared:.4f} | {runs} | {advanced} |")


if __name__ == "__main__":
    main()
