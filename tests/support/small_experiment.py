"""A small experiment in a folder, whose run can be killed at a chosen system call."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

STUDY = """
name = "small"
[[arms]]
name = "treatment"
share = 0.5
line = "main"
applies = true
submits = true
[[arms]]
name = "validation"
share = 0.1
line = "main"
applies = true
[[arms]]
name = "control"
share = 0.2
line = "main"
decays = true
[[arms]]
name = "plain"
share = 0.1
[[lines]]
name = "main"
[lines.pipeline]
min_clients = {min_clients}
[lines.spec]
name = "frecency-2018"
model = "frecency-2018"
weights = [
{weights}
]
[[lines.spec.constraints]]
constraint = "non_negative"
"""

PRIVATE_STUDY = """
name = "hushed"
pings = "private-update"
[[arms]]
name = "treatment"
share = 0.6
line = "main"
applies = true
submits = true
[[arms]]
name = "control"
share = 0.2
line = "main"
[[lines]]
name = "main"
[lines.pipeline]
min_clients = 5
optimizer = {{ optimizer = "rprop", alpha = 2, beta = 0.6 }}
[lines.privacy]
loss = [0, 100]
delay_minutes = {delay}
{guarantee}
[lines.spec]
name = "frecency-2018"
model = "frecency-2018"
weights = [
{weights}
]
{more_study}
"""

CENTRAL = "central = {{ epsilon = 8.0, delta = 1e-4, rounds = {rounds}, population = 600, sampling = {sampling} }}"

PRIVATE_EXPERIMENT = """
study = "study.toml"
seed = {seed}
clients = 600
tick_minutes = 30
{more}
[activity]
fetch_late = 0.1
[optimization]
iterations = {iterations}
length = {{ by = "time", ticks = {ticks} }}
searches_per_day = 20
activity_shape = 0.5
[users]
pages = 20
hosts = 10
"""


EXPERIMENT = """
study = "study.toml"
seed = {seed}
clients = {clients}
tick_minutes = 30
{more}
[optimization]
iterations = {iterations}
searches_per_day = 20
activity_shape = 0.5
{optimization}
[evaluation]
ticks = {ticks}
searches_per_day = 10
activity_shape = 0.4
[users]
pages = 20
hosts = 10
{users}
"""


def experiment_file(folder: Path, *, min_clients: int = 5, **changes: Any) -> Path:
    """Write a study and its experiment; return the experiment's path."""
    said = {"seed": 4, "clients": 700, "iterations": 5, "ticks": 3, "more": "", "optimization": "", "users": ""}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(STUDY.format(min_clients=min_clients, weights=_weights()))
    path = folder / "experiment.toml"
    path.write_text(EXPERIMENT.format(**{**said, **changes}))
    return path


def private_experiment_file(
    folder: Path,
    *,
    guarantee: str = CENTRAL,
    rounds: int = 4,
    sampling: float = 1.0,
    delay: float = 10,
    more_study: str = "",
    **changes: Any,
) -> Path:
    """Write a private study and its experiment; return the experiment's path."""
    said = {"seed": 4, "iterations": 3, "ticks": 2, "more": ""}
    folder.mkdir(parents=True, exist_ok=True)
    study = PRIVATE_STUDY.format(
        delay=delay,
        guarantee=guarantee.format(rounds=rounds, sampling=sampling),
        weights=_weights(),
        more_study=more_study.format(weights=_weights()),
    )
    (folder / "study.toml").write_text(study)
    path = folder / "experiment.toml"
    path.write_text(PRIVATE_EXPERIMENT.format(**{**said, **changes}))
    return path


def _weights() -> str:
    from fedping.client_sim.models import FRECENCY_NAMES, frecency_start

    return "\n".join(
        f'  {{ name = "{name}", start = {start:g}, integer = true, step = {{ start = 20, min = 1, max = 100 }} }},'
        for name, start in zip(FRECENCY_NAMES, frecency_start(), strict=True)
    )


def contents(out: Path) -> dict[str, bytes]:
    """Return all files of a run, by path."""
    return {str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*")) if file.is_file()}


def _killed_at(name: str, number: int, moment: str) -> None:
    """Kill this process before or after the ``number``-th call of a function of ``os``."""
    call, count = getattr(os, name), 0

    def disturbed(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if (count, moment) == (number, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        answer = call(*args, **kwargs)
        if (count, moment) == (number, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(os, name, disturbed)


if __name__ == "__main__":
    experiment, out, function, nth, when = sys.argv[1:6]
    if function != "nothing":
        _killed_at(function, int(nth), when)
    from fedping.experiments.simulate import experiment_from_toml, simulate

    simulate(*experiment_from_toml(Path(experiment)), Path(out), threads=1)
