"""Accuracy of published robust operators under attacks on MNIST, with similar clients or with two digits per client.

    python -m benchmarks.robust_mnist [--out FILE] [--seeds 3] [--partition alike] [--defence NAME]
    python -m benchmarks.robust_mnist --table FILE [--figure FILE]

`experiments/robust_mnist.toml` has the model, the data and the attacks; rounds are computed in memory. Each run appends
a line of JSON to the file of `--out`, and is skipped if it is already there. `--table` prints a file's tables: the test
accuracy by attack and defence with 95 % intervals over the seeds. `--figure` draws them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.robustness import figures_of, read
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.experiment import experiment_of
from fedping.experiments.laboratory.settings.merging import Raw, merged

BASE = Path(__file__).parents[1] / "experiments" / "robust_mnist.toml"

PARTITIONS: dict[str, Raw] = {
    "alike": {"partition": "iid", "clients": 25},
    "two digits each": {"partition": "labels", "clients": 25, "labels": 2},
}
"""Partitions of the digits over clients, by name."""

DEFENCES: dict[str, Raw] = {
    "mean": {},
    "clip": {"clip": {"by": "quantile"}},
    "median": {"aggregate": {"by": "median"}},
    "trimmed mean": {"aggregate": {"by": "trimmed_mean", "share": 0.2}},
    "geometric median": {"aggregate": {"by": "geometric_median", "iterations": 10}},
    "Krum": {"aggregate": {"by": "krum", "hostile": 0.2}},
    "centered clip": {"aggregate": {"by": "centered_clip", "radius": 1.0}},
    "buckets of 2, median": {"aggregate": {"by": "median"}, "bucketing": 2},
    "buckets of 2, Krum": {"aggregate": {"by": "krum", "hostile": 0.4}, "bucketing": 2},
}
"""Defences as settings of [server], by name; the assumed share of hostile clients is 0.2, or 0.4 with buckets."""

Cell = tuple[str, str, str]
"""A cell of a table: partition, attack, defence."""


@dataclass(frozen=True)
class Panel:
    """A heat map with a row per attack and a column per defence; cells with NaN are empty."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]


