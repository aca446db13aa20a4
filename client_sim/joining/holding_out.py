"""Evaluation on held-out rows: an institution takes part a second time, as a client that doesn't train.

That client's arm applies the line's versions and submits no update, so it sends the loss of each version on rows that
the training never uses, and the confusion counts of a model of classes. Rounds use this loss like any arm's, early
stopping may use it too, and no row leaves the machine.
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
"""Name of the evaluating client's folder, within the folder of the client that trains."""

MOST_DRAWS = 10_000
"""Maximum number of clients that are drawn to find one in a suitable arm."""


def evaluates(arm: Arm) -> bool:
    """Return whether the clients of an arm only evaluate its line's versions."""
    return arm.applies and not arm.submits and not arm.personal


def check_holding_out(study: PublicStudy, share: float) -> None:
    """Raise :class:`InvalidSettings` if a study has no arm for held-out rows, or the share is invalid."""
    if not 0 < share < 1:
        raise InvalidSettings(f"--hold-out {share:g} is not a share of rows. Give one between 0 and 1, such as 0.2")
    if any(line.privacy is not None for line in study.lines):
        raise InvalidSettings(
            f"study '{study.name}' is private, and its guarantee is for one client, where held-out rows need a second "
            "one; remove --hold-out"
        )
    trained = {arm.line for arm in study.arms if arm.submits}
    if not any(evaluates(arm) and arm.line in trained for arm in study.arms):
        raise InvalidSettings(
            f"study '{study.name}' has no arm for held-out rows; remove --hold-out, or ask the study's operator for an "
            "arm with 'applies = true' that follows the line and does not submit"
        )


def in_arm(study: PublicStudy, is_suitable: Callable[[Arm], bool]) -> Callable[[], int]:
    """Return a function that draws the seed of a new client in a suitable arm."""

    def draw() -> int:
        for _ in range(MOST_DRAWS):
            seed = any_seed()
            roster = Roster(study, 1, seed)
            if roster.arm[0] != NOT_ENROLLED and is_suitable(roster.arm_of(0)):
                return seed
        raise InvalidSettings(
            f"of {MOST_DRAWS:,} new clients of study '{study.name}' none was in an arm to hold rows out with; ask its "
            "operator for larger shares"
        )

    return draw


def divided(rows: Table, share: float, seed: int) -> tuple[Table, Table]:
    """Return the rows of the training, and the held-out share of rows; of each class, if there are classes.

    The same seed divides the same rows, in the same order, in the same way.

    Raises:
        InvalidSettings: one of the two parts would be empty.
    """
    learned, held = hold_out(rows, share, seed)
    if not len(learned) or not len(held):
        raise InvalidSettings(
            f"--hold-out {share:g} of {len(rows):,} rows leaves {len(held):,} held out and {len(learned):,} to learn "
            "from; give another share, or remove it"
        )
    return learned, held


def check_same_share(folder: StateFolder, share: float) -> None:
    """Raise :class:`InvalidSettings` if the held-out share, 0 for none, changes after a training.

    With another share, rows already used in training could be held out. Their loss would say little about unseen rows.

    Args:
        folder: the folder of the client that trains.
        share: the requested share.
    """
    before = folder.progress.held_out
    held_out = (folder.path / HELD_OUT).exists()  # the only sign of held-out rows in an older folder
    if before == share or not folder.has_trained or (before is None and held_out == bool(share)):
        return
    if before:
        was, remedy = f"with --hold-out {before:g}", f"give --hold-out {before:g}"
    elif before is None and held_out:
        was, remedy = "with --hold-out", "give the same share"
    else:
        was, remedy = "without --hold-out", "leave it out"
    raise InvalidSettings(
        f"the client in {folder.path} has trained {was}, and with another share it would evaluate on rows that it has "
        f"learned from; {remedy} again, or give another folder with --state, which makes another client"
    )


def keep_share(folder: StateFolder, share: float) -> None:
    """Write the held-out share to a folder."""
    if folder.progress.held_out != share:
        folder.advance(structs.replace(folder.progress, held_out=share))


def confusion(model: Model[Any], weights: FloatArray, batch: Any) -> tuple[int, ...] | None:
    """Return the confusion counts of a version, row by row; None without classes, or with too many.

    Args:
        model: the model.
        weights: weights of the version, shape (m,).
        batch: the examples of one client.
    """
    classes = wanted_by(model, "the model").classes
    if classes is None or classes > MOST_CLASSES:
        return None
    predicted = model.predict(weights, batch)[0]
    labels = predicted.argmax(axis=-1) if predicted.ndim > 1 else (predicted > 0.5).astype(np.intp)
    cells = np.bincount(batch.y[0].astype(np.intp) * classes + labels, minlength=classes**2)
    return tuple(cells.tolist())
