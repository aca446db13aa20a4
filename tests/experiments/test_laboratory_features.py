"""Models of features in the laboratory learn lists of a file, and rounds change weights as in the reference."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.client_sim.features import reference
from fedping.client_sim.features.reference import Shown
from fedping.experiments.laboratory.models import features_spec
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.experiments.laboratory.units import Unit
from fedping.protocol.errors import FedpingError

EXPERIMENT = """
rounds = 60
[model]
name = "features"
features = [
    { kind = "number", name = "price", spread = 10, missing = true },
    { kind = "category", name = "colour", values = ["red", "blue"], other = true },
    { kind = "category", name = "device", on = "query", values = ["phone", "desk"] },
    { kind = "cross", name = "device.price", of = ["device", "price"] },
    { kind = "hashed", name = "brand", buckets = 20 },
]
[data]
file = "lists.csv"
target = "chosen"
choice = "list"
client = "user"
[partition]
partition = "key"
[server]
weighting = "client"
optimizer = { optimizer = "gradient_descent", rate = 2.0 }
[evaluation]
local = true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write an experiment on lists of eight users, who choose by price, colour and brand, and by their device."""
    rng = np.random.default_rng(1)
    rows = ["user,list,price,colour,device,brand,chosen"]
    for number in range(240):
        device = ("phone", "desk")[number % 2]
        items = [
            (float(rng.uniform(0, 30)), str(rng.choice(["red", "blue", "green"])), f"brand {rng.integers(6)}")
            for _ in range(int(rng.integers(2, 6)))
        ]
        worth = [(colour == "red") - price / (10 if device == "phone" else 5) + (brand == "brand 3")
                 for price, colour, brand in items]  # fmt: skip
        for at, (price, colour, brand) in enumerate(items):
            said = "" if rng.random() < 0.1 else f"{price}"
            rows.append(f"u{number % 8},{number},{said},{colour},{device},{brand},{int(at == np.argmax(worth))}")
    (tmp_path / "lists.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "features.toml").write_text(EXPERIMENT)
    return tmp_path / "features.toml"


def run(file: Path, out: str, *changes: str, baseline: Any = None) -> tuple[Outcome, np.ndarray]:
    setup = experiment_from_toml(file, changes).variants["federated"]
    unit = Unit("features", baseline, setup, 1, None)
    outcome = run_unit(unit, file.parent / out)
    return outcome, np.load(unit.folder(file.parent / out).path / "last.npy")


def metric(outcome: Outcome, name: str) -> float:
    value = outcome.final["test"][name]
    assert value is not None
    return value


def test_clients_learn_to_rank_by_features_wherever_the_rounds_run(file: Path) -> None:
    in_memory, weights = run(file, "memory")
    start, _ = run(file, "start", baseline="start")
    assert metric(in_memory, "top_choice") > 0.75 > metric(start, "top_choice")
    assert (run(file, "files", "where=files")[1] == weights).all()


def lists_of_users(file: Path) -> list[list[Shown]]:
    """Return all lists of each user, in a client's form."""
    users: dict[str, dict[str, list[dict[str, str]]]] = {}
    for row in csv.DictReader((file.parent / "lists.csv").open()):
        users.setdefault(row["user"], {}).setdefault(row["list"], []).append(row)
    found = []
    for lists in users.values():
        found.append([])
        for rows in lists.values():
            items = [{**row, "price": float(row["price"]) if row["price"] else None} for row in rows]
            found[-1].append(Shown(items, items[0], [row["chosen"] for row in rows].index("1")))
    return found


MODELS = {
    "softmax": "model.loss=softmax",
    "hinge": "model.loss=hinge",
    "pairwise": "model.loss=pairwise",
    "places": "model.places=3",
    "hidden": "model.hidden=3",
    "differences": "model.gradient=finite_differences",
}


