"""Writes clients' state: state files of fleets after two versions, and folders of `fedping join`, some with a ping."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec

from fedping.client_sim.learning import model_spec
from fedping.model_store import open_store
from fedping.protocol.personalization import FineTune, Vector
from fedping.protocol.pipeline import GradientDescent, Pipeline
from fedping.protocol.privacy import Central, Privacy
from fedping.protocol.spec import Step
from fedping.protocol.study import Arm, Declared, Line, Study
from fedping.protocol.training import LocalSteps, Training
from tests.golden.reading.clients import FLEETS, INSTITUTIONS, fleet_options, join_options
from tests.golden.reading.common import command
from tests.golden.reading.private import NoNoise
from tests.golden.reading.server import serving
from tests.golden.writing.common import FIRST_MS, WHEN, land, play, stored
from tests.support.institutions import ARMS, agreed, tables, tumours
from tests.support.laboratory import small
from tests.support.private_rounds import land_private, private_crowd

ROWS = Step(start=0.1, min=1e-6, max=50.0)


def training(**settings: Any) -> Training:
    """Return the training by an extension, as named in a file."""
    [setup] = small(training=settings).variants.values()
    return setup.training


def learning(name: str, how: Training, personal: bool = False, **more: Any) -> Study:
    """Return a study of logistic regression with four features."""
    spec = model_spec("logistic-regression", {"features": 4}, name=name, step=ROWS, training=how)
    line = Line(name="main", spec=spec, training=how, **more)
    line = msgspec.structs.replace(line, pipeline=Pipeline(optimizer=GradientDescent(), min_clients=2))
    arms = (
        Arm(name="treatment", share=0.75, line="main", applies=True, submits=True, personal=personal),
        Arm(name="control", share=0.25, line="main"),
    )
    pings = "model-update" if line.privacy is None else "private-update"
    return Study(name=name, pings=pings, enrolment="hash", arms=arms, lines=(line,))


def write(folder: Path) -> None:
    corrected = training(algorithm="scaffold", rate=0.25, epochs=1)
    vector = LocalSteps(rate=0.25, steps=2, personal=Vector(rate=0.25, from_version=0))
    kept = training(algorithm="feddyn", rate=0.25, steps=2, alpha=0.5)
    spec = model_spec("logistic-regression", {"features": 30}, name="tumours", step=ROWS, training=kept)
    studies = [
        learning("tuned", LocalSteps(rate=0.25, steps=2, personal=FineTune(rate=0.5, steps=2)), personal=True),
        learning("corrected", corrected),
        learning("mixed", training(algorithm="apfl", rate=0.25, steps=2), personal=True),
        learning("learned", vector, personal=True),
        tumours(min_clients=1),
        msgspec.structs.replace(tumours(arms=ARMS, min_clients=1), name="held", enrolment="hash"),
        msgspec.structs.replace(tumours(min_clients=1, training=kept, spec=spec), name="kept"),
    ]
    central = Central(epsilon=3, delta=1e-6, rounds=5, population=1000, noise_multiplier=4.0)
    privacy = Privacy(central=central, delay_minutes=0.0, contributions=2)
    tuned = LocalSteps(rate=0.25, steps=2, personal=FineTune(rate=0.5, steps=2))
    hushed = learning("hushed", tuned, personal=True, privacy=privacy)
    stored(folder, *studies, hushed)
    for each in studies:
        for number in range(2):
            land(folder / "landing", each, "main", number, clients=40)
            play(folder, each.name, "main")
    train_privately(folder, hushed)
    shutil.rmtree(folder / "landing")
    for study in FLEETS:
        for number in range(2):
            with serving(folder / "store", newest=number) as server:
                state = folder / f"{study}.sqlite"
                words = ["fleet", server.url, *fleet_options(study, number), "--client-state", state]
                code, _, err = command(*words)
                assert code == 0, err
    shutil.move(tables(folder)[0], folder / "rows.csv")
    for other in folder.glob("hospital-*.csv"):
        other.unlink()
    agreed(folder / "columns.toml")
    for name in INSTITUTIONS:
        more = ["--hold-out", "0.25"] if name == "holding" else []
        with serving(folder / "store", newest=0) as server:
            code, _, err = command("join", server.url, *join_options(folder, name), *more, "--rounds", "1")
            assert code == 0, err
        if name in ("waiting", "keeping"):
            with serving(folder / "store", newest=1, status=503) as server:
                code, _, err = command("join", server.url, *join_options(folder, name), "--for", "2s")
                assert code == 75, err
            assert json.loads((folder / name / "waiting.json").read_bytes())["version"] == 1


def train_privately(folder: Path, hushed: Study) -> None:
    """Publish two versions of a private line."""
    open_store(folder / "store").studies.declare(
        "hushed", Declared(state="running", since=WHEN, simulated=True, by="golden")
    )
    for number in range(2):
        crowd = private_crowd(hushed, 20, seed=number, version=number)
        land_private(folder / "landing", hushed, crowd, iteration=number, at_ms=FIRST_MS + number)
        play(folder, "hushed", "main", noise=NoNoise(number))
