"""What the thesis' author published of his simulation: validation accuracies by model version, seed 10.

From the outputs of https://github.com/florian/federated-learning, simulations/frecency.ipynb, of July 2018.
"""

from __future__ import annotations

RPROP_NUMERIC = (
    *(0.7518, 0.7566, 0.8106, 0.8262, 0.8896, 0.889, 0.882, 0.9658, 0.9842, 0.9984, 0.9988, 0.9990, 0.999, 0.9998),
    *(0.999, 1.0, 1.0),
)
"""Versions 0 to 16; 1.0 from then on to the last, 47."""

RPROP_ANALYTIC = (
    *(0.7518, 0.7542, 0.7612, 0.8112, 0.806, 0.800, 0.797, 0.8684, 0.866, 0.867, 0.868, 0.867, 0.8742, 0.910, 0.905),
    *(0.9358, 0.939, 0.9456, 0.9526, 0.9568, 0.955, 0.951, 0.952, 0.9578, 0.957, 0.9622, 0.863, 1.0, 0.927, 1.0),
)
"""Versions 0 to 29; 1.0 from then on. Its client weighs by the violation and leaves out the chosen page's own term."""

GRADIENT_DESCENT_ANALYTIC = (0.7518, 0.579, 0.828, 0.9532, 0.9544, 0.963, 0.9782, 0.973, 0.975, 0.979, 0.9806)
"""Versions 0 to 10, at a rate of 30, with the same client; between 0.974 and 0.981 from then on."""

VERSIONS = 48


def to_the_end(values: tuple[float, ...]) -> list[float]:
    """Return the accuracies of all versions, the last value repeated."""
    return [*values, *[values[-1]] * (VERSIONS - len(values))]
