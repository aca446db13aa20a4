"""Writes lines whose guard has held, released, discarded, staged or withdrawn a version, or rolled the line back."""

from pathlib import Path
from uuid import UUID

import numpy as np

from fedping.model_store import open_store
from fedping.model_store.decisions import discard, release
from fedping.protocol.enrolment import staged_for
from fedping.protocol.guard import Guard, Guardrail, Stage
from fedping.protocol.limits import Limits
from tests.golden.writing.common import WHEN, ids, land, line, play, stored, study

GUARD = Guard(rounds=3, window=4, floors=True)
STAGED = Guard(rounds=50, window=50, stage=Stage(share=0.5, clients=5, most=1.25))
RAILED = Guard(rounds=50, window=50, guardrail=Guardrail(most=1.25, rounds=2))
LINES = (
    line("held", guard=GUARD),
    line("released", guard=GUARD),
    line("discarded", guard=GUARD),
    line("judged", guard=GUARD),
    line("staged", guard=STAGED),
    line("promoted", guard=STAGED),
    line("withdrawn", guard=STAGED),
    line("given-up", guard=STAGED),
    line("heard", guard=STAGED),
    line("railed", guard=RAILED),
    line("about-to-fall", guard=RAILED),
)
LOUD = np.full((1, 4), 1e20, np.float32)


def write(folder: Path) -> None:
    made = study("guarded", LINES, limits=Limits(loss=(0.0, 10.0)))
    store, landing = stored(folder, made), folder / "landing"
    for name in ("held", "released", "discarded", "judged"):
        for number in range(4):
            land(landing, made, name, number, at=number)
            play(folder, "guarded", name)
        land(landing, made, name, 4, at=4)
        if name != "judged":
            land(landing, made, name, 4, at=5, crowd="loud", clients=1, updates=LOUD)
            play(folder, "guarded", name, "held")
    release(store, "guarded", "released", created=WHEN)
    discard(store, "guarded", "discarded", created=WHEN, code_version="golden")
    for name in ("released", "discarded"):
        land(landing, made, name, 5, at=6)
    # one that is held all by its next round
    land(landing, made, "judged", 4, at=7, crowd="many", clients=60)
    for name in ("staged", "promoted", "withdrawn", "given-up", "heard"):
        land(landing, made, name, 0, clients=40)
        play(folder, "guarded", name, "staged")
        if name != "staged":
            heard(folder, made, name, worse=name == "withdrawn")
    play(folder, "guarded", "promoted")
    play(folder, "guarded", "withdrawn", "withdrawn")
    discard(open_store(folder / "store"), "guarded", "given-up", created=WHEN, code_version="golden")
    land(landing, made, "promoted", 1, at=9)
    land(landing, made, "withdrawn", 2, at=9)
    land(landing, made, "given-up", 2, at=9)
    for name in ("railed", "about-to-fall"):
        for number in range(4):
            worse = number > 1
            land(landing, made, name, number, at=number, losses=(6.0, 2.0) if worse else (2.0, 2.0))
            if number < 3:
                play(folder, "guarded", name)
    play(folder, "guarded", "railed", "rolled_back")
    land(landing, made, "railed", store.lines.newest("guarded", "railed"), at=9)


def heard(folder: Path, made, name: str, worse: bool) -> None:
    """Land the reports on a staged version, by the clients that get it first and by the others."""
    who = ids("client", "guarded", name, f"{name}-trains", "", k=40)
    first = [staged_for("guarded", name, 1, 0.5, str(UUID(bytes=each.tobytes()))) for each in who]
    losses = (8.0 if worse else 1.0, 1.0)
    land(folder / "landing", made, name, 1, at=1, clients=40, losses=losses, only=np.array(first))
    land(folder / "landing", made, name, 0, at=2, clients=40, only=~np.array(first))
