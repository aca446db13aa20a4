"""The guard: compares a round's figures with those of earlier rounds, and decides about held and staged versions.

All decisions are derived from the parent version and the round, because lineages have the figures of earlier rounds.
So the recomputation of a version results in the same decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, median
from typing import Literal, NamedTuple

import numpy as np

from fedping.model_store.decisions import describe_missing
from fedping.model_store.version import Aggregate, ArmSummary, GuardState, Level, StageResult, StageState, Version
from fedping.protocol.guard import FIGURES, Guard, Stage
from fedping.protocol.study import Line, Study
from fedping.server_jobs.optimize.transformation import Vector
from fedping.server_jobs.round.new_clients import REGISTERS, estimated

_SMALLEST = 1e-300
"""Replacement of zero in logarithms."""

_IN_WORDS = {
    "norm": "the updates together are {now:.3g} long; the largest of {rounds} was {most:.3g}",
    "jump": "a weight would change by {now:.3g}; the largest change in {rounds} was {most:.3g}",
    "clients": "{now:,.0f} clients have sent updates; there were at most {most:,.0f} in {rounds}",
    "new_clients": "up to {now:,.0f} clients are new; it was up to {most:,.0f} in {rounds}",
    "agreement": "the clients agree more ({now:.2f}) than in any of {rounds} ({most:.2f} at most)",
    "loss": "where the model is applied the loss is {now:.2f} times that of the control; it was at most {most:.2f} "
    "times in {rounds}",
}
"""Sentences of alarms, by figure. Versions store them, so a changed sentence breaks the recomputation of old
versions."""

_CROWD = {"clients", "new_clients"}
"""Figures whose alarms indicate invented clients. The round's losses are then not trusted."""

_CLOSE = 0.1
"""Floor of the loss relative to the control's loss. Lower values in earlier rounds count as this value."""

_ROUNDING = 1e-12
"""Fraction of the usual jump below which a jump counts as zero."""

_FALSE_FALLS = 1e-3
"""Probability that the guardrail is exceeded by chance in all its rounds, if the true value equals the bound."""

_SURELY = 3.0
"""Minimum excess of the loss, in standard errors, if the control's value is 0, to which there is no ratio."""

STAGE_ERRORS = 2.33
"""Standard errors by which a staged version must be worse to be withdrawn. Chance causes this once in 100 versions."""

_CHANCE = 10
"""Number of new clients, and of changed registers, by which the count of new clients is raised to allow for chance."""

_METRICS = {"loss": "loss", "rank_selected": "selected rank"}


def watched(
    guard: Guard | None,
    study: Study,
    parent: Version,
    aggregate: Aggregate,
    arms: Mapping[str, ArmSummary],
    weights: Vector,
) -> GuardState | None:
    """Return the guard's state after a round: the figures of the last rounds, and the alarms of this one.

    Args:
        guard: the line's guard; None if it has none.
        study: the study, whose arms include the control.
        parent: the version that the updates are based on.
        aggregate: the aggregate of the round's updates.
        arms: the figures of each arm with the parent version.
        weights: the round's new weights, shape (m,).
    """
    if guard is None or not guard.enabled:
        return None
    now = figures(study, parent, aggregate, arms, weights)
    before = parent.lineage.guard
    history = {name: before.figures.get(name, ()) if before else () for name in FIGURES}
    floors = _floors(study, parent, aggregate) if guard.floors else {}
    at_least = now | _sure(study, parent.line, arms)
    checked = {
        name: _alarm(guard, name, history[name], floors, now[name], at_least[name]) for name in FIGURES if name in now
    }
    alarms = {name: sentence for name, sentence in checked.items() if sentence}
    for name in alarms:  # if the version is released, its figure is normal from then on
        history[name] = tuple(max(value, now[name]) for value in history[name])
    recent = {name: (*history[name], now[name])[-guard.window :] if name in now else history[name] for name in FIGURES}
    recent = {name: values for name, values in recent.items() if values}
    crowded = bool(alarms.keys() & _CROWD)  # losses of clients that appeared all at once aren't trusted
    beyond = (before.beyond if before else 0) + 1 if not crowded and _is_beyond(guard, study, parent, arms) else 0
    return GuardState(figures=recent, alarms=tuple(alarms.values()), beyond=beyond)


class Fall(NamedTuple):
    """A rollback over the last ``rounds`` rounds instead of a step, with the reason ``why``."""

    rounds: int
    why: str


def fallen(guard: Guard | None, seen: GuardState | None) -> Fall | None:
    """Return the rollback that the guardrail requires; None if no rollback is required."""
    rail = guard.guardrail if guard is not None else None
    if rail is None or seen is None or seen.beyond < rail.rounds:
        return None
    rounds = "a round" if rail.rounds == 1 else f"{rail.rounds} rounds one after the other"
    if rail.metric not in _METRICS:
        worse = f"worse than the control's by a factor of more than {rail.most:g}"
        return Fall(rail.rounds, f"the outcome '{rail.metric}' where the model is applied was {worse} for {rounds}")
    metric = _METRICS[rail.metric]
    return Fall(
        rail.rounds, f"the {metric} where the model is applied was above {rail.most:g} times the control's for {rounds}"
    )


