"""An audit of a table: the number of rows that each attack recovers, with and without protection."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from fedping.client_sim.data.table import Table
from fedping.client_sim.joining.answering import Noise
from fedping.client_sim.joining.columns import AgreedColumns
from fedping.client_sim.joining.examples import read_examples, wanted_by
from fedping.client_sim.joining.terms import model_of
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.model import Model
from fedping.experiments.privacy.rows.bins import Bins
from fedping.experiments.privacy.rows.canary import Claim, proven
from fedping.experiments.privacy.rows.clusters import Clusters
from fedping.experiments.privacy.rows.differencing import Differencing
from fedping.experiments.privacy.rows.evaluation import Evaluation
from fedping.experiments.privacy.rows.half_spaces import HalfSpaces
from fedping.experiments.privacy.rows.victim import Attack, Target, Victim
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.row_privacy import mu_of, noise_multiplier, steps_on_rows, why_unprotected
from fedping.protocol.study import Line, Study, public_study
from fedping.protocol.training import OneGradient, Training

ATTACKS: tuple[Attack, ...] = (
    HalfSpaces(),
    HalfSpaces(one_version=True),
    Bins(),
    Clusters(),
    Differencing(),
    Evaluation(),
)
"""All attacks."""

EXACT = 1e-3
"""Maximum error of each column, as a multiple of its standard deviation, in a recovered row."""

TINY = 1e-9
"""Standard deviation assumed for a column with the same value in all rows."""

FEWEST_ROWS = 2
"""Minimum rows of a table for attacks: removing one row must leave another."""

MOST_GUESSES = 200_000
"""Maximum number of an attack's guesses that are compared with the rows."""


