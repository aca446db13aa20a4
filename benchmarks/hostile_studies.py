"""Cost of hostile clients in the shipped studies: the loss with 1 client, 1 % and 5 % of them, after 15 and 40 rounds.

    python -m benchmarks.hostile_studies [--out FILE] [--study NAME] [--hostile "5 %"] [--attack NAME] [--users 200]
        [--seeds 5]
    python -m benchmarks.hostile_studies --table FILE

A study file is read as by `fedping study create`, which fills in safe defaults. Its line learns from synthetic users in
memory, with one ping per client and round; for the private study, signs are summed without noise. Users of the studies
of 2018 choose pages by the weights of firefox_study.toml, all other users by the models' reference weights. Each run
appends a line of JSON to the file of ``--out``, and is skipped if it is already there; ``--table`` prints the tables of
docs/robustness.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from benchmarks.robustness import losses_of
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.settings.experiment import experiment_of
from fedping.protocol.study import study_from_toml

FOLDER = Path(__file__).parents[1] / "experiments"

CLEAN = "nobody"
ROUNDS = (15, 40)
STUDIES = (
    "demo.toml",
    "firefox.toml",
    "linear_defended.toml",
    "private_study.toml",
    "firefox_2018.toml",
    "linear.toml",
)
"""The shipped studies; the last two are the original ones, without defences."""

DRAGGED = {
    "frecency-2018": {"typedVisitBonus": 0, "bookmarkVisitBonus": 0},
    "linear-15": {"typedFirstBucket": 0, "bookmarkFirstBucket": 0},
}
"""Weights with large true values, by model, and the values that an attack drags them to."""

DRIVEN = {"frecency-2018": {"typedVisitBonus": 20_000}, "linear-15": {"typedFirstBucket": 2_000}}
"""Weights that an attack drives far above their true values, by model."""

ATTACKS: dict[str, dict[str, Any]] = {
    "others' mean turned around, × 10⁹": {"attack": "inner_product", "epsilon": 1e9},
    "own update turned around, × 10⁶": {"attack": "sign_flip", "scale": 1e6},
    "two weights dragged to 0, × 10⁹": {"attack": "target_weights", "scale": 1e9, "weights": DRAGGED},
    "one weight driven off, × 10⁹": {"attack": "target_weights", "scale": 1e9, "weights": DRIVEN},
    "10⁹ in every weight": {"attack": "constant", "value": 1e9},
    "-10⁹ in every weight": {"attack": "constant", "value": -1e9},
    "own update × 10⁹": {"attack": "scale", "scale": 1e9},
    "noise of 10⁹": {"attack": "noise", "deviation": 1e9},
    "the last step again": {"attack": "free_rider", "sends": "last_difference"},
    '"a little is enough", z = 1.5': {"attack": "little_is_enough", "z": 1.5},
    "wrong choices learned": {"attack": "label_flip"},
}
"""Attacks by name; their weights are given by model."""

HOSTILE: dict[str, dict[str, Any]] = {"1 client": {"clients": 1}, "1 %": {"share": 0.01}, "5 %": {"share": 0.05}}
"""Numbers of hostile clients, by name."""


def setup_of(file: str, hostile: str, attack: str, users: int, **server: Any) -> Setup:
    """Return a run's settings: the line of a study file, with a new study's defaults, under an attack.

    Args:
        file: name of the study file.
        hostile: number of attacking clients; ignored for :data:`CLEAN`.
        attack: the name of the attack.
        users: the number of users.
        server: settings of the pipeline that replace the study's.
    """
    study = study_from_toml(FOLDER / file, new=True)
    [line] = study.lines
    spec = line.spec
    pipeline = to_builtins(line.pipeline)
    if line.privacy is not None:  # a client's vector has a sign for each weight
        pipeline["aggregate"] = {"by": "mean_of_signs"}
    raw = {
        "rounds": max(ROUNDS),
        "model": {
            "name": spec.model,
            "margin": spec.margin,
            "epsilon": spec.epsilon,
            "integer": bool(spec.integer.any()),
            "start": [weight.start for weight in spec.weights],
            "step": [weight.step for weight in spec.weights],
            "constraints": spec.constraints,
        },
        "data": {"users": users, "judges": 200, "population": _population(file)},
        "training": line.training,
        "server": {**pipeline, "min_clients": 1, **server},
        "evaluation": {"every": 5, "metric": "loss", "baselines": []},
    }
    if attack != CLEAN:
        settings = ATTACKS[attack] | HOSTILE[hostile]
        if "weights" in settings:
            settings["weights"] = settings["weights"][spec.model]
        raw["attack"] = settings
    [setup] = experiment_of(_said(raw), name=study.name, folder=FOLDER).variants.values()
    return setup


def _population(file: str) -> dict[str, Any]:
    """Return users' preferences: those of firefox_study.toml for its model, else the model's reference weights."""
    if not file.startswith(("firefox", "private")):
        return {}
    return {"true_weights": tomllib.loads((FOLDER / "firefox_study.toml").read_text())["users"]["true_weights"]}


def _said(value: Any) -> Any:
    """Return settings in the form of a file, without values of None."""
    built = to_builtins(value)
    if isinstance(built, dict):
        return {key: _said(each) for key, each in built.items() if each is not None}
    return [_said(each) for each in built] if isinstance(built, list | tuple) else built


def cells(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield pairs of the number of hostile clients and their attack, beginning with no attack."""
    yield CLEAN, CLEAN
    for hostile in options.hostile or HOSTILE:
        for attack in options.attack or ATTACKS:
            yield hostile, attack


