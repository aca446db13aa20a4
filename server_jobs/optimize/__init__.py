"""Server optimizers: chains of small pure transformations from a round's aggregate to a step of the weights.

To add an optimizer or a constraint, define its settings in the union of `fedping.protocol.pipeline` or
`fedping.protocol.spec`, and a function in `optimizers` or `constraints` that creates its link, with the decorator of
that module.
"""

from fedping.server_jobs.optimize.pipeline import (
    first_state,
    first_versions,
    initial_state,
    links_for,
    pipeline_for,
    step_arrays,
)
from fedping.server_jobs.optimize.transformation import (
    Arrays,
    BrokenLink,
    Display,
    Transformation,
    Vector,
    by_link,
    chain,
    in_order,
    state_from_document,
    state_to_document,
)

__all__ = [
    "Arrays",
    "BrokenLink",
    "Display",
    "Transformation",
    "Vector",
    "by_link",
    "chain",
    "first_state",
    "first_versions",
    "in_order",
    "initial_state",
    "links_for",
    "pipeline_for",
    "state_from_document",
    "state_to_document",
    "step_arrays",
]
