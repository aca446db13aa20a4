"""Writes the data for commands: a simulated study, the shipped studies, a study of few clients, a private line."""

import shutil
from pathlib import Path

import msgspec

from fedping.experiments.simulate import experiment_from_toml, simulate
from fedping.model_store import open_store
from fedping.protocol.study import Declared
from tests.golden.reading.commands import SHIPPED
from tests.golden.reading.common import command
from tests.golden.reading.private import NoNoise
from tests.golden.writing.common import FIRST_MS, WHEN, grown, line, play, stored, study
from tests.support.institutions import ARMS, tumours
from tests.support.model_pings import Said, land
from tests.support.private import CENTRAL, Privacy, private_study
from tests.support.private_rounds import land_private, private_crowd
from tests.support.small_experiment import experiment_file

ROOT = Path(__file__).parents[3]


def write(folder: Path) -> None:
    file = experiment_file(folder / "file", clients=300, iterations=3, ticks=2)
    simulate(*experiment_from_toml(file), folder / "simulated", threads=1)
    shutil.rmtree(folder / "file")
    institutions = msgspec.structs.replace(tumours(arms=ARMS, min_clients=2), enrolment="hash")
    hushed = private_study(4, privacy=Privacy(central=CENTRAL), name="hushed")
    plain = [study(name, [line("main")]) for name in ("paused", "ended")]
    store = stored(folder, institutions, hushed, *plain)
    for each in plain:
        grown(folder, each, rounds=1)
        store.studies.declare(each.name, Declared(state=each.name, since=WHEN, by="an operator", because="it is time"))
    for version in range(2):
        said = [
            Said(client=n, arm=arm, version=version, loss=1.0 + n / 8, examples=50 + n, confusion=(20, 5, 6, 19 + n))
            for n in range(3)
            for arm in ("hospitals", "held-out")
        ]
        land(folder / "landing", institutions, *said, landed_ms=FIRST_MS + 100 * version)
    open_store(folder / "store").studies.declare(
        "hushed", Declared(state="running", since=WHEN, simulated=True, by="golden")
    )
    for number in range(2):
        crowd = private_crowd(hushed, 40, seed=number, version=number)
        land_private(folder / "landing", hushed, crowd, iteration=number, at_ms=FIRST_MS + number)
        play(folder, "hushed", "main", noise=NoNoise(number))
    (folder / "shipped").mkdir()
    for name in SHIPPED:
        copy = shutil.copy(ROOT / "experiments" / f"{name}.toml", folder / "shipped")
        code, _, err = command("study", "create", copy, "--store", folder / "shipped" / "store")
        assert code == 0, err
