"""Each union of settings has a maker for every type in it, and no maker for a removed type."""

from collections.abc import Mapping
from typing import Any, get_args

import pytest

from fedping.client_sim.data.partition import _OWNERS, Partition
from fedping.client_sim.learning.algorithms import ALGORITHMS
from fedping.client_sim.learning.local_optimizers import STEPPERS
from fedping.client_sim.learning.personal import METHODS
from fedping.client_sim.sampling import _SAMPLERS, Sampling
from fedping.protocol.local_optimizers import LocalDescent, LocalOptimizer
from fedping.protocol.personalization import Personalization
from fedping.protocol.pipeline import Combination, Optimizer
from fedping.protocol.spec import Constraint
from fedping.protocol.training import Training
from fedping.server_jobs.optimize.constraints import CONSTRAINTS
from fedping.server_jobs.optimize.optimizers import OPTIMIZERS
from fedping.server_jobs.round.accumulator import ACCUMULATORS


@pytest.mark.parametrize(
    ("union", "makers", "others"),
    [
        (Optimizer, OPTIMIZERS, set()),
        (Constraint, CONSTRAINTS, set()),
        (Combination, ACCUMULATORS, set()),
        (Training, ALGORITHMS, set()),
        (Personalization, METHODS, set()),
        (Partition, _OWNERS, set()),
        (Sampling, _SAMPLERS, set()),
        (LocalOptimizer, STEPPERS, {LocalDescent}),
    ],
    ids=["optimizer", "constraint", "aggregation", "training", "personalization", "partition", "sampling", "local"],
)
def test_every_type_of_settings_has_its_maker(union: Any, makers: Mapping[type, Any], others: set[type]) -> None:
    assert {*makers} | others == {*get_args(union)}
