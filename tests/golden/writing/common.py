"""Shared functions of the writers: studies of model updates, their pings, and rounds at a fixed time."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.model_store import ModelStore, open_store
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.landed_table import ModelPings, landed_model_updates
from fedping.protocol.landing import partition, write_landed
from fedping.protocol.pipeline import GradientDescent, Pipeline
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Arm, Line, Study
from fedping.protocol.update import Payloads
from fedping.protocol.upload import sending
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, RoundResult, run_round
from fedping.server_jobs.round.engine import NumpyEngine

WHEN = "2026-01-01T00:00:00.000+00:00"
FIRST_MS = 1_767_225_600_000
STEP = Step(start=1.0, min=0.125, max=4.0)


def weights(m: int, **more: Any) -> tuple[Weight, ...]:
    """Return m weights that start at 0, 1, 2, …"""
    return tuple(Weight(name=f"w{i}", start=float(i), step=STEP, **more) for i in range(m))


def line(name: str, spec: ModelSpec | None = None, m: int = 4, **settings: Any) -> Line:
    """Return a line; by default, of gradient descent with at least two clients."""
    of_line = {key: settings.pop(key) for key in list(settings) if key in Line.__struct_fields__}
    pipeline = Pipeline(**{"optimizer": GradientDescent(rate=0.5), "min_clients": 2, **settings})
    made = spec or ModelSpec(name=name, model="any", weights=weights(m))
    return Line(name=name, spec=made, pipeline=pipeline, **of_line)


def study(name: str, lines: Sequence[Line], **more: Any) -> Study:
    """Return a study of model updates in which each line has a training arm and another arm."""
    share = 1 / (2 * len(lines))
    arms = [
        arm
        for each in lines
        for arm in (
            Arm(name=f"{each.name}-trains", share=share, line=each.name, applies=True, submits=True),
            Arm(name=f"{each.name}-stays", share=share, line=each.name),
        )
    ]
    return Study(**{"name": name, "pings": "model-update", "arms": tuple(arms), "lines": tuple(lines), **more})


def stored(folder: Path, *studies: Study) -> ModelStore:
    """Make a store with studies at version 0."""
    store = open_store(folder / "store", create=True)
    for each in studies:
        store.create_study(each, first_versions(each, created=WHEN, code_version="golden"))
    return store


def ids(*parts: object, k: int) -> NDArray[np.uint8]:
    """Return k ids derived from ``parts``, shape (k, 16)."""
    made = [hashlib.sha256(f"{parts} {number}".encode()).digest()[:16] for number in range(k)]
    return np.frombuffer(b"".join(made), np.uint8).reshape(k, 16)


def eighths(rng: np.random.Generator, k: int, m: int) -> NDArray[np.float32]:
    """Return updates of whole eighths, whose sums are exact on every processor, shape (k, m)."""
    return (rng.integers(-16, 25, (k, m)) / 8).astype(np.float32)


def land(
    folder: Path,
    of: Study,
    name: str,
    version: int,
    *,
    at: int = 0,
    clients: int = 12,
    crowd: str = "",
    updates: NDArray[np.float32] | None = None,
    losses: tuple[float, float] = (1.0, 2.0),
    only: NDArray[np.bool_] | None = None,
) -> None:
    """Land pings of a line's two arms with a version; the arm without updates has half as many.

    Args:
        folder: the landing folder.
        of: the study.
        name: the line's name.
        version: the version that the clients hold.
        at: the landing time, in hours since the first; part of the file's name and of the document ids.
        clients: the number of training clients.
        crowd: a name for a separate group of clients; by default the same clients send for every version.
        updates: shape (clients, m); None draws them.
        losses: approximate losses of the training arm and of the other one.
        only: mask of the training clients that send, shape (clients,); then the other arm sends nothing. None: all.
    """
    the_line, rng = of.line(name), np.random.default_rng([version, at, len(name), clients])
    made = eighths(rng, clients, the_line.spec.m) if updates is None else updates
    ends = sending(the_line)
    keys = child_keys(root_key(version), np.arange(clients))
    for transform in ends.transforms:
        made = transform(made, keys).astype(np.float32)
    sent = made if ends.encode is None else Payloads(ends.encoding, ends.encode(made, keys))
    arms = [arm for arm in of.arms if arm.line == name]
    where = partition(folder, of.name, name, version)
    for number, (arm, loss) in enumerate(zip(arms, losses, strict=False)):
        k = clients if arm.submits else clients // 2
        pings = ModelPings(
            document_ids=ids("document", of.name, name, version, at, arm.name, crowd, k=k),
            client_ids=ids("client", of.name, name, arm.name, crowd, k=k),
            arm=arm.name,
            version=version,
            updates=sent if arm.submits else None,
            losses=loss + rng.integers(0, 16, k) / 16,
            examples=rng.integers(1, 40, k),
        )
        table = landed_model_updates(pings, FIRST_MS + 3_600_000 * at + number)
        if only is not None:
            if not arm.submits:
                continue
            table = table.filter(pa.array(only))
        ms = FIRST_MS + 3_600_000 * at + number
        token = hashlib.sha256(f"{name} {version} {at} {number} {crowd}".encode()).hexdigest()[:12]
        write_landed(where, table, ms, token=token)


def play(folder: Path, of: str, name: str, status: str = "published", when: str = WHEN, **more: Any) -> RoundResult:
    """Run a round at a fixed time, and check its status."""
    settings = {"clock": lambda: when, "code_version": "golden", **more}
    result = run_round(
        open_store(folder / "store"), folder / "landing", of, name, NumpyEngine(), RoundOptions(**settings)
    )
    assert result.status == status, result.sentence
    return result


def grown(folder: Path, of: Study, rounds: int = 3) -> None:
    """Publish a number of versions of every line of a study, and land pings of the newest."""
    for each in of.lines:
        for number in range(rounds + 1):
            rising = 0.25 * number if each.early_stopping is not None else 0.0
            land(folder / "landing", of, each.name, number, at=number, losses=(1.0 + rising, 2.0))
            if number < rounds:
                play(folder, of.name, each.name)


def with_line(of: Study, **changes: Any) -> Study:
    """Return a study with its first line changed."""
    return replace(of, lines=(replace(of.lines[0], **changes), *of.lines[1:]))
