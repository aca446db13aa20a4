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
from fedping.client_sim.learning.stepwise import Stepwise
from fedping.client_sim.sampling import All, Bernoulli, Cluster, Sampling, Uniform, follows_past
from fedping.experiments.laboratory.rounds.aggregating import needs_all, own_finish
from fedping.experiments.laboratory.settings import Setup
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import extension_of
from fedping.protocol.personalization import PartlyLocal, Reconstruct
from fedping.protocol.pipeline import (
    Adagrad,
    Adam,
    ClipByNorm,
    Combination,
    GradientDescent,
    Mean,
    MeanOfSigns,
    Momentum,
    NoClip,
    OwnAggregation,
    Yogi,
)
from fedping.protocol.training import LocalSteps, OneGradient, OwnTraining, Training

MODELS = (LINEAR, LOGISTIC, NETWORK, RANKING, OWN, *NETWORKS)
"""The names of the models whose training is compiled, without networks of extensions."""


def check_inside(setup: Setup) -> None:
    """Raise if a setup with ``engine = "jax"`` cannot run; called before the first round of any variant.

    Raises:
        InvalidSettings: clients' training cannot be compiled, or JAX is missing.
    """
    if setup.engine != "jax":
        return
    if part := outside(setup):
        raise InvalidSettings(
            f'engine = "jax" compiles the training of clients, and {part} cannot be compiled. Set engine = "numpy"'
            f"{_remedy(setup)}"
        )
    if find_spec("jax") is None:
        raise InvalidSettings('engine = "jax" needs JAX, which isn\'t installed. Run: pip install "fedping[jax]"')


def _remedy(setup: Setup) -> str:
    """Return the advice at the end of the error about an extension's algorithm that is written with NumPy."""
    training = setup.training
    if isinstance(training, OwnTraining) and not _has_a_method(training):
        return ", or make its class a fedping.Stepwise"
    return ""


def resolved(setup: Setup, begun: Setup | None = None) -> Setup:
    """Return the setup with ``auto`` replaced by a specific engine.

    Args:
        setup: the setup.
        begun: the setup at the start of the run, whose engine is kept; None for a new run.
    """
    if setup.engine != "auto":
        return setup
    if begun is not None and setup == replace(begun, engine="auto"):
        return begun
    return replace(setup, engine="jax" if compiles_whole_rounds(setup) and has_accelerator() else "numpy")


def compiles_whole_rounds(setup: Setup) -> bool:
    """Return whether all rounds of a setup between two evaluations can be one compiled call."""
    in_memory = setup.where == "memory" and not setup.co_op and not setup.gossip
    in_memory = in_memory and not setup.hierarchy and not setup.clusters
    return in_memory and outside(setup) is None and not between(setup)


def has_accelerator() -> bool:
    """Return whether JAX is installed and sees a device that is faster than the processor."""
    if find_spec("jax") is None:
        return False
    import jax

    try:
        return bool(jax.default_backend() != "cpu")
    except RuntimeError:  # the platform that JAX is set to use is missing
        return False


def outside(setup: Setup) -> str | None:
    """Return the first part of a setup that prevents the compilation of its clients' training; None if none does."""
    training, personal = setup.training, getattr(setup.training, "personal", None)
    parts = {
        f"the model '{setup.model['name']}'": setup.model["name"] not in MODELS and not is_network(setup.model["name"]),
        f"algorithm = '{algorithm_name(training)}' in [training]": not _has_a_method(training),
        "'personal' in [training]": not isinstance(personal, PartlyLocal | Reconstruct | None),
        "option = 'I' of scaffold with a network": _measures_twice(training) and is_network(setup.model["name"]),
        "'structured' in [training]": getattr(training, "structured", False),
        "'keep' of a client optimizer": isinstance(training, LocalSteps) and keeps(training.optimizer),
        "the training of an [attack]": setup.attack is not None,
        "[randomised_response]": setup.randomised_response is not None,
    }
    return next((part for part, there in parts.items() if there), None)


WITH_STATE = ("scaffold", "feddyn", "apfl")
"""The algorithms of `fedping.algorithms` that are compiled (`methods.py`), in addition to stepwise ones."""


def _has_a_method(training: Training) -> bool:
    if isinstance(training, OneGradient | LocalSteps):
        return True
    make = extension_of(training).make
    if isinstance(make, type) and issubclass(make, Stepwise):
        return True
    return training.name in WITH_STATE and make.__module__ == "fedping.algorithms"


def _measures_twice(training: Training) -> bool:
    """Return whether clients take a gradient outside training, where a network computes without its dropout."""
    return isinstance(training, OwnTraining) and training.settings.get("option") == "I"


ONCE = (All, Uniform, Bernoulli, Cluster)
"""The samplings that draw a client at most once in a round; otherwise, several updates would have to be merged."""


def _is_inside(aggregate: Combination, sampling: Sampling) -> bool:
    """Return whether an aggregation runs inside compiled rounds."""
    if isinstance(aggregate, OwnAggregation):  # the function gets a row for each client
        return isinstance(sampling, All | Uniform) and own_finish(aggregate) is not None
    return isinstance(aggregate, Mean | MeanOfSigns) or (needs_all(aggregate) and isinstance(sampling, ONCE))


def between(setup: Setup) -> tuple[str, ...]:
    """Return the parts of a setup that NumPy computes after the compiled training of each round.

    Without any, all rounds between two evaluations are one compiled call.
    """
    server, spec = setup.pipeline, setup.spec
    compiled = GradientDescent | Momentum | Adagrad | Adam | Yogi
    parts = {
        "'upload'": bool(setup.upload),
        "'aggregate' in [server]": not _is_inside(server.aggregate, setup.sampling),
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


def said_between(setup: Setup) -> str:
    """Return the note on the parts of a setup that NumPy computes after compiled training; there must be one."""
    *others, last = between(setup)
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"JAX computes the training of clients, one round a call, and NumPy {listed}"
