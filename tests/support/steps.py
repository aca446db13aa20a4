"""A round's step from a version's weights and state, given the mean update, without pings."""

import numpy as np

from fedping.model_store.version import Aggregate, ChainState, LinkState
from fedping.protocol.study import Line
from fedping.server_jobs.optimize import first_state, state_from_document, state_to_document, step_arrays


def next_weights(
    line: Line, weights: tuple[float, ...], state: ChainState, aggregate: Aggregate
) -> tuple[tuple[float, ...], dict[str, LinkState]]:
    """Return the next weights and state after an aggregate."""
    there, after = step_arrays(
        line, np.array(weights), state_from_document(state, first_state(line)), np.array(aggregate.mean)
    )
    return tuple(there.tolist()), state_to_document(after)
