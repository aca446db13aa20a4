"""Compiled rounds on several devices: the clients of a round are divided among them."""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.rounds.compiled import Lanes
from tests.experiments.test_compiled_methods import LOCAL
from tests.experiments.test_compiled_methods import setup as experiment_setup

jax = pytest.importorskip("jax")

RUNS = """
import json, sys
import numpy as np
from fedping.experiments.laboratory.cohort import Cohorts
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.rounds.compiled import CompiledRounds
from fedping.experiments.laboratory.rounds.memory import MemoryChannel
from fedping.experiments.laboratory.rounds.server import ServerRounds
from tests.experiments.test_laboratory_compiled import setup

found = {}
for name, changes in json.loads(sys.argv[1]).items():
    asked = setup(engine="jax", **changes)
    problem = prepare(asked, 3, None)
    cohorts = Cohorts(asked, problem)
    whole = "aggregate" not in changes.get("server", {})
    rounds = CompiledRounds(asked, problem) if whole else ServerRounds(MemoryChannel(problem.line, problem.ids))
    reports = [rounds.run([] if whole else cohorts.sent(n, [rounds.weights])) for n in range(6)]
    notes = rounds.notes if whole else cohorts.notes
    found[name] = {"weights": rounds.weights.tolist(), "losses": [each.loss for each in reports],
                   "clients": [each.clients for each in reports], "notes": notes}
print(json.dumps(found))
"""

CASES: dict[str, dict[str, Any]] = {
    "lanes": {"sampling": {"sampling": "uniform", "clients": 5}},
    "side by side": {
        "sampling": {"sampling": "all"},
        "partition": {"partition": "iid", "clients": 13},
        "training": {"algorithm": "local", "rate": 0.05, "steps": 2},
    },
    "the median": {
        "server": {"optimizer": {"optimizer": "rprop"}, "min_clients": 1, "aggregate": {"by": "median"}},
        "training": {"algorithm": "gradient", "batch": 7},
    },
}


ON_ONE: dict[str, dict[str, Any]] = {
    "algorithms other than plain local steps": {"training": {"algorithm": "apfl", "rate": 0.05, "steps": 1}},
    "all updates for the aggregation": {
        "training": LOCAL,
        "server": {"optimizer": {"optimizer": "gradient_descent"}, "aggregate": {"by": "median"}},
    },
}


def found_on(devices: int) -> dict[str, Any]:
    """Return the results of the cases on a number of CPU devices, in a separate process."""
    told = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", RUNS, json.dumps(CASES)]
    done = subprocess.run(command, env=os.environ | told, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_three_devices_come_to_the_same_as_one() -> None:
    """The devices' sums are added in another order, which changes only the last bits; the participants are the same."""
    one, three = found_on(1), found_on(3)
    for name in CASES:
        assert three[name]["clients"] == one[name]["clients"]
        tolerance = 1e-12 if name != "the median" else 1e-7  # updates that go to NumPy are rounded to float32
        np.testing.assert_allclose(three[name]["weights"], one[name]["weights"], rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(three[name]["losses"], one[name]["losses"], rtol=tolerance)
        assert any("on 3 devices (cpu)" in note for note in three[name]["notes"]), three[name]["notes"]
        assert not any("devices" in note for note in one[name]["notes"])


@pytest.mark.parametrize(("what", "changes"), ON_ONE.items())
def test_a_note_says_why_other_devices_are_idle(
    what: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    [device] = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda: [device] * 3)
    asked = experiment_setup(engine="jax", **changes)
    lanes = Lanes(asked, prepare(asked, 3, None), with_server=True)
    assert f"on one of 3 devices (cpu), because {what} are on one, " in lanes.made_by