def run_all(options: argparse.Namespace) -> None:
    done = {key_of(row) for row in read(options.out)}
    for study in options.study or STUDIES:
        for seed in range(1, options.seeds + 1):
            problem = prepare(setup_of(study, CLEAN, CLEAN, options.users), seed, None)
            for hostile, attack in cells(options):
                row: dict[str, Any] = {"study": study, "users": options.users, "seed": seed}
                row |= {"hostile": hostile, "attack": attack}
                if key_of(row) not in done:
                    row["losses"] = losses_of(setup_of(study, hostile, attack, options.users), problem, seed)
                    with options.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("study", "users", "seed", "hostile", "attack"))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def tables(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield Markdown tables: the worst attack by study and number of hostile clients, and each attack with 5 %."""
    losses: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for row in rows:
        losses.setdefault((row["study"], row["hostile"], row["attack"]), []).append(row["losses"])
    means = {
        key: {after: statistics.mean(each[str(after)] for each in found) for after in (0, *ROUNDS)}
        for key, found in losses.items()
    }
    there = [study for study in STUDIES if (study, CLEAN, CLEAN) in means]

    def told(study: str, key: tuple[str, str, str], after: int) -> str:
        clean, start = means[study, CLEAN, CLEAN][after], means[study, CLEAN, CLEAN][0]
        return f"{means[key][after]:,.1f} ({(means[key][after] - clean) / (start - clean):.0%})"

    yield "| study | hostile | " + " | ".join(f"{after} rounds | attack" for after in ROUNDS) + " |"
    yield "|---" * (2 + 2 * len(ROUNDS)) + "|"
    for study in there:
        clean = means[study, CLEAN, CLEAN]
        yield f"| `{study}`, {clean[0]:,.1f} | nobody | " + " | ".join(f"{clean[n]:,.1f} | " for n in ROUNDS) + "|"
        for hostile in HOSTILE:
            keys = [key for key in means if key[:2] == (study, hostile)]
            if keys:
                worst = [max(keys, key=lambda key, n=n: means[key][n]) for n in ROUNDS]
                cells = (f"{told(study, key, n)} | {key[2]}" for key, n in zip(worst, ROUNDS, strict=True))
                yield f"| | {hostile} | " + " | ".join(cells) + " |"
    yield ""
    yield "| 5 % | " + " | ".join(f"`{study}`" for study in there) + " |"
    yield "|---" * (1 + len(there)) + "|"
    for attack in ATTACKS:
        keys = [(study, "5 %", attack) for study in there]
        cells = (" / ".join(told(k[0], k, n) for n in ROUNDS) if k in means else "" for k in keys)
        yield f"| {attack} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("hostile_studies.jsonl"))
    parser.add_argument("--study", action="append", choices=STUDIES)
    parser.add_argument("--hostile", action="append", choices=HOSTILE)
    parser.add_argument("--attack", action="append", choices=ATTACKS)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table:
        print("\n".join(tables(read(options.table))))
    else:
        run_all(options)
