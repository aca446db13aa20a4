"""The results of a simulated study: the loss from its lineage, everything else from its landed pings.

The pings of a private study are deleted, and nothing exact is stored. As in a real private study, the released results
of its rounds and the spent budget follow from the lineages of its versions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from fedping.analysis.curves import ArmCurve, arm_curves
from fedping.analysis.private import PrivateResult, private_result
from fedping.analysis.rounds import smoothed
from fedping.experiments.simulate.line_run import by_guard
from fedping.experiments.simulate.settings import Experiment
from fedping.model_store.store import ModelStore
from fedping.protocol.landed_file import open_landed
from fedping.protocol.landing import id_bytes, landed_at, open_landing, study_of
from fedping.protocol.location import Place
from fedping.protocol.study import Study
from fedping.server_jobs.privacy.budget import SIMULATED, LineSpent, spent_by

_COLUMNS = ["client_id", "study_variation", "model_version", "rank_selected", "num_chars_typed", "loss"]


class ArmFigures(Struct, frozen=True, kw_only=True):
    """The figures of one arm in one phase. Means are over pings with a selection; null without any.

    ``stale`` pings of the evaluation are of versions before the frozen one; late pings of the optimization are not
    counted here, because every version's lineage counts them.
    """

    pings: int
    clients: int
    selections: int
    stale: int
    characters: float | None
    rank: float | None
    loss: float | None


class PhaseFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of one phase: its landing times (milliseconds since 1970), its totals, and each arm.

    ``hostile_pings`` is the number of pings of hostile clients and of invented ids, among all pings.
    """

    from_ms: int
    until_ms: int
    pings: int
    clients: int
    arms: dict[str, ArmFigures]
    hostile_pings: int = 0


class LineFigures(Struct, frozen=True, kw_only=True):
    """One line: the evaluated version, and the first version since which the trained arms' loss stays lower.

    Since that version, each arm that applies the model has a loss below every arm that does not, with the raw loss and
    with the mean of five iterations; null if there is none, as without ``controls``, the arms that follow the line and
    do not apply it.
    """

    frozen_version: int
    rounds: int
    controls: list[str]
    below_all_controls_from: int | None
    below_all_controls_from_smoothed: int | None


class Summary(Struct, frozen=True, kw_only=True):
    """The summary of a whole experiment. ``enrolled`` is the number of clients with a ping in any phase."""

    study: str
    seed: int
    clients: int
    pings: int
    senders: int
    optimization: PhaseFigures
    evaluation: PhaseFigures | None
    lines: dict[str, LineFigures]


def summarised(
    experiment: Experiment,
    study: Study,
    store: ModelStore,
    landing: Path,
    evaluation_tick: int,
    hostile: NDArray[np.uint8],
) -> Summary:
    """Return the summary of a finished run.

    ``evaluation_tick`` is the first tick of the evaluation, ``hostile`` are the ids of hostile clients, shape (h, 16).
    """
    attacking = np.ascontiguousarray(hostile).view("V16").ravel()
    boundary = experiment.start_ms + evaluation_tick * experiment.tick_ms
    files = [file for file in open_landing(landing).all_files() if study_of(file) == study.name]
    early = [file for file in files if (landed_at(file) or 0) <= boundary]
    late = [file for file in files if (landed_at(file) or 0) > boundary]
    evaluated = experiment.evaluation.ticks if experiment.evaluation else 0
    newest = {line.name: store.head(study.name, line.name).iteration for line in study.lines}
    first, first_ids = _phase(early, study, experiment.start_ms, boundary, {}, attacking)
    until = boundary + evaluated * experiment.tick_ms
    second, second_ids = _phase(late, study, boundary, until, newest, attacking)
    return Summary(
        study=study.name,
        seed=experiment.seed,
        clients=experiment.clients,
        pings=first.pings + second.pings,
        senders=sum(len(np.union1d(*both)) for both in zip(first_ids, second_ids, strict=True)),
        optimization=first,
        evaluation=second if evaluated else None,
        lines={line.name: _line(study, store, line.name) for line in study.lines},
    )


def _phase(
    files: list[Place],
    study: Study,
    since: int,
    until: int,
    newest: dict[str, int],
    hostile: NDArray[np.void],
) -> tuple[PhaseFigures, list[NDArray[np.void]]]:
    """Return the figures of a phase, and the ids of its senders, in parts.

    It keeps 26 bytes per ping in memory: an id, an arm, and the loss if something was selected.
    """
    arms = [_Arm() for _ in study.arms]
    senders: list[list[tuple[NDArray[np.void], NDArray[np.int16]]]] = [[] for _ in range(_PARTS)]
    hostile_pings = 0
    for file in files:
        ids, arm, version, rank, characters, loss = _columns(file, [each.name for each in study.arms])
        hostile_pings += int(np.isin(ids, hostile).sum())
        for position, (one, settings) in enumerate(zip(arms, study.arms, strict=True)):
            mine = arm == position
            one.add(mine, mine & (version < newest.get(settings.line or "", -1)), rank, characters, loss)
        part = ids.view(np.uint8)[::16] // (256 // _PARTS)
        for number, phase in enumerate(senders):
            phase.append((ids[part == number], arm[part == number]))
    counts, who = np.zeros(len(arms), np.int64), []
    for phase in senders:
        every, of = map(np.concatenate, zip(*phase, strict=True)) if phase else (_NOBODY, np.zeros(0, np.int16))
        phase.clear()
        unique, first = np.unique(every, return_index=True)
        counts += np.bincount(of[first], minlength=len(arms))
        who.append(unique)
    figure = PhaseFigures(
        from_ms=since,
        until_ms=until,
        pings=sum(one.pings for one in arms),
        clients=sum(map(len, who)),
        arms={
            settings.name: one.figures(int(clients))
            for settings, one, clients in zip(study.arms, arms, counts, strict=True)
        },
        hostile_pings=hostile_pings,
    )
    return figure, who


