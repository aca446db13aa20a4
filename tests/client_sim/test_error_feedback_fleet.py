"""Fleets keep error feedback's residuals, with a real ingest and real rounds, and over a restart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedping.client_sim.fleet import Fleet, FleetSettings
from fedping.client_sim.learning import StateFile, model_spec
from fedping.client_sim.learning.states import ClientStates, MemoryStates, StatesOf, in_memory
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.links import ErrorFeedback, TopK
from fedping.protocol.pipeline import GradientDescent, NoClip, Pipeline
from fedping.protocol.study import Arm, Line, Study, public_study
from tests.client_sim.test_personal_fleet import BROWSERS, CLIENTS, SETTINGS, created, play
from tests.support.ingest_server import running_ingest


def study_of(pings: str = CLIENTS) -> Study:
    spec = model_spec("linear-15") if pings == BROWSERS else model_spec("logistic-regression", {"features": 20})
    return Study(
        name="own",
        pings=pings,  # type: ignore[arg-type]
        arms=(Arm(name="treatment", share=1.0, line="main", applies=True, submits=True),),
        lines=(
            Line(
                name="main",
                spec=spec,
                upload=(ErrorFeedback(), TopK(keep=0.1)),
                pipeline=Pipeline(optimizer=GradientDescent(rate=0.5), clip=NoClip(), min_clients=1),
            ),
        ),
    )


def weights_after(folder: Path, sessions: tuple[int, ...], states_of: StatesOf | None) -> np.ndarray:
    folder.mkdir()
    store = created(folder, study_of())
    with running_ingest(folder / "store", folder / "landing", "--workers", "1") as server:
        for iterations in sessions:
            if states_of is not None:
                play(server, folder, store, iterations, states_of)
                continue
            with StateFile(folder / "states.sqlite") as file:
                play(server, folder, store, iterations, file.of)
    return np.asarray(store.head("own", "main").weights)


def test_residuals_are_kept_over_a_restart(tmp_path: Path) -> None:
    stores: dict[str, ClientStates] = {}

    def states_of(owner: str, first: object) -> ClientStates:
        stores[owner] = in_memory(owner, first)  # type: ignore[arg-type]
        return stores[owner]

    at_once = weights_after(tmp_path / "at_once", (3,), states_of)
    [owner] = [each for each in stores if "upload error-feedback, top-k" in each]
    assert isinstance(stores[owner], MemoryStates)
    assert np.abs(stores[owner].load(np.arange(SETTINGS.clients))["residual"]).sum(axis=1).all()
    np.testing.assert_array_equal(weights_after(tmp_path / "restarted", (1, 2), None), at_once)
    forgotten = weights_after(tmp_path / "forgotten", (1, 2), in_memory)
    assert not np.array_equal(forgotten, at_once)


def test_fleets_that_search_keep_none() -> None:
    study = public_study(study_of(BROWSERS))
    with pytest.raises(InvalidSettings, match="these clients keep none"):
        Fleet(None, study, FleetSettings(clients=3, seed=1))  # type: ignore[arg-type]
