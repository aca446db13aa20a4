"""Hostile clients of a fleet, with a real ingest, and rejected settings of attacks."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow.dataset as ds
import pytest

from fedping.client_sim.attacks import Attack
from fedping.client_sim.fleet import Fleet, FleetSettings
from fedping.main import main
from fedping.protocol.enrolment import enrol
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.study import public_study
from tests.client_sim.test_fleet_learning import created, spec_of, study_of
from tests.support.fleets import PlannedTransport, fleet_study, seen
from tests.support.ingest_server import running_ingest
from tests.support.virtual_time import in_virtual_time


def attack(**settings: Any) -> Any:
    return msgspec.convert(settings, Attack)  # type: ignore[call-overload]


def landed(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the landed updates by client id."""
    table = ds.dataset(folder / "landing", format="parquet", partitioning="hive").to_table()
    columns = (table[name].to_pylist() for name in ("client_id", "update", "examples"))
    return {
        str(UUID(bytes=client)): np.array([*np.frombuffer(update, "<f4"), examples])
        for client, update, examples in zip(*columns, strict=True)
        if update is not None
    }


@pytest.mark.parametrize("model", ["logistic-regression", "linear-15"])
def test_hostile_clients_post_what_their_file_says_and_the_others_as_ever(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "attack.toml"
    file.write_text('[attack]\nattack = "inner_product"\nepsilon = 50.0\nshare = 0.1\nexamples = 77\n')
    sent = {}
    for name, more in (("honest", []), ("attacked", ["--attack", str(file)])):
        folder = tmp_path / name
        created(folder, study_of(spec_of(model)))
        with running_ingest(folder / "store", folder / "landing", "--workers", "1") as server:
            assert main(["fleet", server.url, "any", "--clients", "200", "--json", *more]) == 0
            server.flush()
        sent[name] = landed(folder)
        told = json.loads(capsys.readouterr().out)
    assert sent["honest"].keys() == sent["attacked"].keys()
    hostile = {one for one in sent["honest"] if (sent["honest"][one] != sent["attacked"][one]).any()}
    assert told["hostile"] == len(hostile) == round(0.1 * len(sent["honest"]))
    assert told["pings"]["rejected"] == 0
    assert {sent["attacked"][one][-1] for one in hostile} == {77}
    # Each submitting arm is a separate group, whose honest updates determine the hostile ones.
    study = study_of(spec_of(model))
    for arm in ("treatment", "teaching"):
        mine = [one for one in sent["honest"] if enrol(study, one).name == arm]  # type: ignore[union-attr]
        honest = np.mean([sent["honest"][one][:-1] for one in mine if one not in hostile], axis=0)
        for one in hostile & {*mine}:
            np.testing.assert_allclose(sent["attacked"][one][:-1], -50 * honest, rtol=1e-4, atol=1e-4)


def a_fleet(by: Any, clients: int = 100, model: str = "linear-15", **changes: Any) -> Fleet:
    study = study_of(spec_of(model), **changes)
    return Fleet(PlannedTransport(study), public_study(study), FleetSettings(clients=clients, attack=by))


def test_invented_ids_are_enrolled_by_their_hash_into_arms_that_submit() -> None:
    honest, attacked = (a_fleet(by) for by in (None, attack(attack="label_flip", invented=2.0)))
    assert attacked.roster.ids[:100] == honest.roster.ids
    invented = attacked.roster.ids[100:]
    submitting = [one for one in honest.roster.ids if enrol(attacked.study, str(one)).submits]  # type: ignore[union-attr]
    assert len(invented) == 2 * len(submitting) == len({*invented})
    assert all(enrol(attacked.study, str(one)).submits for one in invented)  # type: ignore[union-attr]
    summary = in_virtual_time(attacked.run_iteration())
    assert summary.hostile == len(invented)


def test_browsers_that_flip_signs_send_their_updates_turned_around() -> None:
    sent = []
    for by in (None, attack(attack="sign_flip", share=0.2)):
        transport = PlannedTransport(fleet_study())
        fleet = Fleet(transport, transport.study, FleetSettings(clients=100, gradient="analytic", attack=by))
        summary = in_virtual_time(fleet.run_iteration())
        sent.append([np.array(one.payload["update"] or [], np.float64) for one in seen([*transport.landed.values()])])
    turned = [bool(len(one)) and not np.array_equal(one, other) for one, other in zip(*sent, strict=True)]
    flipped = [np.array_equal(one, -other) for one, other in zip(*sent, strict=True)]
    assert 0 < sum(turned) <= summary.hostile < sum(len(one) > 0 for one in sent[0]) / 3
    assert all(back for back, changed in zip(flipped, turned, strict=True) if changed)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"attack": "reconstruction"}, "laboratory"),
        ({"attack": "backdoor"}, "pages do not have"),
        ({"attack": "target_weights", "weights": {"nobody": 1.0}}, "'nobody'"),
        ({"attack": "scale", "clients": 101}, "101 hostile clients"),
    ],
)
def test_attacks_that_a_fleet_cannot_do_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidSettings, match=told):
        a_fleet(attack(**settings))


def test_a_file_that_is_no_attack_is_told_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "attack.toml"
    file.write_text('attack = "sign_flop"\n')
    assert main(["fleet", "http://127.0.0.1:1", "any", "--attack", str(file)]) != 0
    assert "sign_flip" in capsys.readouterr().err
