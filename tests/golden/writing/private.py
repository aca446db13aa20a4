"""Writes private lines of all kinds, and two-server lines with their helpers' folders, each after two rounds.

The noise of `tests/golden/reading/private.py` protects no client, so the studies are declared as simulated.
"""

from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from fedping.client_sim.privacy import Chance, Contributor
from fedping.helper.folder import back_up, make_helper, open_folder
from fedping.protocol.pipeline import GradientDescent, Pipeline, RProp
from fedping.protocol.privacy import Central, ClippedFlat, LocalGaussian, OneSign, Privacy, Signs
from fedping.protocol.study import Declared, Study
from tests.golden.reading.private import KEY, NoNoise, Way
from tests.golden.writing.common import FIRST_MS, WHEN, eighths, play, stored
from tests.support.private import private_study
from tests.support.private_rounds import PrivatePing, land_private, private_crowd
from tests.support.shared_rounds import shared_line

CENTRAL = Central(epsilon=3, delta=1e-6, rounds=5, population=1000, noise_multiplier=4.0)
KINDS = {
    "central": Privacy(central=CENTRAL),
    "sampled": Privacy(central=msgspec.structs.replace(CENTRAL, epsilon=8, sampling=0.5, noise_multiplier=1.5)),
    "clipped": Privacy(central=CENTRAL, contribution=ClippedFlat(norm=2.0), left_out=("w1",), loss=(-1.0, 3.0)),
    "local": Privacy(local=OneSign(epsilon=4)),
    "gaussian": Privacy(local=LocalGaussian(epsilon=8, delta=1e-6), contribution=ClippedFlat(norm=2.0)),
    "kept": Privacy(central=CENTRAL),
    "spent": Privacy(central=msgspec.structs.replace(CENTRAL, rounds=2)),
}


def write(folder: Path) -> None:
    studies = {name: of(name, privacy) for name, privacy in KINDS.items()}
    shared = {
        "shared": shared_line(folder, name="shared", central=CENTRAL),
        "bare": shared_line(folder, name="bare", helper=make_helper(folder / "helper-bare"), seal="mlkem768-x25519"),
        "proven": shared_line(folder, name="proven", helper=make_helper(folder / "helper-proven"), proofs=True),
    }
    store = stored(folder, *studies.values(), *(each.study for each in shared.values()))
    for name in (*studies, *shared):
        store.studies.declare(name, Declared(state="running", since=WHEN, simulated=True, by="golden"))
    for name, made in studies.items():
        for number in range(3):
            for arm, clients in (("treatment", 30), ("control", 20)):
                crowd = sent(made, clients, number, arm)
                at = FIRST_MS + 100 * number + clients
                land_private(folder / "landing", made, crowd, iteration=number, at_ms=at)
            if number < 2:
                noise, key = NoNoise(number), KEY if name == "sampled" else None
                play(folder, name, "main", noise=noise, keep=name == "kept", privacy_key=key)
    for name, line in shared.items():
        helper = folder / ("helper" if name == "shared" else f"helper-{name}")
        for number in range(3):
            for arm, clients in (("treatment", 12), ("control", 8)):
                crowd = line.crowd(clients, seed=1, arm=arm, version=number)
                at = FIRST_MS + 100 * number + clients
                land_private(folder / "landing", line.study, crowd, iteration=number, at_ms=at)
            if number < 2:
                play(folder, name, "main", noise=NoNoise(number), privacy_key=KEY, helper=Way(helper, NoNoise(7)))
        back_up(open_folder(helper), folder / f"backup-{name}")
        if name == "shared":  # its request is kept, and waits for the answer
            play(folder, name, "main", "asked", noise=NoNoise(2), privacy_key=KEY)


def sent(study: Study, clients: int, number: int, arm: str) -> list[PrivatePing]:
    """Return the pings of an arm's clients for a version: their vectors, with local noise if the line has it."""
    crowd = private_crowd(study, clients, seed=number, version=number, arm=arm)
    line = study.lines[0]
    if line.privacy is None or line.privacy.local is None:
        return crowd
    rng = np.random.default_rng([number, clients])
    updates, nothing = eighths(rng, clients, line.spec.m).astype(float), np.zeros(clients)
    chances = (Chance(Random(1000 * number + k).randbytes) for k in count(clients))
    vectors = Contributor(line.privacy, line.spec).vectors(updates, nothing, nothing, chances)
    payloads = (vector.astype("<i4").tobytes() for vector in vectors)
    return [replace(ping, payload=payload) for ping, payload in zip(crowd, payloads, strict=True)]


def of(name: str, privacy: Privacy) -> Study:
    """Return a study with one private line."""
    made = private_study(4, privacy=privacy, name=name)
    optimizer = RProp() if isinstance(privacy.contribution, Signs) else GradientDescent(rate=0.5)
    line = msgspec.structs.replace(made.lines[0], pipeline=Pipeline(min_clients=1, optimizer=optimizer))
    return msgspec.structs.replace(made, lines=(line,))
