"""The loss curves follow the line's lineage."""

from pathlib import Path

import msgspec
import pytest

from fedping.analysis.curves import ArmCurve, arm_curves
from fedping.model_store.store import ModelStore, open_store
from fedping.model_store.version import ArmSummary
from tests.support.versions import after, small_study, version_0

LOSSES = {"treatment": (40.0, 30.0, None, 10.0), "control": (41.0, 39.0, 40.0, 42.0)}


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    study = small_study()
    made = open_store(tmp_path / "store", create=True)
    made.create_study(study, (version_0(study),))
    for i in range(4):
        arms = {
            name: ArmSummary(pings=100, examples=90 if loss[i] else 0, loss=loss[i], rank_selected=loss[i] and 0.5)
            for name, loss in LOSSES.items()
        }
        child = after(made.head("study", "main"))
        made.publish(msgspec.structs.replace(child, lineage=msgspec.structs.replace(child.lineage, arms=arms)))
    return made


def test_the_loss_of_version_n_stands_in_the_lineage_of_n_plus_1(store: ModelStore) -> None:
    curves = arm_curves(store, "study", "main")
    assert curves["control"].iterations == (0, 1, 2, 3)
    assert curves["control"].loss == LOSSES["control"]
    assert curves["treatment"] == ArmCurve((0, 1, 3), (40.0, 30.0, 10.0), (0.5, 0.5, 0.5), (100, 100, 100))


def test_a_line_without_rounds_has_no_curves(tmp_path: Path) -> None:
    study = small_study()
    fresh = open_store(tmp_path / "fresh", create=True)
    fresh.create_study(study, (version_0(study),))
    assert arm_curves(fresh, "study", "main") == {}
