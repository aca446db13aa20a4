"""The outcomes of simulated choices: values by each outcome's law, within its declared bounds, at once or later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedping.client_sim.features.encode import FloatArray
from fedping.client_sim.rehearsal.settings import OutcomeLaw
from fedping.protocol.draws import Keys, child_keys, normals, uniforms
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.outcomes import CategoryOutcome, CountOutcome, FlagOutcome, NumberOutcome, Outcome

_LARGEST_POWER = 700.0
_HAPPENS, _VALUE, _AGE = range(3)


class Followed(NamedTuple):
    """An outcome of N choices.

    Attributes:
        outcome: the outcome's declaration.
        values: the value that each client sends; None if it sends none.
        ages: whole hours after the choice; None for an outcome at the choice.
    """

    outcome: Outcome
    values: list[Any]
    ages: list[int] | None


def check_laws(study: str, declared: Sequence[Outcome], laws: Mapping[str, OutcomeLaw], lists: bool) -> None:
    """Raise :class:`InvalidSettings` for a law of an outcome that a study's clients can't report."""
    names = [outcome.name for outcome in declared]
    if unknown := next((name for name in laws if name not in names), None):
        has = f"it has {', '.join(names)}" if names else "it has none"
        raise InvalidSettings(f"the rehearsal has a law of '{unknown}', which study '{study}' doesn't declare; {has}")
    if laws and not lists:
        raise InvalidSettings(
            f"the rehearsal has outcomes, which follow the choice from a list, and study '{study}' has no pings of "
            'lists. Set pings = "list-update" in the study, or remove the outcomes'
        )


def followed(
    declared: Iterable[Outcome], laws: Mapping[str, OutcomeLaw], utility: FloatArray, keys: Keys
) -> list[Followed]:
    """Return the outcomes of N choices, for outcomes with a law.

    Args:
        declared: the study's outcomes.
        laws: the laws of some outcomes, by name.
        utility: utility of the chosen items, shape (N,).
        keys: keys of the choices, shape (N,).
    """
    return [
        _of(outcome, laws[outcome.name], utility, child_keys(keys, number))
        for number, outcome in enumerate(declared)
        if outcome.name in laws
    ]


def _of(outcome: Outcome, law: OutcomeLaw, utility: FloatArray, keys: Keys) -> Followed:
    happens = uniforms(child_keys(keys, _HAPPENS), 1)[:, 0] < law.chance
    drawn = _values(outcome, law, law.level + law.slope * utility, child_keys(keys, _VALUE))
    ages = None
    if (within := outcome.hours) is not None:
        hours = -law.after * np.log1p(-uniforms(child_keys(keys, _AGE), 1)[:, 0])
        happens &= hours < within
        ages = np.floor(np.minimum(hours, within - 1)).astype(np.int64).tolist()
    values = [outcome.clipped(value) if there else None for value, there in zip(drawn, happens.tolist(), strict=True)]
    return Followed(outcome, values, ages)


def _values(outcome: Outcome, law: OutcomeLaw, x: FloatArray, keys: Keys) -> Sequence[Any]:
    uniform = uniforms(keys, 1)[:, 0]
    match outcome:
        case FlagOutcome():
            likely = 1 / (1 + np.exp(-np.clip(x, -_LARGEST_POWER, _LARGEST_POWER)))
            return [draw < chance for draw, chance in zip(uniform.tolist(), likely.tolist(), strict=True)]
        case CountOutcome(most=most):
            return list(_poisson(uniform, np.exp(np.minimum(x, np.log(most) + 1))).tolist())
        case NumberOutcome():
            power = x + law.spread * normals(child_keys(keys, _VALUE), 1)[:, 0]
            return list(np.exp(np.clip(power, -_LARGEST_POWER, _LARGEST_POWER)).tolist())
        case CategoryOutcome(values=values):
            return [values[at] for at in np.floor(uniform * len(values)).astype(np.intp).tolist()]


def _poisson(uniform: FloatArray, mean: FloatArray) -> FloatArray:
    """Return Poisson numbers by the inverse of their distribution function."""
    from scipy.special import pdtrik

    found: FloatArray = np.where(uniform <= np.exp(-mean), 0.0, np.ceil(np.nan_to_num(pdtrik(uniform, mean))))
    return found
