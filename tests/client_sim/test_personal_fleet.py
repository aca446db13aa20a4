"""Simulated clients with their own models take part in a study with a real ingest and real rounds."""

import asyncio
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pytest
from msgspec.structs import replace

from fedping.client_sim.fleet import Fleet, FleetSettings, join_study
from fedping.client_sim.http import HttpTransport
from fedping.client_sim.learning import StateFile, model_spec
from fedping.client_sim.learning.batch import Examples
from fedping.client_sim.learning.states import MemoryStates, StatesOf, in_memory
from fedping.client_sim.transport import Transport
from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.draws import child_keys, root_key, uniforms
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.personalization import FineTune
from fedping.protocol.pipeline import GradientDescent, Pipeline
from fedping.protocol.study import Arm, Line, Study, public_study
from fedping.protocol.training import OneGradient
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.round import RoundOptions, engine_named, run_round
from tests.support.ingest_server import IngestServer, running_ingest

STUDY, WHEN = "own", "2026-01-01T00:00:00.000+00:00"
SETTINGS = FleetSettings(clients=90, seed=4)

BROWSERS, CLIENTS = "frecency-update", "model-update"


def study_of(pings: Any, **personal: Any) -> Study:
    """Return a study of browsers or of clients with examples, a third of which keep their own models."""
    spec = model_spec("linear-15") if pings == BROWSERS else model_spec("logistic-regression", {"features": 4})
    rate = 5.0 if pings == BROWSERS else 0.5
    training = OneGradient(personal=FineTune(**{"rate": rate, "steps": 20} | personal))
    return Study(
        name=STUDY,
        pings=pings,
        arms=(
            Arm(name="treatment", share=0.4, line="main", applies=True, submits=True),
            Arm(name="personalized", share=0.4, line="main", applies=True, submits=True, personal=True),
            Arm(name="silent", share=0.2, line="main", applies=True, personal=True),
        ),
        lines=(
            Line(
                name="main",
                spec=spec,
                training=training,
                pipeline=Pipeline(optimizer=GradientDescent(rate=0.1), min_clients=1),
            ),
        ),
    )


