"""Whether a staged version is for everybody: what was heard of those who got it first, beside those who did not.

A stage is read from the landed pings alone, and as a whole at every look, so that a round may be killed and run again.
What the decision was made of stands in the lineage (`fedping.model_store.version.StageState`), and the decision follows
from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from fedping.model_store.decisions import describe_missing
from fedping.model_store.version import InputFile, Level, StageResult, StageState, Version
from fedping.protocol.guard import Stage
from fedping.protocol.location import Place
from fedping.protocol.study import Line, Study
from fedping.server_jobs.round.aggregate import arms_of, in_order, joined
from fedping.server_jobs.round.capacity import key_of_lots
from fedping.server_jobs.round.engine import Engine
from fedping.server_jobs.round.guard import mean_of_arms
from fedping.server_jobs.round.manifest import list_landed, work_on
from fedping.server_jobs.round.plan import StageSide, rules_for

SURELY = 2.33
"""Standard errors by which those who try a version have to be worse, where they are known: chance alone once in 100."""


@dataclass(frozen=True, slots=True)
class StageReading:
    """What a round finds of a stage.

    ``stale`` counts pings of versions before the newest that have landed since the staged one was made, and
    ``until_ms`` is the latest landing that was seen.
    """

    seen: StageState
    stale: int
    until_ms: int


def read_stage(
    landing: Place, study: Study, head: Version, staged: Version, share: float, engine: Engine, *, now_ms: int
) -> StageReading:
    """Return what has landed of the stage of a version that may follow ``head``.

    Those who stayed are heard from pings that have landed since the staged version was made: at the same time as those
    who try it.

    Raises:
        UnreadableFile: a landed file is not whole, or not of the study's pings.
    """
    used = {file.path for file in staged.lineage.inputs}
    window = staged.lineage.window_end_ms
    before = list_landed(landing, study, head.line, head.iteration, window, now_ms=now_ms)
    since = list_landed(landing, study, head.line, staged.iteration, window, now_ms=now_ms)
    stayed = tuple(file for file in before.inputs if file.path not in used)
    side = StageSide(study=study.name, line=head.line, iteration=staged.iteration, share=share, inside=True)
    seen = StageState(
        share=share,
        tried=_heard(landing, study, staged.iteration, since.inputs, side, staged.digest, engine),
        stayed=_heard(landing, study, head.iteration, stayed, replace(side, inside=False), staged.digest, engine),
    )
    return StageReading(seen=seen, stale=before.stale, until_ms=max(before.window_end_ms, since.window_end_ms))


def _heard(
    landing: Place,
    study: Study,
    iteration: int,
    inputs: tuple[InputFile, ...],
    side: StageSide,
    digest: str,
    engine: Engine,
) -> StageResult:
    """Return what the clients on one side have said of a version; no update is read."""
    if not inputs:
        return StageResult()
    rules = rules_for(study, side.line, iteration, key=key_of_lots(digest, inputs))
    applying = {arm.name for arm in study.arms if arm.applies and not arm.personal}  # others' losses are of their own
    rules = replace(rules, submits=(False,) * len(rules.arms), measures=True, side=side)
    whole = joined(in_order(engine.partials(work_on(landing, inputs, rules)), rules.shards))
    places = [place for place, arm in enumerate(rules.arms) if arm in applying]
    return StageResult(
        clients=sum(whole.arms[place].clients for place in places),
        arms={name: told for name, told in arms_of(whole, rules).items() if name in applying},
    )


def stage_of(line: Line) -> Stage | None:
    """Return how the versions of a line are staged; None if they are not."""
    return line.guard.stage if line.guard is not None and line.guard.enabled else None


class Verdict(NamedTuple):
    """What a stage comes to, and why."""

    decision: Literal["promoted", "withdrawn"]
    why: str


def verdict(stage: Stage, seen: StageState) -> Verdict | None:
    """Return what becomes of a staged version; None as long as too few have been heard."""
    if describe_missing(stage, seen):
        return None
    tried, stayed = loss_of(seen.tried), loss_of(seen.stayed)
    if tried is None or stayed is None:
        return None
    bound = stayed.value + (stage.most - 1) * abs(stayed.value)
    bound += SURELY * math.hypot(tried.error or 0.0, stage.most * (stayed.error or 0.0))
    if tried.value <= bound:
        return Verdict("promoted", describe_trial(seen))
    return Verdict("withdrawn", f"{describe_trial(seen)}, and it may be {bound:.4g} at most")


def describe_trial(seen: StageState) -> str:
    """Return what was heard of both sides, as a part of a sentence."""
    return " and ".join(
        f"{side.clients:,} clients {who} had a mean loss of {loss.value:.4g}"
        for side, who in ((seen.tried, "that tried it"), (seen.stayed, "that stayed"))
        if side is not None and (loss := loss_of(side)) is not None
    )


def loss_of(side: StageResult | None) -> Level | None:
    """Return the mean loss of one side, which the decision is about; None without any."""
    return None if side is None else mean_of_arms(list(side.arms.values()), "loss")