@pytest.mark.parametrize("changed", MODELS)
@pytest.mark.parametrize("optimizer", ["gradient_descent", "rprop", "adam"])
def test_one_round_moves_the_weights_as_the_reference_says(file: Path, changed: str, optimizer: str) -> None:
    settings = {
        "gradient_descent": 'server.optimizer={optimizer="gradient_descent", rate=0.5}',
        "rprop": 'server.optimizer={optimizer="rprop", alpha=2.0, beta=0.6}',
        "adam": 'server.optimizer={optimizer="adam", rate=0.01}',
    }
    bound = 'model.constraints=[{constraint="non_negative", weights=["price", "colour"]}]'
    changes = [MODELS[changed], settings[optimizer], bound, "rounds=1", "data.test=0.001", "evaluation.local=false"]
    setup = experiment_from_toml(file, changes).variants["federated"]
    spec = features_spec(setup.model)
    unit = Unit("features", None, setup, 1, None)
    run_unit(unit, file.parent / "out")
    weights = np.load(unit.folder(file.parent / "out").path / "last.npy")

    start = list(spec.start)
    users = lists_of_users(file)
    means = [np.mean([reference.update(spec, start, shown) for shown in lists], axis=0) for lists in users]
    mean = np.mean(means, axis=0)
    step = {
        "gradient_descent": 0.5 * mean,
        "rprop": 0.1 * np.sign(mean),
        "adam": 0.01 * np.sign(mean) * np.abs(mean) / (np.abs(mean) + 1e-8),
    }[optimizer]
    expected = np.array(start) + step
    bounded = spec.positions(("price", "colour"))
    expected[bounded] = np.maximum(expected[bounded], 0.0)
    certain = (np.abs(mean) > 1e-5) | (mean == 0)
    np.testing.assert_allclose(weights[certain], expected[certain], rtol=2e-4, atol=1e-7)


WAYS = {
    "local steps": 'training={algorithm="local", steps=3, rate=0.5}',
    "fine-tuning": 'training={algorithm="gradient", personal={by="fine_tune", rate=0.3}}',
    "vector": 'training={algorithm="gradient", personal={by="vector", rate=0.3}}',
    "levels": 'upload=[{link="levels", bits=4}]',
    "mask": 'upload=[{link="mask", keep=0.5}]',
    "signs": 'upload=[{link="sign"}]',
    "private": "privacy.central={epsilon=8.0, delta=1e-2, rounds=60, population=8, noise_multiplier=0.5}",
    "own noise": 'privacy.local={mechanism="one-sign", epsilon=8.0}',
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_training_and_sending_works_with_features(file: Path, way: str) -> None:
    changes = [WAYS[way], "rounds=3", "model.places=3", "model.hidden=2", "evaluation.local=false"]
    if way in ("signs", "private", "own noise"):
        changes.append('server.optimizer={optimizer="rprop"}')
    if way == "signs":
        changes.append('server.aggregate={by="mean_of_signs"}')
    _, weights = run(file, "out", *changes)
    spec = features_spec(experiment_from_toml(file, changes).variants["federated"].model)
    assert weights.shape == (spec.m,)
    assert (weights != spec.start_array).sum() > 5
    assert np.isfinite(weights).all()


def test_blocks_of_a_model_of_features_cannot_stay_with_clients(file: Path) -> None:
    personal = '{by="partly_local", local=["brand"], rate=0.3}'
    with pytest.raises(FedpingError, match="features"):
        run(file, "out", f'training={{algorithm="gradient", personal={personal}}}')


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["data.standardise=true"], "say themselves how they are prepared"),
        (['data={name="diabetes"}'], "learns from lists in a file"),
        (["model.loss=square"], "loss"),
        (["model.step={start=1.0,min=1.0,max=1.0}"], "step"),
        (["data.choice=nowhere"], "no column 'nowhere'"),
    ],
)
def test_what_does_not_go_with_features_is_said(file: Path, changes: list[str], said: str) -> None:
    with pytest.raises(FedpingError) as raised:
        run(file, "out", *changes)
    assert said in str(raised.value)