def created(folder: Path, study: Study) -> ModelStore:
    store = open_store(folder / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    return store


def play(
    server: IngestServer, folder: Path, store: ModelStore, iterations: int, states_of: StatesOf = in_memory
) -> list[Any]:
    """Run iterations with a round after each, and return the rounds' output."""
    done = []
    with asyncio.Runner() as runner, engine_named("numpy") as engine:
        fleet = runner.run(join_study(HttpTransport(server.url), STUDY, SETTINGS, states_of=states_of))
        for _ in range(iterations):
            summary = runner.run(fleet.run_iteration())
            assert summary.pings.rejected_by_reason == {}
            server.flush()
            done.append(
                run_round(
                    store,
                    folder / "landing",
                    STUDY,
                    "main",
                    engine,
                    RoundOptions(clock=lambda: WHEN, code_version="test"),
                )
            )
        runner.run(fleet.close())
    return done


def landed_of(folder: Path, study: Study, kind: str) -> pd.DataFrame:
    """Return the pings of three iterations, in order; if ``kind`` is plain, of the same study without personal arms."""
    if kind == "plain":
        arms = tuple(replace(arm, personal=False) for arm in study.arms)
        study = replace(study, arms=arms, lines=(replace(study.lines[0], training=OneGradient()),))
    (folder / kind).mkdir()
    store = created(folder / kind, study)
    with running_ingest(folder / kind / "store", folder / kind / "landing", "--workers", "1") as server:
        assert [done.status for done in play(server, folder / kind, store, 3)] == ["published"] * 3
    return landed(folder / kind).sort_values("document_id").reset_index(drop=True)


def landed(folder: Path) -> pd.DataFrame:
    return ds.dataset(folder / "landing", partitioning="hive").to_table().to_pandas()


def test_browsers_keep_models_of_their_own_and_send_what_they_would_have_sent(tmp_path: Path) -> None:
    """The shared weights change as in a study without personal arms.

    In a browser's ping only the place of the choice differs.
    """
    own, plain = (landed_of(tmp_path, study_of(BROWSERS, rate=500.0), kind) for kind in ("personal", "plain"))
    assert own["update"].tolist() == plain["update"].tolist()
    trained = own.study_variation != "treatment"
    later = own.model_version > 0
    assert own.loss.equals(plain.loss)
    assert (own.rank_selected != plain.rank_selected)[trained & later].any(), "their lists are in another order"
    assert own.frecency_scores.map(tuple).equals(plain.frecency_scores.map(tuple)), "and it is not told"
    assert own[own.study_variation == "silent"]["update"].isna().all()


def test_clients_of_a_personal_arm_hold_out_a_fifth_of_their_examples(tmp_path: Path) -> None:
    """Clients send updates of the other examples, and report the loss of the same fifth in every iteration."""
    own, plain = (landed_of(tmp_path, study_of(CLIENTS), kind) for kind in ("personal", "plain"))
    trained = own.study_variation != "treatment"
    count = plain[trained].examples
    assert own[~trained].examples.equals(plain[~trained].examples)
    assert (count - own[trained].examples).equals(np.maximum(np.floor(count / 5 + 0.5), 1).astype(count.dtype))
    first = own[~trained & (own.model_version == 0)]
    assert first["update"].equals(plain.loc[first.index, "update"])
    assert own[own.study_variation == "silent"]["update"].isna().all()
    losses = own[trained].pivot(index="client_id", columns="model_version", values="loss")
    assert losses[0].to_numpy() == pytest.approx(np.log(2)), "newcomers predict as the version does"
    assert (losses[2] != losses[1]).all()


@dataclass(frozen=True)
class Labels:
    """Examples of two classes with uninformative features, as a fleet's source and as its clients' data.

    Attributes:
        chance: the probability of a client's preferred class; 0.5 means no preference.
        clients: the clients with these data.
    """

    chance: float
    clients: Any = None
    always_new: bool = False

    def of(self, clients: Any, iteration: int, applied: Any) -> Any:
        return replace_fields(self, clients=clients)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def sizes(self) -> Any:
        return 5 + self.clients % 16

    def batch(self, at: Any) -> Examples:
        place = np.arange(self.sizes[at].max(initial=0))
        keys = child_keys(child_keys(root_key(7), self.clients[at])[:, None], place)
        drawn = uniforms(keys.ravel(), 5).reshape(*keys.shape, 5)
        other = drawn[..., 4] >= self.chance
        classes = (self.clients[at] % 2)[:, None] ^ other
        return Examples(drawn[..., :4] - 0.5, classes, (place < self.sizes[at][:, None]).astype(np.float64))


@pytest.mark.parametrize(("chance", "lowest", "highest"), [(0.5, 0.0, np.inf), (0.9, -np.inf, -0.1)])
def test_a_model_of_ones_own_is_better_only_where_there_is_something_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chance: float, lowest: float, highest: float
) -> None:
    """With random labels, the arm's advantage is within 3 standard errors: 0.05, and 0.13 for clients without updates.

    Measured on training examples, it would be 0.14 with a standard error of 0.02.
    """
    monkeypatch.setattr("fedping.client_sim.fleet.fleet.examples_for", lambda *_: Labels(chance))
    store = created(tmp_path, study_of(CLIENTS))
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as server:
        play(server, tmp_path, store, 3)
    last = landed(tmp_path)
    arms = last[last.model_version == 2].groupby("study_variation", observed=True).loss
    error = arms.sem()
    for arm in ("personalized", "silent"):
        gain, apart = arms.mean()[arm] - arms.mean()["treatment"], np.hypot(error[arm], error["treatment"])
        assert apart < 0.15
        assert lowest - 3 * apart < gain < highest, (gain, apart)


def test_who_does_not_share_reports_and_sends_no_update(tmp_path: Path) -> None:
    store = created(tmp_path, study_of(BROWSERS, from_version=1, shares=False))
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as server:
        first, second = play(server, tmp_path, store, 2)
    assert (first.counts["no_update"], first.status, second.status) == (0, "published", "published")
    rows = landed(tmp_path)
    later = rows[rows.model_version == 1]
    sent = later.groupby("study_variation", observed=True)["update"].agg(lambda column: column.notna().mean())
    assert sent.to_dict() == {"treatment": 1.0, "personalized": 0.0, "silent": 0.0}
    assert second.counts["no_update"] > 10


