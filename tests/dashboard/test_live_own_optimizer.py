"""An optimizer added as CONTRIBUTING says, in a copy of the program: rounds, recompute, and the Live page."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.copies import copied_program, outside

SETTINGS = '''

class Lion(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="optimizer", tag="lion"):
    """The sign of a mean (Chen et al. 2023)."""

    rate: Positive = 0.1
    beta: Share = 0.9


Optimizer: TypeAlias = Lion | '''

LINK = """

from fedping.protocol.pipeline import Lion


@OPTIMIZERS.of(Lion)
def lion(settings: Lion, _: ModelSpec) -> Transformation[Arrays]:
    def update(step: Vector, state: Arrays, _: Vector) -> tuple[Vector, Arrays]:
        mean = settings.beta * state["mean"] + (1 - settings.beta) * step
        return settings.rate * np.sign(mean), {"mean": mean}

    shown = {SHOWN}
    return Transformation(lambda spec: {"mean": np.zeros(spec.m)}, update, shown)
"""

SHOWN = '{"mean gradient": Display("What Lion takes the sign of", lambda state: state["mean"])}'

ROUND_AND_PAGE = """
import sys
from pathlib import Path

import msgspec

from fedping.protocol.pipeline import Lion, Pipeline
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.dashboard import dashboard_client
from tests.support.rounds import WHEN, crowd, land, store_with
from tests.support.versions import small_study

folder = Path(sys.argv[1])
study = small_study()
line = msgspec.structs.replace(study.lines[0], pipeline=Pipeline(optimizer=Lion(), min_clients=1))
store = store_with(folder / "store", msgspec.structs.replace(study, lines=(line,)))
options = RoundOptions(clock=lambda: WHEN, code_version="test")
for version in range(2):
    land(folder / "landing", crowd(4, seed=version, version=version, first_document=9 * version), iteration=version)
    run_round(store, folder / "landing", "study", "main", NumpyEngine(), options)
again = recompute(store, folder / "landing", "study", "main", 2, NumpyEngine())
client = dashboard_client(folder)
answers = {path: client.get(f"/live/study/main/{path}") for path in ("", "history.json", "history.csv")}
print(msgspec.json.encode({
    "identical": again.identical,
    "state": store.version("study", "main", 2).state,
    "status": [answer.status_code for answer in answers.values()],
    "history": answers["history.json"].json,
    "csv": answers["history.csv"].get_data(as_text=True),
}).decode())
"""


def said_with(tmp_path: Path, shown: str) -> dict:
    """Return the program's output about a line with the optimizer."""
    copy = copied_program(tmp_path / "program", tests=True)
    settings = copy / "protocol" / "pipeline.py"
    settings.write_text(settings.read_text().replace("\n\nOptimizer: TypeAlias = ", SETTINGS))
    optimizers = copy / "server_jobs" / "optimize" / "optimizers.py"
    optimizers.write_text(optimizers.read_text() + LINK.replace("{SHOWN}", shown))
    done = subprocess.run(
        [sys.executable, "-c", ROUND_AND_PAGE, str(tmp_path)], **outside(copy), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_optimizer_of_ones_own_steps_recomputes_and_is_shown_as_it_says(tmp_path: Path) -> None:
    said = said_with(tmp_path, SHOWN)
    assert said["identical"]
    assert said["status"] == [200, 200, 200]
    assert said["history"]["links"] == [
        {"name": "mean gradient", "words": "What Lion takes the sign of", "by_weight": True}
    ]
    shown = said["history"]["rows"][2]["links"]["mean gradient"]
    assert [float(f"{value:.6g}") for value in said["state"]["lion"]["mean"]] == shown
    assert "mean gradient.w0,mean gradient.w1" in said["csv"].splitlines()[0]


def test_one_that_says_nothing_is_shown_by_its_state(tmp_path: Path) -> None:
    said = said_with(tmp_path, "{}")
    assert said["status"] == [200, 200, 200]
    assert [each["name"] for each in said["history"]["links"]] == ["mean"]