def draw(
    panels: Sequence[Panel],
    path: Path,
    *,
    label: str,
    best: float,
    worst: float,
    text: Callable[[float], str],
) -> None:
    """Draw heat maps, one below the other, into an SVG or PNG file.

    Args:
        panels: the maps.
        path: the file.
        label: the meaning of the values, shown on the scale.
        best: the value in the lightest colour.
        worst: the value in the darkest colour, which worse values have too.
        text: returns the text of a value's cell.
    """
    import numpy as np
    from matplotlib import colormaps, rc_context
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    scale = Normalize(min(best, worst), max(best, worst), clip=True)
    colours = colormaps["cividis" if best > worst else "cividis_r"]
    columns, rows = len(panels[0].columns), sum(len(panel.rows) for panel in panels)
    with rc_context({"svg.hashsalt": "fedping", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(2.6 + 0.8 * columns, 1.4 * len(panels) + 0.34 * rows), layout="constrained")
        heights = [len(panel.rows) for panel in panels]
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for panel, one in zip(panels, axes, strict=True):
            values = np.array(panel.values)
            image = one.imshow(values, cmap=colours, norm=scale, aspect="auto")
            one.set_title(panel.title, loc="left", fontsize=10)
            one.set_xticks(range(columns), [name.replace(", ", ",\n").replace(" m", "\nm") for name in panel.columns])
            one.set_yticks(range(len(panel.rows)), panel.rows)
            one.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
            one.spines[:].set_visible(False)
            one.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
            one.set_yticks(np.arange(len(panel.rows) + 1) - 0.5, minor=True)
            one.grid(which="minor", color="white", linewidth=1.5)
            one.tick_params(which="minor", length=0, top=False)
            for (row, column), value in np.ndenumerate(values):
                if np.isfinite(value):
                    red, green, blue, _ = colours(scale(value))
                    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
                    colour = "white" if dark else "black"
                    one.text(column, row, text(value), ha="center", va="center", color=colour)
        figure.colorbar(image, ax=axes, label=label, shrink=0.6, pad=0.02)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


def setups(partition: str, defence: str) -> Mapping[str, Setup]:
    """Return the settings of the runs by attack."""
    raw = merged(tomllib.loads(BASE.read_text()), {"server": DEFENCES[defence], "partition": PARTITIONS[partition]})
    return experiment_of(raw, name="robust-mnist", folder=BASE.parent).variants


def run_all(options: argparse.Namespace) -> None:
    done = {(cell_of(row), row["seed"]) for row in read(options.out)}
    for seed in range(1, options.seeds + 1):
        for partition in options.partition or PARTITIONS:
            problem = prepare(setups(partition, "mean")["nobody"], seed, None)
            for defence in options.defence or DEFENCES:
                for attack, setup in setups(partition, defence).items():
                    row = {"partition": partition, "attack": attack, "defence": defence, "seed": seed}
                    if (cell_of(row), seed) in done:
                        continue
                    row["accuracy"] = figures_of(setup, problem, seed, "accuracy")[setup.rounds]
                    with options.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")


def cell_of(row: Mapping[str, Any]) -> Cell:
    return row["partition"], row["attack"], row["defence"]


def means_of(rows: Sequence[Mapping[str, Any]]) -> dict[Cell, tuple[float, float]]:
    """Return each cell's mean accuracy over the seeds, and half of its 95 % interval (NaN for one seed)."""
    from scipy.stats import t

    values: dict[Cell, dict[int, float]] = {}
    for row in rows:
        values.setdefault(cell_of(row), {})[row["seed"]] = row["accuracy"]
    found = {}
    for cell, by_seed in values.items():
        n = len(by_seed)
        spread = statistics.stdev(by_seed.values()) if n > 1 else math.nan
        found[cell] = statistics.mean(by_seed.values()), float(t.ppf(0.975, max(1, n - 1))) * spread / math.sqrt(n)
    return found


def names_of(means: Mapping[Cell, object]) -> tuple[list[str], list[str], list[str]]:
    """Return the partitions, attacks and defences found, in the order of their runs."""
    partitions, attacks, defences = (list(dict.fromkeys(names)) for names in zip(*means, strict=True))
    return partitions, attacks, defences


def tables(means: Mapping[Cell, tuple[float, float]]) -> Iterator[str]:
    """Yield a Markdown table for each partition, with a row per attack and a column per defence."""
    partitions, attacks, defences = names_of(means)
    for partition in partitions:
        yield f"\n{partition}\n"
        yield "| attack | " + " | ".join(defences) + " |"
        yield "|---" * (len(defences) + 1) + "|"
        for attack in attacks:
            found = [means.get((partition, attack, defence)) for defence in defences]
            cells = [f"{each[0]:.2f} ± {each[1]:.2f}" if each else "" for each in found]
            yield f"| {attack} | " + " | ".join(cells) + " |"


def panels(means: Mapping[Cell, tuple[float, float]]) -> list[Panel]:
    """Return the heat maps, one for each partition."""
    partitions, attacks, defences = names_of(means)
    return [
        Panel(
            title=f"Clients {partition}" if partition == "alike" else f"Clients with {partition}",
            rows=tuple(attacks),
            columns=tuple(defences),
            values=tuple(
                tuple(means.get((partition, attack, defence), (math.nan,))[0] for defence in defences)
                for attack in attacks
            ),
        )
        for partition in partitions
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("robust-mnist.jsonl"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--partition", action="append", choices=PARTITIONS)
    parser.add_argument("--defence", action="append", choices=DEFENCES)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--figure", type=Path, help="with --table: write the picture to this file, .svg or .png")
    options = parser.parse_args()
    if options.table is None:
        run_all(options)
        return
    means = means_of(read(options.table))
    print("\n".join(tables(means)))
    if options.figure:
        draw(panels(means), options.figure, label="test accuracy", best=1.0, worst=0.0, text="{:.2f}".format)


if __name__ == "__main__":
    main()
