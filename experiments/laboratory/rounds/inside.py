"""The parts of a setup that run inside compiled rounds, and those that run between them; imports no JAX by itself."""

from __future__ import annotations

from importlib.util import find_spec

from msgspec.structs import replace

from fedping.client_sim.learning.algorithms import algorithm_name
from fedping.client_sim.learning.local_optimizers import keeps
from fedping.client_sim.learning.models.jax_loss import NAME as OWN
from fedping.client_sim.learning.models.linear_regression import NAME as LINEAR
from fedping.client_sim.learning.models.logistic_regression import NAME as LOGISTIC
from fedping.client_sim.learning.models.network import NAME as NETWORK
from fedping.client_sim.learning.models.svm_ranking import NAME as RANKING
from fedping.client_sim.learning.registry import NETWORKS, is_network
from fedping.client_sim.sampling import follows_past
from fedping.experiments.laboratory.settings import Setup
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.pipeline import Adagrad, Adam, ClipByNorm, GradientDescent, Mean, Momentum, NoClip, Yogi
from fedping.protocol.training import LocalSteps, OneGradient

MODELS = (LINEAR, LOGISTIC, NETWORK, RANKING, OWN, *NETWORKS)
"""The names of the models whose training is compiled, besides networks of extensions."""


def check_inside(setup: Setup) -> None:
    """Raise if a setup with ``engine = "jax"`` cannot run, before a round of any variant has.

    Raises:
        InvalidSettings: clients' training cannot be compiled, or JAX is missing.
    """
    if setup.engine != "jax":
        return
    if part := outside(setup):
        raise InvalidSettings(
            f'engine = "jax" compiles the training of clients, and {part} cannot be compiled. Set engine = "numpy"'
        )
    if find_spec("jax") is None:
        raise InvalidSettings('engine = "jax" needs JAX, which isn\'t installed. Run: pip install "fedping[jax]"')


def resolved(setup: Setup, begun: Setup | None = None) -> Setup:
    """Return a setup with an engine in the place of ``auto``.

    Args:
        setup: the setup.
        begun: the setup with which the run was begun, whose engine is kept; None for a new run.
    """
    if setup.engine != "auto":
        return setup
    if begun is not None and setup == replace(begun, engine="auto"):
        return begun
    return replace(setup, engine="jax" if compiles_whole_rounds(setup) and has_accelerator() else "numpy")


def compiles_whole_rounds(setup: Setup) -> bool:
    """Return whether all rounds of a setup between two evaluations can be one compiled call."""
    in_memory = setup.where == "memory" and not setup.co_op and not setup.gossip
    return in_memory and outside(setup) is None and not between(setup)


def has_accelerator() -> bool:
    """Return whether JAX is installed and sees a device that is faster than the processor."""
    if find_spec("jax") is None:
        return False
    import jax

    try:
        return bool(jax.default_backend() != "cpu")
    except RuntimeError:  # the platform that JAX is told to use is not there
        return False


def outside(setup: Setup) -> str | None:
    """Return the first part of a setup because of which its clients' training cannot be compiled; None if it can."""
    training = setup.training
    parts = {
        f"the model '{setup.model['name']}'": setup.model["name"] not in MODELS and not is_network(setup.model["name"]),
        f"algorithm = '{algorithm_name(training)}' in [training]": not isinstance(training, OneGradient | LocalSteps),
        "'personal' in [training]": getattr(training, "personal", None) is not None,
        "'structured' in [training]": getattr(training, "structured", False),
        "'keep' of a client optimizer": isinstance(training, LocalSteps) and keeps(training.optimizer),
        "the training of an [attack]": setup.attack is not None,
    }
    return next((part for part, there in parts.items() if there), None)


def between(setup: Setup) -> tuple[str, ...]:
    """Return the parts of a setup that NumPy computes after the compiled training of each round.

    Without any, all rounds between two evaluations are one compiled call.
    """
    server, spec = setup.pipeline, setup.spec
    compiled = GradientDescent | Momentum | Adagrad | Adam | Yogi
    parts = {
        "'upload'": bool(setup.upload),
        "'aggregate' in [server]": not isinstance(server.aggregate, Mean),
        "'clip' in [server]": not isinstance(server.clip, ClipByNorm | NoClip | None),
        "'bucketing' in [server]": server.bucketing is not None,
        "'optimizer' in [server]": not isinstance(server.optimizer, compiled),
        "a spec with constraints or whole numbers": spec is not None and bool(spec.constraints or spec.integer.any()),
        "'trained' in [evaluation]": setup.evaluation.trained,
        "[limits]": setup.limits is not None,
        "[lateness]": setup.lateness is not None,
        "[clock]": setup.clock is not None,
        "[privacy]": setup.privacy is not None,
        "a [sampling] that follows clients' losses": follows_past(setup.sampling),
    }
    return tuple(part for part, there in parts.items() if there)
