"""The parts of a setup that run inside compiled rounds; imports no JAX."""

from __future__ import annotations

from importlib.util import find_spec

from fedping.client_sim.learning.models.linear_regression import NAME as LINEAR
from fedping.client_sim.learning.models.logistic_regression import NAME as LOGISTIC
from fedping.client_sim.learning.models.network import NAME as NETWORK
from fedping.experiments.laboratory.settings import Setup
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.local_optimizers import LocalDescent
from fedping.protocol.pipeline import GradientDescent, Mean
from fedping.protocol.training import LocalSteps, OneGradient

MODELS = (LINEAR, LOGISTIC, NETWORK)
"""The names of the models whose training is compiled."""


def check_inside(setup: Setup) -> None:
    """Raise if a setup with ``engine = "jax"`` cannot run, before a round of any variant has.

    Raises:
        InvalidSettings: a part of it cannot run inside a compiled round, or JAX is missing.
    """
    if setup.engine != "jax":
        return
    if part := outside(setup):
        raise InvalidSettings(
            f'engine = "jax" compiles whole rounds, and {part} cannot run inside one; set engine = "numpy"'
        )
    if find_spec("jax") is None:
        raise InvalidSettings('engine = "jax" needs JAX, which isn\'t installed. Run: pip install "fedping[jax]"')


def outside(setup: Setup) -> str | None:
    """Return the first part of a setup that cannot run inside a compiled round; None if all of it can."""
    training, server, spec = setup.training, setup.pipeline, setup.spec
    parts = {
        f"the model '{setup.model['name']}'": setup.model["name"] not in MODELS,
        "the [training] of an extension": not isinstance(training, OneGradient | LocalSteps),
        "'personal' in [training]": getattr(training, "personal", None) is not None,
        "'structured' in [training]": getattr(training, "structured", False),
        "'optimizer' in [training]": not isinstance(getattr(training, "optimizer", LocalDescent()), LocalDescent),
        "'upload'": bool(setup.upload),
        "'aggregate' in [server]": not isinstance(server.aggregate, Mean),
        "'clip' in [server]": server.clip is not None,
        "'bucketing' in [server]": server.bucketing is not None,
        "'most_votes' in [server]": server.most_votes is not None,
        "'optimizer' in [server]": not isinstance(server.optimizer, GradientDescent),
        "a spec with constraints or whole numbers": spec is not None and bool(spec.constraints or spec.integer.any()),
        "'trained' in [evaluation]": setup.evaluation.trained,
        "[limits]": setup.limits is not None,
        "[lateness]": setup.lateness is not None,
        "[attack]": setup.attack is not None,
        "[privacy]": setup.privacy is not None,
    }
    return next((part for part, there in parts.items() if there), None)
