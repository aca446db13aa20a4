"""Strength and cost of defences: the loss of the demo's model by attack and defence, and each defence's cost.

    python -m benchmarks.robustness [--out FILE] [--users 200] [--rounds 15] [--seeds 3] [--hostile "1 client"]
        [--attack NAME] [--defence NAME]
    python -m benchmarks.robustness --table FILE
    python -m benchmarks.robustness --cost [--users 200 --users 4000]

`experiments/attacks.toml` has the model, its step sizes and the users; rounds are computed in memory. Each run appends
a line of JSON to the file of `--out`, and is skipped if it is already there; `--table` prints a file's tables. `--cost`
measures a round of each defence on random updates, without the clients' own work: its CPU time, the median of five, and
the growth of the process' memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedping.experiments.laboratory.attacking import Attacker
from fedping.experiments.laboratory.cohort import Cohorts
from fedping.experiments.laboratory.preparing import Problem, prepare
from fedping.experiments.laboratory.results import MetricLog
from fedping.experiments.laboratory.rounds import open_rounds
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.experiment import experiment_of
from fedping.experiments.laboratory.settings.merging import Raw, merged
from fedping.experiments.laboratory.training import Observers, train
from fedping.protocol.landing import shard_of
from fedping.server_jobs.optimize import first_state
from fedping.server_jobs.round import ArrayRound

BASE = Path(__file__).parents[1] / "experiments" / "attacks.toml"

CLEAN = "nobody"

ATTACKS: dict[str, Raw] = {
    "sign flip": {"attack": "sign_flip"},
    "sign flip × 1e6": {"attack": "sign_flip", "scale": 1e6},
    "sign flip × 1e9": {"attack": "sign_flip", "scale": 1e9},
    "scale × 1e9": {"attack": "scale", "scale": 1e9},
    "inner product × 1e9": {"attack": "inner_product", "epsilon": 1e9},
    "inner product × 20": {"attack": "inner_product", "epsilon": 20},
    "a little is enough": {"attack": "little_is_enough"},
    "a little, z = 1.5": {"attack": "little_is_enough", "z": 1.5},
    "constant 1e9": {"attack": "constant", "value": 1e9},
    "noise of 1e9": {"attack": "noise", "deviation": 1e9},
    "target weights": {
        "attack": "target_weights",
        "scale": 1e9,
        "weights": {"typedVisitBonus": 0, "bookmarkVisitBonus": 0},
    },
    "drive a weight off": {"attack": "target_weights", "scale": 1e9, "weights": {"typedVisitBonus": 20_000}},
    "label flip": {"attack": "label_flip"},
    "last difference": {"attack": "free_rider", "sends": "last_difference"},
    "zeros": {"attack": "free_rider"},
}
"""Attacks by name."""

HOSTILE: dict[str, Raw] = {
    "1 client": {"clients": 1},
    "1 %": {"share": 0.01},
    "10 %": {"share": 0.1},
    "25 %": {"share": 0.25},
    "as many ids": {"invented": 1},
}
"""Numbers of hostile clients, by name."""

DEFENCES: dict[str, Raw] = {
    "none": {},
    "default": {
        "clip": {"by": "quantile", "units": "step", "multiple": 0.1},
        "optimizer": {"optimizer": "rprop", "quorum": {"decides": 0.015, "hastens": 0.1, "slows": 0.9}},
    },
    "clip": {"clip": {"by": "quantile", "units": "step", "multiple": 0.1}},
    "clip, median by step": {"clip": {"by": "quantile", "units": "step"}},
    "clip, one norm": {"clip": {"by": "quantile"}},
    "signs": {"aggregate": {"by": "mean_of_signs"}},
    "median": {"aggregate": {"by": "median"}},
    "trimmed mean": {"aggregate": {"by": "trimmed_mean", "share": 0.15}},
    "geometric median": {"aggregate": {"by": "geometric_median"}},
    "Krum": {"aggregate": {"by": "krum", "hostile": 0.3}},
    "multi-Krum": {"aggregate": {"by": "krum", "hostile": 0.3, "keep": 100}},
    "centered clip": {"aggregate": {"by": "centered_clip", "radius": 1.0}},
    "buckets, median": {"aggregate": {"by": "median"}, "bucketing": 2},
}
"""Defences as settings of [server], by name."""


def setup_of(attack: Raw | None, defence: Raw, users: int, rounds: int) -> Setup:
    """Return a run's settings: those of the file, with an attack and a defence."""
    raw = tomllib.loads(BASE.read_text())
    for name in ("variants", "seeds"):
        raw.pop(name)
    changes: Raw = {
        "rounds": rounds,
        "data": {"users": users},
        "server": defence,
        "evaluation": {"every": 5, "baselines": []},
    }
    if attack is not None:
        changes["attack"] = attack
    [setup] = experiment_of(merged(raw, changes), name="robustness", folder=BASE.parent).variants.values()
    return setup


def losses_of(setup: Setup, problem: Problem, seed: int) -> dict[int, float]:
    """Return the loss on the test searches after every fifth round, by the number of rounds."""
    return figures_of(setup, problem, seed, "loss")