def _is_beyond(guard: Guard, study: Study, parent: Version, arms: Mapping[str, ArmSummary]) -> bool:
    """Return whether a round's arms exceed the guardrail; False if that can't be determined."""
    rail = guard.guardrail
    if rail is None:
        return False
    treated, control = _against_control(study, parent.line, arms, rail.metric)
    if treated is None or control is None:
        return False
    if _is_better_above(guard, study, parent.line):
        least = control.value - (1 - 1 / rail.most) * abs(control.value)
        error = math.hypot(treated.error or 0.0, (control.error or 0.0) / rail.most)
        return treated.value < least - by_chance(rail.rounds) * error
    most = control.value + (rail.most - 1) * abs(control.value)
    if treated.error is None or control.error is None:
        return treated.value > most and not (guard.floors and control.value == 0)
    sure = _SURELY if control.value == 0 else by_chance(rail.rounds)
    return treated.value > most + sure * math.hypot(treated.error, rail.most * control.error)


def _is_better_above(guard: Guard, study: Study, line: str) -> bool:
    """Return whether the guardrail checks an outcome for which larger values are better."""
    outcome = study.guarded_outcome(study.line(line)) if guard.guardrail is not None else None
    return outcome is not None and outcome.better == "more"


def by_chance(rounds: int) -> float:
    """Return the number of standard errors that chance exceeds ``rounds`` times in a row with probability 1/1,000."""
    return max(0.0, NormalDist().inv_cdf(1 - _FALSE_FALLS ** (1 / rounds)))


def figures(
    study: Study, parent: Version, aggregate: Aggregate, arms: Mapping[str, ArmSummary], weights: Vector
) -> dict[str, float]:
    """Return a round's available figures by name, each a finite number of at least 0.

    ``agreement`` is the mean over the weights of |mean| / root mean square of the updates: 1 if all updates are
    equal, about 1/√n if the updates of n clients are independent.
    """
    mean = np.array(aggregate.mean)
    values = {
        "norm": _length(mean),
        "jump": float(np.abs(weights - np.array(parent.weights)).max(initial=0.0)),
        "clients": float(aggregate.clients),
    }
    known, new = parent.lineage.known, aggregate.influence.new_clients if aggregate.influence else None
    if known is not None and new is not None:
        values["new_clients"] = new + _CHANCE * (1 + estimated(known) / REGISTERS)
    if aggregate.weight > 0:
        spread = np.sqrt(np.array(aggregate.m2) / aggregate.weight)
        size = np.hypot(mean, spread)
        with np.errstate(invalid="ignore"):
            shares = np.where(size > 0, np.abs(mean) / size, 0.0)
        values["agreement"] = float(shares.mean())
    treated, control = _against_control(study, parent.line, arms, "loss")
    if treated is not None and control is not None and _has_size(control):
        values["loss"] = treated.value / control.value
    return {name: value for name, value in values.items() if math.isfinite(value) and value >= 0}


def looks_at_new_clients(guard: Guard | None) -> bool:
    """Return whether the guard needs the number of new clients."""
    return guard is not None and guard.enabled and guard.new_clients is not None


def _floors(study: Study, parent: Version, aggregate: Aggregate) -> dict[str, float]:
    """Return the smallest expected figures of a round, by name."""
    return {
        "jump": float(study.line(parent.line).spec.steps.start.max()),
        "agreement": 1 / math.sqrt(max(aggregate.clients, 1)),
        "loss": _CLOSE,
    }


def _expected(name: str, before: tuple[float, ...], floors: Mapping[str, float]) -> tuple[float, ...]:
    """Return a figure's reference values: its values in earlier rounds, raised to a floor if there is one.

    The floor of agreement is its value for independent updates; the floor of a loss is a tenth of the control's loss.
    A round that changed no weights counts as a change by the first step size; otherwise every later change would
    raise an alarm. A norm of 0 is ignored, because it provides no scale.
    """
    if not floors or name not in ("norm", *floors):
        return before
    if name == "norm":
        return tuple(value for value in before if value > 0)
    floor = floors[name]
    if name == "jump":
        return tuple(value if value > _ROUNDING * floor else floor for value in before)
    return tuple(max(value, floor) for value in before)


def _sure(study: Study, line: str, arms: Mapping[str, ArmSummary]) -> dict[str, float]:
    """Return lower bounds of figures by name, reduced by one standard error, if errors are known."""
    treated, control = _against_control(study, line, arms, "loss")
    if treated is None or control is None or treated.error is None or control.error is None:
        return {}
    size = control.value + control.error
    return {"loss": (treated.value - treated.error) / size} if size else {}


