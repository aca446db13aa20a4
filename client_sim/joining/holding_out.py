"""Evaluation on rows that are held out: an institution takes part a second time, as a client that does not train.

That client's arm applies the line's versions and submits no update, so what it sends is the loss of each version on
rows that were never learned from, and of a model of classes how many of each were taken for each. Rounds have its loss
like that of any arm, early stopping may go by it, and no row leaves the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import structs

from fedping.client_sim.client import NOT_ENROLLED
from fedping.client_sim.data.splits import hold_out
from fedping.client_sim.data.table import Table
from fedping.client_sim.fleet.roster import Roster
from fedping.client_sim.joining.examples import wanted_by
from fedping.client_sim.joining.folder import StateFolder, any_seed
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.model import Model
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.ping import MOST_CLASSES
from fedping.protocol.study import Arm, PublicStudy

HELD_OUT = "held-out"
"""The folder of that client, in the one of the client that trains."""

MOST_DRAWS = 10_000
"""Of new clients, until one is in an arm that is asked for."""


def evaluates(arm: Arm) -> bool:
    """Return whether the clients of an arm tell how its line's versions do, and nothing else."""
    return arm.applies and not arm.submits and not arm.personal


def check_holding_out(study: PublicStudy, share: float) -> None:
    """Raise :class:`InvalidSettings` if a study has no place for rows that are held out, or a share is none."""
    if not 0 < share < 1:
        raise InvalidSettings(f"--hold-out {share:g} is no share of rows; give one between 0 and 1, such as 0.2")
    if any(line.privacy is not None for line in study.lines):
        raise InvalidSettings(
            f"study '{study.name}' is private, and an institution that held rows out would take part twice, of which "
            "nobody has promised anything; leave --hold-out out"
        )
    trained = {arm.line for arm in study.arms if arm.submits}
    if not any(evaluates(arm) and arm.line in trained for arm in study.arms):
        raise InvalidSettings(
            f"study '{study.name}' has no arm to tell of rows that are held out; ask its operator for one with "
            "'applies = true' that follows the line and does not submit, or leave --hold-out out"
        )


def in_arm(study: PublicStudy, wanted: Callable[[Arm], bool]) -> Callable[[], int]:
    """Return what draws the seed of a new client that is in an arm as wanted: which of several is left to the id."""

    def draw() -> int:
        for _ in range(MOST_DRAWS):
            seed = any_seed()
            roster = Roster(study, 1, seed)
            if roster.arm[0] != NOT_ENROLLED and wanted(roster.arm_of(0)):
                return seed
        raise InvalidSettings(
            f"of {MOST_DRAWS:,} new clients of study '{study.name}' none was in an arm to hold rows out with; ask its "
            "operator for larger shares"
        )

    return draw


def divided(rows: Table, share: float, seed: int) -> tuple[Table, Table]:
    """Return the rows to learn from, and a share that is held out: of each class, if there are classes.

    The same rows, in the same order, are divided alike with the same seed.

    Raises:
        InvalidSettings: one of the two would have no row.
    """
    learned, held = hold_out(rows, share, seed)
    if not len(learned) or not len(held):
        raise InvalidSettings(
            f"--hold-out {share:g} of {len(rows):,} rows leaves {len(held):,} held out and {len(learned):,} to learn "
            "from; give another share, or leave it out"
        )
    return learned, held


def check_same_share(folder: StateFolder, share: float) -> None:
    """Refuse another share of the rows than was held out before, 0 for none, once rows were learned from.

    Args:
        folder: of the client that trains.
        share: that is asked for now.

    Raises:
        InvalidSettings: it is another. Rows that are held out since may be among those that were learned from, and tell
            nothing of how a version does on others.
    """
    before = folder.progress.held_out
    held_out = (folder.path / HELD_OUT).exists()  # an older folder says by that alone whether rows are held out
    if before == share or not folder.has_trained or (before is None and held_out == bool(share)):
        return
    if before:
        was, again = f"with --hold-out {before:g}", f"give --hold-out {before:g}"
    elif before is None and held_out:
        was, again = "with --hold-out", "give the same share"
    else:
        was, again = "without --hold-out", "leave it out"
    raise InvalidSettings(
        f"the client in {folder.path} has trained {was}, and with another share rows that it has learned from "
        f"would judge the model; {again} again, or give another folder with --state, which makes another client"
    )


def keep_share(folder: StateFolder, share: float) -> None:
    """Keep in a folder which share of the rows is held out."""
    if folder.progress.held_out != share:
        folder.advance(structs.replace(folder.progress, held_out=share))


def confusion(model: Model[Any], weights: FloatArray, batch: Any) -> tuple[int, ...] | None:
    """Return how many examples of each class were taken for each, row after row; None of no or too many classes.

    Args:
        model: makes the predictions.
        weights: of the version, shape (m,).
        batch: the examples of one client.
    """
    classes = wanted_by(model, "the model").classes
    if classes is None or classes > MOST_CLASSES:
        return None
    predicted = model.predict(weights, batch)[0]
    taken = predicted.argmax(axis=-1) if predicted.ndim > 1 else (predicted > 0.5).astype(np.intp)
    cells = np.bincount(batch.y[0].astype(np.intp) * classes + taken, minlength=classes**2)
    return tuple(cells.tolist())
