"""The terms of a study for an institution: its place in the study, its limits, and the facts for a person.

An institution trusts no server: it trains only models of tables, within limits of time and memory, and refuses
settings that would reveal a single row. It agrees to a study's terms once, and stops when they change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.client_sim.client import NOT_ENROLLED
from fedping.client_sim.fleet.learning_round import HELD_OUT
from fedping.client_sim.fleet.roster import Roster
from fedping.client_sim.joining.examples import FEWEST_ROWS, MOST_OF_ONE_ROW, guarding_rows, numbers_a_row
from fedping.client_sim.joining.folder import Asked, Joined
from fedping.client_sim.learning.checking import check_training
from fedping.client_sim.learning.mini_batches import share_of, steps_of
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.networks.own import own_networks
from fedping.client_sim.learning.registry import NETWORKS, is_network, learner_for
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.model import ModelDocument, out_of_range, validate_spec
from fedping.protocol.personalization import Reconstruct
from fedping.protocol.ping import MODEL_UPDATE, PRIVATE_UPDATE
from fedping.protocol.privacy import ClippedFlat, LocalGaussian, Privacy, Signs, frame_of
from fedping.protocol.row_privacy import TABLE_MODELS
from fedping.protocol.study import Arm, PublicLine, PublicStudy
from fedping.protocol.study_changes import Change, differences
from fedping.protocol.training import LocalSteps, Training

TAKEN = (MODEL_UPDATE.name, PRIVATE_UPDATE.name)
"""The ping types of studies that an institution can take part in."""

MOST_STEPS = 10_000_000
"""Maximum number of local steps of a round; more would keep a machine busy for hours."""

MOST_WORK = 1e14
"""Maximum work of a round: the rows of all steps, times the number of weights."""

LEAST_RATE, LARGEST_RATE = 1e-12, 1e3
"""Minimum and maximum rate of local steps. Below, updates have lost their digits; above, they are not finite."""

MOST_NUMBERS = 2**29
"""Maximum number of values that a model computes from all rows at once: 4 GiB."""

MOST_CHANGES = 5
"""Maximum number of changed terms in a sentence."""

REVEALS = (
    "the study's operator chooses the weights that you train on, and can choose them so that your updates reveal rows "
    "of your table, with any number of rows and any batch"
)
"""Warning to an institution before it sends anything."""


# Membership


@dataclass(frozen=True)
class Membership:
    """The place of an institution in a study.

    Attributes:
        study: the study, as fetched.
        client_id: the institution's client id.
        arm: the institution's arm, by the hash of the id.
        line: the line that the arm follows.
        model: the model that the institution trains.
    """

    study: PublicStudy
    client_id: UUID
    arm: Arm
    line: PublicLine
    model: Model[Any]


def membership(study: PublicStudy, seed: int) -> Membership:
    """Return the place of a seed's client in a study.

    Raises:
        InvalidSettings: the client is not enrolled, or the study asks for something that an institution can't do.
    """
    roster = Roster(study, 1, seed)
    if study.pings not in TAKEN:
        raise InvalidSettings(
            f"study '{study.name}' takes {study.pings} pings, and 'fedping join' takes part in studies of "
            f"{' and '.join(TAKEN)} pings alone; choose another study"
        )
    if roster.arm[0] == NOT_ENROLLED:
        raise InvalidSettings(
            f"study '{study.name}' enrols {sum(arm.share for arm in study.arms):.0%} of all clients by their ids, and "
            "this one is not among them; ask its operator for arms whose shares sum to 1"
        )
    arm = roster.arm_of(0)
    line = next((line for line in study.lines if line.name == arm.line), None)
    if line is None:
        raise InvalidSettings(
            f"this client's id belongs to arm '{arm.name}' of study '{study.name}', which follows no model line, so "
            "there is nothing to train. Ask its operator for a study whose arms all follow one"
        )
    return Membership(study, roster.ids[0], arm, line, model_of(study, line))


def model_of(study: PublicStudy, line: PublicLine) -> Model[Any]:
    """Return the model of a line that an institution trains.

    Raises:
        InvalidSettings: the line has no model of tables, or its training can't train the model.
    """
    name = line.spec.model
    if name not in (*TABLE_MODELS, *NETWORKS) and not is_network(name):  # others may run code that the server names
        raise InvalidSettings(
            f"line '{line.name}' of study '{study.name}' has the model '{name}', and 'fedping join' trains "
            f"{', '.join((*TABLE_MODELS, *NETWORKS, *own_networks()))}; write your own client"
        )
    try:
        model = learner_for(line.spec, line.training)
        check_training(model, line.training)
    except InvalidSettings as error:
        raise InvalidSettings(
            f"line '{line.name}' of study '{study.name}' can't be trained by 'fedping join': {error}"
        ) from error
    return guarding_rows(model)


# Agreement


class StudyChanged(FedpingError):
    """A study's terms are no longer those that the institution agreed to. Exit code 6."""

    exit_code = 6