_PARTS = 16
"""Number of parts into which ids are divided by their first bits; one part is sorted at a time."""

_NOBODY = np.zeros(0, "V16")


@dataclass
class _Arm:
    """The counts of an arm, added up file by file; sums of whole numbers are exact."""

    pings: int = 0
    selections: int = 0
    stale: int = 0
    characters: int = 0
    rank: int = 0
    losses: list[NDArray[np.float64]] = field(default_factory=list)

    def add(
        self,
        mine: NDArray[np.bool_],
        stale: NDArray[np.bool_],
        rank: NDArray[Any],
        characters: NDArray[Any],
        loss: NDArray[np.float64],
    ) -> None:
        """Add the pings of a file; ``mine`` and ``stale`` mark this arm's pings, and the stale ones among them."""
        chosen = mine & (rank >= 0)
        self.pings += int(mine.sum())
        self.selections += int(chosen.sum())
        self.stale += int(stale.sum())
        self.characters += int(characters[chosen].sum(dtype=np.int64))
        self.rank += int(rank[chosen].sum(dtype=np.int64))
        self.losses.append(loss[chosen])

    def figures(self, clients: int) -> ArmFigures:
        """Return the figures, and discard the losses."""
        losses = np.concatenate(self.losses) if self.losses else np.zeros(0)
        self.losses.clear()
        return ArmFigures(
            pings=self.pings,
            clients=clients,
            selections=self.selections,
            stale=self.stale,
            characters=self.characters / self.selections if self.selections else None,
            rank=self.rank / self.selections if self.selections else None,
            loss=float(np.mean(losses, dtype=np.float64)) if self.selections else None,
        )


def _columns(file: Place, arms: list[str]) -> tuple[NDArray[Any], ...]:
    with open_landed(file).opened() as landed:
        table = landed.read(columns=_COLUMNS).combine_chunks()
    variation = table.column("study_variation").cast(pa.string()).combine_chunks().dictionary_encode()
    variation = variation.chunk(0) if isinstance(variation, pa.ChunkedArray) else variation
    codes = np.array([arms.index(name) for name in variation.dictionary.to_pylist()], np.int16)
    return (
        np.ascontiguousarray(id_bytes(table.column("client_id").chunk(0))).view("V16").ravel(),
        codes[variation.indices.to_numpy()],
        *(table.column(name).to_numpy() for name in _COLUMNS[2:]),
    )


def _line(study: Study, store: ModelStore, line: str) -> LineFigures:
    curves = arm_curves(store, study.name, line)
    head = store.head(study.name, line)
    return LineFigures(
        frozen_version=head.iteration,
        rounds=head.iteration - (head.lineage.origin == "rollback" and not by_guard(head)),
        controls=[arm.name for arm in study.arms if arm.line == line and not arm.applies],
        below_all_controls_from=below_from(study, curves, 1),
        below_all_controls_from_smoothed=below_from(study, curves, 5),
    )


def below_from(study: Study, curves: dict[str, ArmCurve], over: int) -> int | None:
    """Return the first version since which all arms that apply the model have a lower loss than all that don't.

    Args:
        study: the study, which defines the arms that apply the model.
        curves: the losses by arm and version.
        over: number of versions that the loss is averaged over.
    """
    applies = {arm.name: arm.applies for arm in study.arms}
    losses = {name: dict(zip(c.iterations, smoothed(c.loss, over), strict=True)) for name, c in curves.items()}
    shared = sorted(set.intersection(*(set(by) for by in losses.values()))) if losses else []
    if len({applies[name] for name in losses}) < 2:
        return None
    first = None
    for version in reversed(shared):
        trained = max(by[version] for name, by in losses.items() if applies[name])
        if trained >= min(by[version] for name, by in losses.items() if not applies[name]):
            break
        first = version
    return first


class PrivateLineFigures(Struct, frozen=True, kw_only=True):
    """A private line's newest version, its spent budget, and whether its guarantee allows no further round."""

    version: int
    spent: LineSpent
    exhausted: bool


class PrivateSummary(Struct, frozen=True, kw_only=True):
    """The summary of an experiment with a private study; ``results`` include the noise and its errors."""

    study: str
    seed: int
    clients: int
    lines: dict[str, PrivateLineFigures]
    results: PrivateResult
    caution: str = SIMULATED


def private_summary(experiment: Experiment, study: Study, store: ModelStore) -> PrivateSummary:
    """Return the summary of a finished run."""
    lines = {}
    for line in study.lines:
        spent = spent_by(store, study, line)
        head = store.head(study.name, line.name)
        lines[line.name] = PrivateLineFigures(version=head.iteration, spent=spent, exhausted=spent.rounds_left == 0)
    return PrivateSummary(
        study=study.name,
        seed=experiment.seed,
        clients=experiment.clients,
        lines=lines,
        results=private_result(store, study),
    )