def figures_of(setup: Setup, problem: Problem, seed: int, metric: str) -> dict[int, float]:
    """Return a metric on the test data by the number of rounds."""
    log = MetricLog("", seed, None)
    attacker = Attacker(setup.attack, setup, problem) if setup.attack else None
    cohorts = Cohorts(setup, problem, attacker=attacker)
    with tempfile.TemporaryDirectory() as folder, open_rounds(setup, problem, Path(folder)) as rounds:
        train(setup, problem, rounds, cohorts.sent, log, Observers(attacker=attacker))
    told = log.table().to_pylist()
    return {row["round"]: row["value"] for row in told if (row["split"], row["metric"]) == ("test", metric)}


def cells(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield pairs of the number of hostile clients and their attack, beginning with no attack."""
    yield CLEAN, CLEAN
    for hostile in options.hostile or HOSTILE:
        for attack in options.attack or ATTACKS:
            yield hostile, attack


def run_all(options: argparse.Namespace) -> None:
    done = {key_of(row) for row in read(options.out)}
    for users in options.users or [200]:
        for seed in range(1, options.seeds + 1):
            problem = prepare(setup_of(None, {}, users, 1), seed, None)
            for hostile, attack in cells(options):
                for defence in options.defence or DEFENCES:
                    row = {"users": users, "rounds": options.rounds, "seed": seed, "hostile": hostile}
                    row |= {"attack": attack, "defence": defence}
                    if key_of(row) in done:
                        continue
                    told = None if attack == CLEAN else ATTACKS[attack] | HOSTILE[hostile]
                    began = time.process_time()
                    setup = setup_of(told, DEFENCES[defence], users, options.rounds)
                    row["losses"] = losses_of(setup, problem, seed)
                    row["seconds"] = round(time.process_time() - began, 2)
                    with options.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")


def cost_of(defence: str, users: int) -> tuple[float, float]:
    """Return the median CPU seconds of a round, and the memory of rounds in MiB."""
    setup = setup_of(None, DEFENCES[defence], users, 1)
    line = setup.line(prepare(setup_of(None, {}, 20, 1), 1, None).spec)
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 256, (users, 16), np.uint8)
    updates = rng.standard_cauchy((users, line.spec.m)).astype(np.float32)
    shards, ones = shard_of(ids), np.ones(users, np.int64)
    exact, state = line.spec.start_array, first_state(line)
    before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(6):  # the first one has no clip bound, and warms up
        began = time.process_time()
        round_ = ArrayRound(line, state)
        round_.add(shards, updates, examples=ones, pings=ones, clients=ids)
        exact, state = round_.stepped(exact, state, b"key")
        seconds.append(time.process_time() - began)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return statistics.median(seconds[1:]), grown / 1024


def show_costs(sizes: Sequence[int]) -> None:
    print("| defence | " + " | ".join(f"{users:,} clients" for users in sizes) + " |")
    print("|---" * (len(sizes) + 1) + "|")
    for defence in DEFENCES:
        told = []
        for users in sizes:
            command = [sys.executable, "-m", "benchmarks.robustness", "--cost-of", defence, "--users", str(users)]
            result = subprocess.run(command, capture_output=True, text=True)
            told.append(result.stdout.strip() if result.returncode == 0 else "too many")
        print(f"| {defence} | " + " | ".join(told) + " |", flush=True)


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("users", "rounds", "seed", "hostile", "attack", "defence"))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def tables(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a Markdown table for each number of users and of rounds, with a row per attack and a column per defence."""
    for users, rounds in sorted(
        {(row["users"], after) for row in rows for after in (15, 50) if row["rounds"] >= after}
    ):
        means: dict[tuple[str, str, str], dict[int, float]] = {}
        for row in rows:
            if row["users"] == users and str(rounds) in row["losses"]:
                cell = means.setdefault((row["hostile"], row["attack"], row["defence"]), {})
                cell[row["seed"]] = row["losses"][str(rounds)]
        defences = [name for name in DEFENCES if any(key[2] == name for key in means)]
        yield f"\n{users:,} users, loss after {rounds} rounds\n"
        yield "| hostile | attack | " + " | ".join(defences) + " | seeds |"
        yield "|---" * (len(defences) + 3) + "|"
        for hostile in (CLEAN, *HOSTILE):
            for attack in (CLEAN, *ATTACKS):
                found = [means.get((hostile, attack, defence)) for defence in defences]
                if any(found):
                    seeds = sorted({len(each) for each in found if each})
                    told = [f"{statistics.mean(each.values()):,.0f}" if each else "" for each in found]
                    yield f"| {hostile} | {attack} | " + " | ".join(told) + f" | {'-'.join(map(str, seeds))} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("robustness.jsonl"))
    parser.add_argument("--users", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hostile", action="append", choices=HOSTILE)
    parser.add_argument("--attack", action="append", choices=ATTACKS)
    parser.add_argument("--defence", action="append", choices=DEFENCES)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--cost-of", choices=DEFENCES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cost_of:
        seconds, grown = cost_of(options.cost_of, options.users[0])
        print(f"{1000 * seconds:,.1f} ms, {grown:,.0f} MiB")
    elif options.cost:
        show_costs(options.users or [200, 4000])
    elif options.table:
        print("\n".join(tables(read(options.table))))
    else:
        run_all(options)