def requested_terms(member: Membership) -> Asked:
    """Return the terms of a study for an institution."""
    line = member.line
    return Asked(
        arm=replace(member.arm, share=1.0),
        spec=line.spec,
        training=line.training,
        upload=line.upload,
        privacy=line.privacy,
    )


def changed_terms(before: Joined, now: Joined) -> tuple[Change, ...]:
    """Return the terms that differ between an earlier and the present agreement."""
    return tuple(differences(before.asked, now.asked)) if before.asked != now.asked else ()


def describe_changes(study: str, changes: tuple[Change, ...]) -> str:
    """Return a sentence with the terms of a study that changed since the institution agreed to them."""
    words = [change.in_words for change in changes[:MOST_CHANGES]]
    words += [f"and {len(changes) - MOST_CHANGES:,} more"] if len(changes) > MOST_CHANGES else []
    terms = "".join(letter if letter.isprintable() else "?" for letter in "; ".join(words))
    return (
        f"study '{study}' has changed its terms since you joined ({terms}). Read them with --show, and accept them "
        "with --agree"
    )


# What is refused


def model_trouble(document: ModelDocument, study: str, line: PublicLine) -> str | None:
    """Return the reason why a document isn't a valid model of this line; None if it is."""
    spec = line.spec
    if (document.study, document.line) != (study, line.name):
        return f"it is of study '{document.study}', line '{document.line}'"
    if document.spec_digest != spec.digest or document.names != spec.document_names:
        return "it is of another model spec than the study's"
    if len(document.model) != spec.m:
        return f"it has {len(document.model):,} weights, and the spec has {spec.m:,}"
    return out_of_range(document.model, spec) or validate_spec(document.model, spec)


def check_rows(member: Membership, weight: NDArray[np.float64]) -> None:
    """Raise :class:`InvalidSettings` if pings would reveal a single row.

    Args:
        member: the institution's place in the study.
        weight: weight of each row of the table, or of each held-out row, shape (N,); rows of weight 0 are not used.
    """
    training, trains = member.line.training, member.arm.submits
    counted = int(np.count_nonzero(weight))
    rows = _learned(member, counted) if trains else counted
    if rows < FEWEST_ROWS:
        of = f"{rows:,} row" + (f" (of {len(weight):,} rows, {counted:,} counted)" if rows != len(weight) else "")
        raise InvalidSettings(
            f"an update of {of} would reveal that row. Join with more rows, remove a class weight of 0, or hold out "
            "another share"
        )
    share = float(weight.max() / weight.sum())
    if share > MOST_OF_ONE_ROW:
        raise InvalidSettings(
            f"one row has {share:.1%} of the weight of all rows, so an update would reveal that row. Join with more "
            "rows of its class, or remove class_weights"
        )
    batch = getattr(training, "batch", None)  # an extension's training has none
    if not trains or batch is None:
        return
    if batch < FEWEST_ROWS:
        raise InvalidSettings(
            "the study trains on batches of 1 row, and 'fedping join' refuses that, because such an update reveals the "
            "row; ask its operator for a larger 'batch'"
        )
    if isinstance(training, LocalSteps) and _ends_with_one_row(training, rows):
        raise InvalidSettings(
            f"the study trains on batches of {batch:,} rows, and of {rows:,} rows the last batch of an epoch has 1 "
            "row, whose update reveals the row; join with one row more or less"
        )


def _learned(member: Membership, rows: int) -> int:
    """Return the number of rows that are used to compute an update."""
    personal = getattr(member.line.training, "personal", None)
    shares = [HELD_OUT] if member.arm.personal else []
    shares += [personal.support] if isinstance(personal, Reconstruct) else []
    for share in shares:
        rows -= int(share_of(np.array([rows]), share)[0])
    return rows


def _ends_with_one_row(training: LocalSteps, rows: int) -> bool:
    """Return whether the training takes a step on a single row, the last batch of an epoch."""
    batch = training.batch or rows
    return rows > batch and rows % batch == 1 and steps_of(training, np.array([rows]))[0] > rows // batch


