"""Writes the state of institutions that protect their rows: folders, some with a ping, and ledgers."""

import contextlib
import json
import shutil
from pathlib import Path

import msgspec

from fedping.client_sim.joining.ledger import Ledger, OtherWeights, Release, ledger_of
from tests.golden.reading.common import command
from tests.golden.reading.protected import INSTITUTIONS, join_options
from tests.golden.reading.server import serving
from tests.golden.writing.common import land, play, stored
from tests.support.institutions import ARMS, agreed, tables, tumours

FEWER = 12
"""Number of rows removed from a table since it was declared."""


def write(folder: Path) -> None:
    studies = [
        tumours(min_clients=1),
        msgspec.structs.replace(tumours(arms=ARMS, min_clients=1), name="held", enrolment="hash"),
    ]
    stored(folder, *studies)
    for each in studies:
        for number in range(2):
            land(folder / "landing", each, "main", number, clients=40)
            play(folder, each.name, "main")
    shutil.rmtree(folder / "landing")
    for name, table in zip(INSTITUTIONS, tables(folder, len(INSTITUTIONS)), strict=True):
        shutil.move(table, folder / f"{name}.csv")
    agreed(folder / "columns.toml")
    for name in INSTITUTIONS:
        _join(folder, name)
    with serving(folder / "store", newest=1, status=503) as server:
        code, _, err = command("join", server.url, *join_options(folder, "waiting"), "--for", "2s")
        assert code == 75, err
    assert json.loads((folder / "waiting" / "waiting.json").read_bytes())["version"] == 1
    code, _, err = command("join", "ledger", folder / "changed.csv", "--restored")
    assert code == 0, err
    lines = (folder / "changed.csv").read_text().splitlines(keepends=True)
    (folder / "changed.csv").write_text("".join(lines[:-FEWER]))
    _every_kind(folder)


def _join(folder: Path, name: str) -> None:
    with serving(folder / "store", newest=0) as server:
        first = ["--epsilon", "2", "--versions", "8", "--rounds", "1"]
        code, _, err = command("join", server.url, *join_options(folder, name), *first)
        assert code == 0, err


def _every_kind(folder: Path) -> None:
    """Write a ledger with every kind of entry, beginning with a user's declaration of an earlier spent budget."""
    table = folder / "told.csv"
    shutil.copy(folder / "waiting.csv", table)
    code, _, err = command("join", "ledger", table, "--spent", "0.5", "--epsilon", "3")
    assert code == 0, err
    ledger: Ledger = ledger_of(table)
    ledger.take_table([bytes([number]) for number in range(50)])
    release = Release(study="s", line="main", role="training", version=3, weights="a" * 64, terms="b" * 64, cost=0.01)
    ledger.charge(release, known=1)
    held_out = msgspec.structs.replace(release, role="evaluation", study="t", division="c" * 64)
    ledger.charge(held_out)
    ledger.charge(msgspec.structs.replace(held_out, role="training", cost=0.02))
    with contextlib.suppress(OtherWeights):
        ledger.charge(msgspec.structs.replace(release, weights="d" * 64))
    ledger.open(4.0, 1e-3, 50)
    kinds = {entry.what for entry in ledger.read().entries}
    assert kinds == {"opened", "stated", "restored", "table", "lost", "release", "refused", "budget"}, kinds