def test_a_fleet_that_is_stopped_goes_on_with_what_its_clients_have(tmp_path: Path) -> None:
    """A single run, and two runs with a state file in between, give the same pings."""
    found = []
    for kind in ("one", "two"):
        folder = tmp_path / kind
        folder.mkdir()
        store = created(folder, study_of(CLIENTS))
        with running_ingest(folder / "store", folder / "landing", "--workers", "1") as server:
            for iterations in (4,) if kind == "one" else (1, 3):
                with StateFile(folder / "state.sqlite") as file:
                    play(server, folder, store, iterations, file.of)
        found.append(landed(folder).sort_values(["client_id", "model_version"]).reset_index(drop=True))
    one, two = found
    assert one.client_id.equals(two.client_id)
    np.testing.assert_allclose(one.loss, two.loss, rtol=1e-9)  # except for the rest of a block


def test_a_fleet_has_the_states_of_a_block_at_hand_and_not_those_of_everybody() -> None:
    """The weights of 20,000 clients of a network with 50,000 weights would take 8 GB."""
    asked: list[int] = []

    class Counted(MemoryStates):
        def load(self, clients: Any) -> Any:
            asked.append(len(clients))
            return super().load(clients)

    losses: dict[tuple[int, int], dict[str, float]] = {}
    transport = cast(Transport, None)
    spec = model_spec("network", {"features": 4, "classes": 2, "hidden": 3000})
    for steps in (0, 5):
        study = study_of(CLIENTS, rate=0.01, steps=steps)
        study = replace(study, lines=(replace(study.lines[0], spec=spec),))
        fleet = Fleet(transport, public_study(study), SETTINGS, states_of=lambda _, first: Counted(first))
        fleet._round._cache._versions["main", 0] = (spec.start_array, None)
        fleet.roster.version[:] = 0
        for iteration in (0, 1):
            assert len([*fleet._round.pings(np.arange(90), iteration)]) == 1
            losses[steps, iteration] = {arm.arm: arm.loss or 0.0 for arm in fleet._round.summaries()}
    assert 1 < max(asked) < 20
    assert losses[5, 0] == losses[0, 0], "a loss is of what the client had before it trained"
    assert losses[5, 1]["treatment"] == losses[0, 1]["treatment"]
    assert losses[5, 1]["personalized"] < losses[0, 1]["personalized"] * 0.99


@pytest.mark.parametrize("what", ["training", "spec"])
def test_a_fleet_does_not_go_on_with_what_belongs_to_other_settings(what: str) -> None:
    """A study of the same name may have been created again, with the same number of weights but another meaning."""
    study = study_of(CLIENTS)
    [line] = study.lines
    changed = {
        "training": OneGradient(personal=FineTune(rate=0.5, steps=21)),
        "spec": replace(line.spec, settings={**line.spec.settings, "l2": 0.5}),
    }
    owners: dict[str, set[str]] = {"before": set(), "after": set()}
    for kind, one in (("before", line), ("after", replace(line, **{what: changed[what]}))):

        def states_of(owner: str, first: Any, seen: set[str] = owners[kind]) -> Any:
            seen.update({owner} if first and "line main" in owner else ())
            return in_memory(owner, first)

        transport: Any = None
        Fleet(transport, public_study(replace(study, lines=(one,))), SETTINGS, states_of=states_of)
    assert len(owners["before"]) == 1
    assert not owners["before"] & owners["after"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arms": (Arm(name="a", share=1, line="main", applies=True, submits=True),)}, "no arm applies them"),
        ({"training": OneGradient()}, "nothing in the training of line 'main' is a client's own"),
    ],
)
def test_arms_and_training_have_to_agree(change: dict[str, Any], said: str) -> None:
    study = study_of(CLIENTS)
    line = replace(study.lines[0], training=change.pop("training", study.lines[0].training))
    with pytest.raises(InvalidSettings, match=said):
        replace(study, lines=(line,), **change)


def test_an_arm_that_applies_nothing_is_not_personal() -> None:
    with pytest.raises(InvalidSettings, match="arm 'a' is personal but applies no model"):
        Arm(name="a", share=1, line="main", submits=True, personal=True)
