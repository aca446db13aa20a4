"""How a round's aggregate moves the weights: a chain of small pure transformations.

To add an optimizer or a constraint: its settings, in the union of `fedping.protocol.pipeline` or
`fedping.protocol.spec`, and a function in `optimizers` or `constraints` that makes its link, with the decorator there.
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