def _has_size(level: Level) -> bool:
    """Return whether a mean can be a denominator: it isn't 0, and exceeds its standard error, if known."""
    return level.value != 0 if level.error is None else level.value > level.error


def _alarm(
    guard: Guard, name: str, before: tuple[float, ...], floors: Mapping[str, float], now: float, at_least: float
) -> str | None:
    """Return the sentence of a figure's alarm; None if its lower bound isn't unusual."""
    factor, expected = getattr(guard, name), _expected(name, before, floors)
    if factor is None or len(expected) < guard.rounds:
        return None
    rounds = f"the last {len(before)} rounds"
    if not _stands_out(at_least, expected, factor, guard.deviations):
        # The last rounds may have approached it gradually, so older ones decide too if the window is full.
        before = before[: -guard.rounds] if len(before) == guard.window else ()
        expected = _expected(name, before, floors)
        rounds = f"the {len(before)} rounds before the last {guard.rounds}"
        if len(expected) < guard.rounds or not _stands_out(at_least, expected, factor, guard.deviations):
            return None
    return _IN_WORDS[name].format(now=now, most=max(before), rounds=rounds)


def _stands_out(now: float, before: Sequence[float], factor: float, deviations: float) -> bool:
    """Return whether a figure exceeds earlier values by ``factor``, and their median by robust ``deviations``."""
    logs = [math.log(max(value, _SMALLEST)) for value in before]
    middle = median(logs)
    deviation = 1.4826 * median(abs(value - middle) for value in logs)
    return math.log(max(now, _SMALLEST)) > max(max(logs) + math.log(factor), middle + deviations * deviation)


def _against_control(
    study: Study, line: str, arms: Mapping[str, ArmSummary], metric: str
) -> tuple[Level | None, Level | None]:
    """Return the mean of a metric over a line's arms that apply its model, and over its other arms.

    Arms with personal models are ignored, because their metrics don't describe the line's model.
    """
    following = [arm for arm in study.arms if arm.line == line and not arm.personal]
    applying = [arms[arm.name] for arm in following if arm.applies and arm.name in arms]
    others = [arms[arm.name] for arm in following if not arm.applies and arm.name in arms]
    return mean_of_arms(applying, metric), mean_of_arms(others, metric)


def mean_of_arms(arms: Sequence[ArmSummary], metric: str) -> Level | None:
    """Return the mean of a metric, weighted by the arms' votes, with ranks from 1; None if no arm has the metric."""
    levels = [level for arm in arms if (level := arm.level(metric)) is not None]
    votes = sum(level.votes for level in levels)
    if not votes:
        return None
    value = sum(level.value * level.votes for level in levels) / votes + (metric == "rank_selected")
    errors = [level.error * level.votes for level in levels if level.error is not None]
    return Level(value, math.hypot(*errors) / votes if len(errors) == len(levels) else None, votes)


def _length(vector: Vector) -> float:
    """Return the Euclidean norm of a vector, without overflow in the squares."""
    largest = float(np.abs(vector).max(initial=0.0))
    return largest * float(np.sqrt(np.square(vector / largest).sum())) if largest > 0 else 0.0


def stage_of(line: Line) -> Stage | None:
    """Return the settings of a line's stage; None if its versions are published to all clients at once."""
    return line.guard.stage if line.guard is not None and line.guard.enabled else None


class Verdict(NamedTuple):
    """The decision about a staged version, and its reason as part of a sentence."""

    decision: Literal["promoted", "withdrawn"]
    why: str


def verdict(stage: Stage, seen: StageState) -> Verdict | None:
    """Return the decision about a staged version; None while too few clients have sent a ping."""
    if describe_missing(stage, seen):
        return None
    tried, stayed = loss_of(seen.tried), loss_of(seen.stayed)
    if tried is None or stayed is None:
        return None
    bound = stayed.value + (stage.most - 1) * abs(stayed.value)
    bound += STAGE_ERRORS * math.hypot(tried.error or 0.0, stage.most * (stayed.error or 0.0))
    if tried.value <= bound:
        return Verdict("promoted", describe_trial(seen))
    return Verdict("withdrawn", f"{describe_trial(seen)}, and it may be {bound:.4g} at most")


def describe_trial(seen: StageState) -> str:
    """Return the mean losses of both sides of a stage, as part of a sentence."""
    return " and ".join(
        f"{side.clients:,} clients {who} had a mean loss of {loss.value:.4g}"
        for side, who in ((seen.tried, "that tried it"), (seen.stayed, "that stayed"))
        if side is not None and (loss := loss_of(side)) is not None
    )


def loss_of(side: StageResult | None) -> Level | None:
    """Return the mean loss of one side of a stage; None without any loss."""
    return None if side is None else mean_of_arms(list(side.arms.values()), "loss")