def check_work(training: Training, rows: int, model: Model[Any], weights: int) -> None:
    """Raise :class:`InvalidSettings` if training on this number of rows exceeds the limits of rate, time or memory."""
    numbers = rows * numbers_a_row(model)
    if numbers > MOST_NUMBERS:
        raise InvalidSettings(
            f"the study's model works out {numbers:,} numbers of {rows:,} rows at once, and 'fedping join' takes "
            f"{MOST_NUMBERS:,} at most; join with fewer rows, or ask its operator for a smaller model"
        )
    if not isinstance(training, LocalSteps):
        return
    if not LEAST_RATE <= training.rate <= LARGEST_RATE:
        raise InvalidSettings(
            f"the study trains at the rate {training.rate:g}, and 'fedping join' takes rates from {LEAST_RATE:g} to "
            f"{LARGEST_RATE:g}; ask its operator for another one"
        )
    an_epoch = math.ceil(rows / training.batch) if training.batch else 1
    steps = training.steps or (training.epochs or 1) * an_epoch
    if steps > MOST_STEPS:
        raise InvalidSettings(
            f"the study's training takes {steps:,} steps a round on {rows:,} rows, and 'fedping join' takes "
            f"{MOST_STEPS:,} at most; join with fewer rows, or ask its operator for less"
        )
    work = steps * min(training.batch or rows, rows) * weights
    if work > MOST_WORK:
        raise InvalidSettings(
            f"the study's training takes {steps:,} steps a round with {weights:,} weights on {rows:,} rows, which "
            f"would keep this machine busy for hours ({work:.2g} products; the maximum is {MOST_WORK:.0e}). Join with "
            "fewer rows, or ask its operator for fewer steps"
        )


# The facts about a private line for a person


def promises(line: PublicLine) -> tuple[str, ...]:
    """Return sentences about a private line: the data that are sent, and the coverage of its guarantee."""
    privacy = line.privacy
    assert privacy is not None
    return (*_contents(privacy, line), *_guarantees(privacy), *_unit(privacy), *_amounts(privacy))


def _contents(privacy: Privacy, line: PublicLine) -> tuple[str, ...]:
    d = len(frame_of(privacy, line.spec).group)
    helper = "" if privacy.shared is None else f"the helper {privacy.shared.helper[:16]}…"
    if privacy.rows is not None:
        return (
            f"line '{line.name}' is private: you send the sum of your rows' gradients, each shortened to 1 ({d:,} "
            "whole numbers with noise), with the sum of their losses and their number. The vector is split in two, "
            f"so that neither the operator nor {helper} can read it alone",
        )
    match privacy.contribution:
        case Signs():
            content = "the sign of each weight's movement in the training"
        case ClippedFlat(norm=norm):
            content = f"the movement of the weights in the training, shortened to {norm:g}"
        case _:
            content = "the movement of the weights in the training, each kind or layer shortened to its own norm"
    loss = f", and your loss within {privacy.loss[0]:g} and {privacy.loss[1]:g}" if privacy.local is None else ""
    if privacy.shared is not None:
        reader = f"it is split in two, so that neither the operator nor {helper} can read it alone"
    elif privacy.local is not None:
        reader = "this machine adds noise before it sends it"
    else:
        reader = "the operator can read it, and deletes it after the round"
    return (f"line '{line.name}' is private: you send {content}, {d:,} whole numbers{loss}; {reader}",)


def _guarantees(privacy: Privacy) -> tuple[str, ...]:
    sentences = []
    if (central := privacy.central) is not None:
        sentences.append(
            f"what is published reveals hardly more than without you: epsilon {central.epsilon:g}, delta "
            f"{central.delta:g}, over all {central.rounds:,} rounds together, as the operator promises"
        )
    if (local := privacy.local) is not None:
        delta = f", delta {local.delta:g}" if isinstance(local, LocalGaussian) else ""
        sentences.append(
            f"anyone who reads a ping of yours learns hardly more: epsilon {local.epsilon:g}{delta} a ping"
        )
    if not sentences and privacy.rows is None:
        sentences.append("nothing limits what sums over all clients give away: the line adds no noise")
    return tuple(sentences)


def _unit(privacy: Privacy) -> tuple[str, ...]:
    """Return the unit of a guarantee: a client, which here is a table of many persons."""
    if privacy.central is None and privacy.local is None:
        return ()
    persons = "epsilon of a single person in your table is at most"
    if privacy.local is not None and privacy.central is None:
        amount = f"{persons} the same, and adds up over the tables that the person is in"
    else:
        amount = (
            f"{persons} twice the epsilon of the operator's guarantee, and adds up over the tables that the person is "
            "in"
        )
    return (f"the guarantee is for this institution as a whole, which counts as one client; {amount}",)


def _amounts(privacy: Privacy) -> tuple[str, ...]:
    most = (
        f"at most {privacy.contributions:,} pings in all"
        if privacy.contributions is not None
        else "one ping a version, without an end"
        if privacy.central is None and privacy.rows is None
        else "one ping a version"
    )
    return (f"{most}, each under another id, and up to {privacy.delay_minutes:g} minutes late by lot",)
