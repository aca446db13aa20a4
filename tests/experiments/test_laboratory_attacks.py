"""Attacks on a run of the laboratory: in memory, through files, and resumed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.experiments.laboratory import resuming
from fedping.experiments.laboratory.attacking import reconstructed
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.results import Outcome
from fedping.experiments.laboratory.units import units_of
from fedping.protocol.errors import InvalidSettings
from tests.support.laboratory import small

COLLUDING = {"attack": "inner_product", "epsilon": 10.0, "share": 0.25}
PLAIN = {"model__l2": 1e-2, "evaluation__baselines": []}


def run(out: Path, **changes: Any) -> Outcome:
    [unit] = units_of(small(**{**PLAIN, **changes}))
    return run_unit(unit, out)


def last(out: Path) -> Any:
    return np.load(next(out.glob("runs/*/*/last.npy")))


def accuracy(outcome: Outcome) -> float:
    found = outcome.final["test"]["accuracy"]
    assert found is not None
    return found


def test_attacks_do_what_they_are_for_and_tell_how_far_they_came(tmp_path: Path) -> None:
    clean = run(tmp_path / "clean")
    against = run(tmp_path / "against", attack=COLLUDING)
    assert accuracy(clean) > 0.9 > 0.3 > accuracy(against)
    assert "attack" not in clean.final
    assert against.final["attack"] == {"hostile_share": 0.25}
    door = {"attack": "backdoor", "features": [0, 1], "value": 5.0, "target": 1, "boost": 8.0}
    absent = run(tmp_path / "absent", attack=door | {"from_round": 1000})
    planted = run(tmp_path / "planted", attack=door)
    assert (absent.final["attack"]["backdoor_success"] or 0) < 0.2
    assert (planted.final["attack"]["backdoor_success"] or 0) > 0.9
    assert accuracy(planted) > 0.85
    np.testing.assert_array_equal(last(tmp_path / "absent"), last(tmp_path / "clean"))
    target = {"attack": "target_weights", "weights": {small_weight(): 3.0}, "scale": 8.0}
    found = run(tmp_path / "target", attack=target).final["attack"]
    assert (found["target_distance"] or 0) < 0.5


def small_weight() -> str:
    from fedping.experiments.laboratory.preparing import prepare

    [setup] = small(**PLAIN).variants.values()
    return prepare(setup, 1, None).spec.names[0]


def test_a_victim_alone_among_invented_ids_is_reconstructed(tmp_path: Path) -> None:
    found = run(tmp_path / "a", attack={"attack": "reconstruction", "others": 99}).final["attack"]
    assert (found["reconstruction_error"] or 0) < 1e-4 < 0.9999 < (found["reconstruction_cosine"] or 0)
    assert found["hostile_share"] == 0.99
    hidden = {"optimizer": "rprop"}
    signs = run(tmp_path / "b", attack={"attack": "reconstruction"}, server={"optimizer": hidden}).final["attack"]
    assert (signs["reconstruction_error"] or 0) > 0.1
    assert reconstructed(np.ones(3), np.zeros(3)) == {"reconstruction_error": 1.0, "reconstruction_cosine": 0.0}


INVENTED = {"attack": "label_flip", "invented": 1.5}


@pytest.mark.parametrize("attack", [COLLUDING, INVENTED, {"attack": "free_rider", "sends": "last_difference"}])
def test_through_files_an_attack_comes_to_the_bits_of_memory(tmp_path: Path, attack: dict[str, Any]) -> None:
    outcomes = [run(tmp_path / where, attack=attack, where=where, rounds=3) for where in ("memory", "files")]
    assert outcomes[0].final == outcomes[1].final
    np.testing.assert_array_equal(last(tmp_path / "memory"), last(tmp_path / "files"))


def test_invented_ids_are_as_many_as_asked_for_and_come_over_http(tmp_path: Path) -> None:
    outcome = run(tmp_path, attack=INVENTED, where="http", rounds=2)
    assert outcome.updates == 2 * (8 + 12)
    assert outcome.final["attack"]["hostile_share"] == 0.6


def test_a_run_that_was_killed_goes_on_with_its_attack_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rider = {"attack": "free_rider", "sends": "last_difference", "deviation": 0.1, "share": 0.5}
    whole = run(tmp_path / "whole", attack=rider)
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)

    def killed(done: int, rows: object) -> None:
        if done == 3:
            raise KeyboardInterrupt

    [unit] = units_of(small(**PLAIN, attack=rider))
    with pytest.raises(KeyboardInterrupt):
        run_unit(unit, tmp_path / "killed", killed)
    assert run(tmp_path / "killed", attack=rider).final == whole.final
    np.testing.assert_array_equal(last(tmp_path / "killed"), last(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"attack": {"attack": "target_weights", "weights": {"none": 1.0}}}, "the weight 'none'"),
        ({"attack": {"attack": "backdoor", "target": 2}}, "classes 0 to 1"),
        ({"attack": {"attack": "backdoor", "features": [99]}}, "features 0 to 29"),
        ({"attack": {"attack": "scale", "clients": 9}}, "there are 8"),
        ({"attack": {"attack": "scal"}}, "attack"),
        ({"attack": {"attack": "scale"}, "co_op": {}}, "co_op"),
    ],
)
def test_attacks_that_cannot_be_meant_are_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidSettings, match=told):
        run(tmp_path, **changes)
