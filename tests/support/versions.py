"""A small study and versions of its line, for tests of the store."""

import msgspec

from fedping.model_store.version import Lineage, Version, first_version
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.spec import ModelSpec, NonNegative, Step, Weight
from fedping.protocol.study import Arm, Line, Study

STEP = Step(start=1, min=0.1, max=3)
WHEN = "2026-01-01T00:00:00.000+00:00"


def small_study(name: str = "study", *, m: int = 2, min_clients: int = 1) -> Study:
    """Return a study with a trained arm, a control arm, and one line of m weights, the second an integer."""
    weights = tuple(Weight(name=f"w{i}", start=float(10 + i), step=STEP, integer=i == 1) for i in range(m))
    spec = ModelSpec(name="small", model="linear-15", weights=weights, constraints=(NonNegative(),))
    line = Line(name="main", spec=spec, pipeline=Pipeline(min_clients=min_clients))
    arms = (
        Arm(name="treatment", share=0.6, line="main", applies=True, submits=True),
        Arm(name="control", share=0.4, line="main"),
    )
    return Study(name=name, arms=arms, lines=(line,))


def version_0(study: Study) -> Version:
    """Return version 0 of the study's only line, with an optimizer state whose loss would be noticed."""
    state = {"rprop": {"rate": (0.1, 0.2)}}
    return first_version(study.name, "main", study.lines[0].spec, state, WHEN, "test", "config")


def after(parent: Version, *, change: float = 0.5) -> Version:
    """Return a parent's next version, every weight changed by ``change``."""
    weights = tuple(w + change for w in parent.weights)
    return msgspec.structs.replace(
        parent,
        iteration=parent.iteration + 1,
        parent=parent.iteration,
        parent_digest=parent.digest,
        weights=weights,
        model=weights,
        lineage=Lineage(origin="round", code_version="test", config_digest="config"),
    )
