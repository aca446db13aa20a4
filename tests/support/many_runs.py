"""Any number of folders of finished runs, as `fedping simulate` leaves them, without computing anything."""

from __future__ import annotations

import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from fedping.dashboard.runs.registry import DESCRIPTION, NOTE, Note
from fedping.experiments.laboratory.results import UnitNote, write_units
from fedping.experiments.laboratory.settings import experiment_of
from fedping.experiments.laboratory.summary import Band, Summary, VariantSummary, t_quantile
from fedping.experiments.run_folder import NOTE as EXPERIMENT
from fedping.experiments.run_folder import write_whole_bytes
from fedping.experiments.run_process import ENDED, Ended
from fedping.protocol.formats import with_format
from tests.support.watched import BEGUN

SEEDS = 4
"""Number of seeds at each point of the grid."""

METRICS = ("accuracy", "precision", "recall", "f1", "auc", "loss")
SPLITS = ("validation", "test", "train")

TEXT = """
rounds = {rounds}
seeds = [{seed}]
[model]
name = "logistic-regression"
l2 = {l2}
[data]
name = "breast-cancer"
[partition]
partition = "iid"
clients = 8
[server]
optimizer = {{ optimizer = "gradient_descent", rate = {rate} }}
"""


def rate_of(number: int) -> float:
    """Return the step size of a run, different at each point of the grid."""
    return round(0.001 * (1 + number // SEEDS), 6)


def accuracy_of(number: int) -> float:
    """Return the test accuracy of a run, which falls with the step size and varies with the seed."""
    return 0.95 - 0.0001 * (number // SEEDS) + 0.001 * (number % SEEDS)


def ids_of(runs: int) -> list[str]:
    """Return the ids of a number of runs, the oldest first."""
    return [f"{BEGUN + timedelta(minutes=number):%Y%m%d-%H%M%S}-point-{number}" for number in range(runs)]


def many_runs(folder: Path, runs: int) -> list[str]:
    """Write a number of finished runs of the dashboard into a folder; return their ids, the oldest first."""
    folder.mkdir(parents=True, exist_ok=True)
    document = _document()
    for number, id in enumerate(ids_of(runs)):
        run = folder / id
        (run / "out").mkdir(parents=True)
        values = {"rounds": 5, "seed": number % SEEDS + 1, "l2": 0.01, "rate": rate_of(number)}
        begun = BEGUN + timedelta(minutes=number)
        (run / DESCRIPTION).write_text(TEXT.format(**values))
        (run / NOTE).write_bytes(with_format(msgspec.json.encode(Note(f"point {number}", begun))))
        (run / ENDED).write_bytes(msgspec.json.encode(Ended(0, begun + timedelta(seconds=30))))
        _results(run / "out", document, values, accuracy_of(number))
    return ids_of(runs)


def _document() -> dict[str, Any]:
    raw = tomllib.loads(TEXT.format(rounds=5, seed=1, l2=0.01, rate=0.1))
    experiment = experiment_of(raw, name="points", folder=Path())
    return dict(msgspec.json.decode(msgspec.json.encode(experiment)))


def _results(out: Path, experiment: dict[str, Any], values: dict[str, Any], accuracy: float) -> None:
    (variant, setup) = next(iter(experiment["variants"].items()))
    setup["server"]["optimizer"]["rate"] = values["rate"]
    experiment["seeds"] = [values["seed"]]
    write_whole_bytes(out / EXPERIMENT, with_format(msgspec.json.format(msgspec.json.encode(experiment))))
    seed, rounds = values["seed"], values["rounds"]
    folder = f"runs/{variant}/seed-{seed}"
    write_units(out, [UnitNote(name=variant, baseline=False, seed=seed, fold=None, folder=folder, rounds=rounds)])
    write_summary(out, summary_of(**{variant: {seed: accuracy}}))


def write_summary(out: Path, summary: Summary) -> None:
    """Write the summary file of a run."""
    (out / "summary.json").write_bytes(with_format(msgspec.json.format(msgspec.json.encode(summary))))


def summary_of(**accuracies: dict[int, float]) -> Summary:
    """Return the summary of variants with these accuracies by seed; their other metrics have the same values."""
    seeds = tuple(next(iter(accuracies.values())))
    rows = {}
    for variant, by_seed in accuracies.items():
        found = band_of(list(by_seed.values()))
        metrics = {split: dict.fromkeys(METRICS, found) for split in SPLITS}
        rows[variant] = VariantSummary(runs=len(by_seed), rounds=Band(5.0, None, 1), metrics=metrics)
    return Summary(
        name="points",
        digest="0" * 64,
        seeds=seeds,
        metric="accuracy",
        split="test",
        shown=("accuracy", "auc"),
        best=max(rows, key=lambda variant: rows[variant].metrics["validation"]["accuracy"].mean or 0.0),
        notes=(),
        variants=rows,
        baselines={},
        level={},
        chosen_on="validation",
    )


def retell(run: Path, **accuracies: dict[int, float]) -> None:
    """Give a run these variants, with accuracies by seed; their settings differ only in the step size."""
    out = run / "out"
    note = msgspec.json.decode((out / EXPERIMENT).read_bytes())
    [setup] = note["variants"].values()
    note["seeds"] = list(next(iter(accuracies.values())))
    note["variants"] = {}
    for number, variant in enumerate(accuracies, 1):
        server = {**setup["server"], "optimizer": {**setup["server"]["optimizer"], "rate": float(number)}}
        note["variants"][variant] = {**setup, "server": server}
    write_whole_bytes(out / EXPERIMENT, msgspec.json.encode(note))
    write_summary(out, summary_of(**accuracies))


def band_of(values: list[float]) -> Band:
    """Return the band of values, computed independently."""
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return Band(mean, None, n)
    deviation = (sum((value - mean) ** 2 for value in values) / (n - 1)) ** 0.5
    return Band(mean, t_quantile(n - 1) * deviation / n**0.5, n)