class Found(Struct, frozen=True, kw_only=True):
    """The results of an attack.

    Attributes:
        attack: name of the attack.
        why_not: reason why the attack does not apply; empty if it does.
        rows: the number of rows recovered without protection.
        protected: the number of rows recovered with protection.
        chance: number of hits by chance: rows of a table with shuffled columns, which belong to no person, that the
            guesses without protection hit.
        protected_chance: number of hits by chance with protection.
        tried: the number of attacked rows; all rows for most attacks.
        refused: number of answers that the program refused, without protection and with it.
        late: whether the time ended before the attack, with or without protection, so that more rows may be
            recoverable.
        seconds: duration of both runs together.
    """

    attack: str
    why_not: str = ""
    rows: int = 0
    protected: int = 0
    chance: int = 0
    protected_chance: int = 0
    tried: int = 0
    refused: tuple[int, int] = (0, 0)
    late: bool = False
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether protection leaves no more hits than chance, up to three deviations of a Poisson count."""
        return self.protected <= self.protected_chance + 3 * math.sqrt(self.protected_chance)


@dataclass(frozen=True)
class Plan:
    """The tested protection and the limits of an audit.

    Attributes:
        versions: number of versions that the institution answers, T.
        epsilon: ε of the protection over all versions.
        delta: δ of the protection.
        seconds: time limit of an attack, for each of its two runs.
        runs: number of answers with a canary, and the same number without it, for the proof of a lower bound of ε.
        noise: noise multiplier that a study has agreed on; None if ε decides.
    """

    versions: int
    epsilon: float
    delta: float
    seconds: float = 30.0
    runs: int = 2000
    noise: float | None = None

    def in_sums(self, line: Line) -> Plan:
        """Return the plan with the noise of a line's sums of institutions, and at most the versions that ε allows.

        Raises:
            InvalidSettings: ε allows no version.
        """
        assert line.privacy is not None
        assert line.privacy.rows is not None
        noise = line.privacy.rows.noise
        affordable = int(mu_of(self.epsilon, self.delta) ** 2 * noise**2)
        if not affordable:
            raise InvalidSettings(
                f"in line '{line.name}' with noise {noise:g}, no version is answered at epsilon {self.epsilon:g}; "
                "give a larger --epsilon, or a study with more noise"
            )
        return replace(self, noise=noise, versions=min(self.versions, affordable))

    def multiplier(self, training: Training, versions: int) -> float:
        """Return the noise multiplier of each sum over the rows, given the number of answered versions."""
        return noise_multiplier(mu_of(self.epsilon, self.delta), versions * steps_on_rows(training))


class Report(Struct, frozen=True, kw_only=True):
    """The audit of a table.

    Attributes:
        study, line, model, training: the target.
        numbers: number of an update's components, m.
        rows: the number of rows of the table.
        versions: number of versions that the institution answers.
        epsilon, delta: the tested protection.
        proven_epsilon: proven lower bound of ε of a single answer that gets all of the protection, with 95 %
            confidence.
        runs: number of answers with a canary, and the same number without it, for that proof.
        attacks: the results of each attack.
        noise: noise multiplier of a sum of institutions, of which the attacker knows all but the table and this noise;
            None for a single institution's sums.
        holds: whether protection keeps its claim, as far as this audit shows: the bound proven with 99.99 % confidence
            is at most ``epsilon``, and each attack recovers hardly more than by chance.
    """

    study: str
    line: str
    model: str
    training: str
    numbers: int
    rows: int
    versions: int
    epsilon: float
    delta: float
    proven_epsilon: float
    runs: int
    attacks: tuple[Found, ...]
    holds: bool
    noise: float | None = None


def target_of(
    study: Study, line: Line, data: Path, label: str | None, agreed: AgreedColumns | None
) -> tuple[Model[Any], Table]:
    """Return the model that an institution trains for a line, and its table.

    Raises:
        InvalidSettings: an institution can't train the line with protection, or the table does not fit the model, or
            has a single row.
    """
    public = public_study(study)
    of_line = next(each for each in public.lines if each.name == line.name)
    if line.privacy is not None and line.privacy.rows is None:
        raise InvalidSettings(
            f"line '{line.name}' of study '{study.name}' is a private line; attack it with 'fedping audit' instead of "
            "'fedping audit join'"
        )
    if why_unprotected(line.training) is not None:
        raise InvalidSettings(
            f"the training of line '{line.name}' of study '{study.name}' keeps something with its clients, or is an "
            "extension, which 'fedping join' does not protect; choose a line of gradients or local steps"
        )
    model = model_of(public, of_line)
    wanted = wanted_by(model, f"the model '{line.spec.model}' of line '{line.name}'")
    table = read_examples(data, label, agreed, wanted)
    if len(table.y) < FEWEST_ROWS:
        raise InvalidSettings(
            f"{data}: a table of a single row would be sent as the row itself. Give a table of {FEWEST_ROWS} rows or "
            "more"
        )
    return model, table


def audit_of_line(
    study: Study, line: Line, model: Model[Any], table: Table, plan: Plan, seed: int, watch: Callable[[str], None]
) -> Report:
    """Return the audit of a table of a line's institution; arguments as in :func:`audited`.

    In sums of institutions, the attacker knows everything in a sum except the table and the noise that it claims.
    """
    if line.privacy is not None:
        plan = plan.in_sums(line)
    target = Target(model, line.training, len(table.y), table.x.shape[1], seed)
    watch("a canary")
    claim = Claim(plan.multiplier(line.training, 1), plan.delta, plan.runs, plan.seconds)
    canary = proven(target, table, claim)
    attacks = tuple(audited(target, table, plan, watch))
    return Report(
        study=study.name,
        line=line.name,
        model=line.spec.model,
        training="gradient" if isinstance(line.training, OneGradient) else "local steps",
        numbers=line.spec.m,
        rows=target.rows,
        versions=plan.versions,
        epsilon=plan.epsilon,
        delta=plan.delta,
        proven_epsilon=canary.proven.epsilon,
        runs=canary.runs,
        attacks=attacks,
        noise=plan.noise,
        holds=canary.sure <= plan.epsilon and all(each.holds for each in attacks),
    )


def audited(target: Target, table: Table, plan: Plan, watch: Callable[[str], None] = lambda _: None) -> list[Found]:
    """Return each attack's results for a table.

    Args:
        target: the attacker's knowledge.
        table: the rows.
        plan: versions and protection.
        watch: called with the name of each attack.
    """
    multiplier = plan.noise or plan.multiplier(target.training, plan.versions)
    noise = Noise(multiplier, target.random().bytes)
    with np.errstate(over="ignore"):
        nobody, near = _shuffled(table.x, target), EXACT * np.maximum(table.x.std(axis=0), TINY)
    found = []
    for attack in ATTACKS:
        watch(attack.name)
        if (why_not := attack.why_not(target)) is not None:
            found.append(Found(attack=attack.name, why_not=why_not))
            continue
        began = time.monotonic()
        tried = min(target.rows, attack.rows) if isinstance(attack, Differencing) else target.rows
        bare, guessed_bare = _attacked(attack, target, table, plan, None)
        kept, guessed_kept = _attacked(attack, target, table, plan, noise)
        found.append(
            Found(
                attack=attack.name,
                rows=min(recovered(table.x, guessed_bare, near), tried),  # a guess hits all equal rows
                protected=min(recovered(table.x, guessed_kept, near), tried),
                chance=min(recovered(nobody, guessed_bare, near), tried),
                protected_chance=min(recovered(nobody, guessed_kept, near), tried),
                tried=tried,
                refused=(bare.refused, kept.refused),
                late=bare.late or kept.late,
                seconds=time.monotonic() - began,
            )
        )
    return found


def _attacked(
    attack: Attack, target: Target, table: Table, plan: Plan, noise: Noise | None
) -> tuple[Victim, FloatArray]:
    """Attack an institution, and return it with the attack's guesses, shape (g, f)."""
    victim = Victim(target, table, plan.versions, noise, time.monotonic() + plan.seconds)
    kept = list(islice(attack.guesses(victim), MOST_GUESSES))
    return victim, np.array(kept).reshape(len(kept), target.features)


def recovered(rows: FloatArray, guesses: FloatArray, near: FloatArray) -> int:
    """Return the number of rows, shape (n, f), that a guess, shape (g, f), matches within ``near``, shape (f,).

    Each guess is compared with the rows that are near it in the column with the most values.
    """
    there = np.zeros(len(rows), np.bool_)
    finite = guesses[np.isfinite(guesses).all(axis=1)]
    column = int(np.argmax([len(np.unique(values)) for values in rows.T]))
    order = np.argsort(rows[:, column], kind="stable")
    in_order, far = rows[order], 2 * near[column]
    first = np.searchsorted(in_order[:, column], finite[:, column] - far)
    last = np.searchsorted(in_order[:, column], finite[:, column] + far, side="right")
    for guess, start, stop in zip(finite, first, last, strict=True):
        if start < stop:
            there[order[start:stop]] |= np.all(np.abs(in_order[start:stop] - guess) <= near, axis=1)
    return int(there.sum())


def _shuffled(rows: FloatArray, target: Target) -> FloatArray:
    """Return rows that belong to no person: each column is shuffled separately."""
    random = target.random()
    return np.stack([random.permutation(column) for column in rows.T], axis=1)
