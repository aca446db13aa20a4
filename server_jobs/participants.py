"""Participants of a small line, such as institutions, and evaluation on their held-out rows.

Both are computed from landed pings. A client's figures count within the study's limits, once per version, and only in
the arm of its id. They are unverified claims, because anyone can send pings. Lines of many clients aren't listed,
because reading stops at a number of pings. Private lines can't be listed, because their clients have a new id for
every version.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.protocol.enrolment import hash_assignment
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import LandedFile, check_columns
from fedping.protocol.landing import Landing
from fedping.protocol.ping import MODEL_UPDATE
from fedping.protocol.study import Study
from fedping.server_jobs.row_noise import noise_on_mean

MOST_PINGS = 20_000
"""Maximum number of pings read for the list or an evaluation, newest versions and files first."""

MOST_LISTED = 100
"""Maximum number of clients in a list. For larger lines, only the number of clients is shown."""

ID_DIGITS = 8
"""Number of digits shown of a client's id, enough to distinguish a hundred clients."""

CONFUSION = "confusion"

WITHOUT_CLASSES = frozenset({"linear-regression", "k-means"})
"""Models that don't predict classes. Confusion counts in their pings are ignored."""


class Participant(Struct, frozen=True, kw_only=True):
    """A client, as described by its landed pings.

    Attributes:
        client: the first :data:`ID_DIGITS` digits of its id.
        arm: the arm in its newest ping.
        version: the version in its newest ping.
        heard_ms: the arrival time of its last ping, Unix ms.
        pings: the number of its pings.
        examples: the number of rows in its newest ping, up to the study's limit.
    """

    client: str
    arm: str
    version: int
    heard_ms: int
    pings: int
    examples: int


class ParticipantList(Struct, frozen=True, kw_only=True):
    """The clients of a line, the client with the latest ping first.

    Attributes:
        clients: the number of clients.
        listed: the clients; empty if there are more than :data:`MOST_LISTED`.
        complete: whether all landed pings were read; otherwise there may be more clients.
    """

    clients: int
    listed: tuple[Participant, ...]
    complete: bool


class Evaluation(Struct, frozen=True, kw_only=True):
    """The quality of a version on held-out rows.

    Attributes:
        version: the version's number.
        arm: the arm of the clients that evaluated it.
        clients: the number of these clients.
        examples: the number of their rows, for each client up to the study's limit, and to ``most_votes`` if examples
            are votes.
        loss: the mean loss, weighted by examples.
        accuracy: the share of correctly classified examples; None without confusion counts.
        balanced_accuracy: the mean over classes of the share of correctly classified examples.
        worst: the lowest accuracy of a client.
        confusion: the confusion matrix, a row for each true class; fractional if limits apply.
    """

    version: int
    arm: str
    clients: int
    examples: int
    loss: float
    accuracy: float | None = None
    balanced_accuracy: float | None = None
    worst: float | None = None
    confusion: tuple[tuple[float, ...], ...] | None = None


class _Ping(NamedTuple):
    """The columns of a ping that this module uses; ``confusion`` has shape (classes²,)."""

    client: bytes
    document: bytes
    arm: str
    version: int
    received_ms: int
    loss: float
    examples: int
    confusion: NDArray[np.int32] | None


def lists_clients(study: Study) -> bool:
    """Return whether a study's clients can be listed: it has model updates and isn't private."""
    return study.document is MODEL_UPDATE


def list_participants(landing: Landing, study: Study, line: str) -> ParticipantList:
    """Return the participants of a line.

    Raises:
        FedpingError: the study's clients can't be listed, or a landed file is damaged.
    """
    _check(study)
    reader = _PingReader(landing, study, line)
    newest: dict[bytes, _Ping] = {}
    counts: dict[bytes, int] = {}
    for ping in reader.pings():
        before = newest.get(ping.client)
        if before is None or (ping.version, ping.received_ms) > (before.version, before.received_ms):
            newest[ping.client] = ping
        counts[ping.client] = counts.get(ping.client, 0) + 1
    latest = sorted(newest.values(), key=lambda ping: (-ping.received_ms, ping.client))
    return ParticipantList(
        clients=len(latest),
        listed=tuple(_participant(ping, counts[ping.client], study) for ping in latest)
        if len(latest) <= MOST_LISTED
        else (),
        complete=reader.complete,
    )


def noise_if_protected(listed: Sequence[Participant], study: Study, line: str) -> float | None:
    """Return the noise on each number of the newest version's mean update, if each client protects its rows.

    Returns:
        The standard deviation by :func:`noise_on_mean`; None if no client sent an update.
    """
    submits = {arm.name for arm in study.arms if arm.line == line and arm.submits}
    sent = [one for one in listed if one.arm in submits]
    newest = max((one.version for one in sent), default=-1)
    return noise_on_mean(study.line(line), [one.examples for one in sent if one.version == newest])


def evaluations(landing: Landing, study: Study, line: str) -> list[Evaluation]:
    """Return the evaluations of a line's versions by arms that apply them without submitting updates, oldest first.

    Raises:
        FedpingError: the study's clients can't be listed, or a landed file is damaged.
    """
    _check(study)
    arms = {arm.name for arm in study.arms if arm.line == line and arm.applies and not arm.submits}
    first: dict[tuple[int, str, bytes], _Ping] = {}
    for ping in _PingReader(landing, study, line, _cells(study, line)).pings() if arms else ():
        key = ping.version, ping.arm, ping.client
        if ping.version < 0 or ping.arm not in arms:  # a client without a version evaluates none
            continue
        if key not in first or ping.document < first[key].document:
            first[key] = ping  # the smallest id, so that retries can't choose which of several pings counts
    groups: dict[tuple[int, str], list[_Ping]] = {}
    for (version, arm, _), ping in first.items():
        groups.setdefault((version, arm), []).append(ping)
    return [_evaluation(version, arm, groups[version, arm], study, line) for version, arm in sorted(groups)]


def _check(study: Study) -> None:
    if not lists_clients(study):
        why = (
            "its clients have another id for every version"
            if study.is_private
            else f"its {study.pings} pings come from browsers, one for each interaction"
        )
        raise FedpingError(f"The clients of study '{study.name}' can't be listed: {why}.")


def _participant(ping: _Ping, pings: int, study: Study) -> Participant:
    return Participant(
        client=str(UUID(bytes=ping.client))[:ID_DIGITS],
        arm=ping.arm,
        version=ping.version,
        heard_ms=ping.received_ms,
        pings=pings,
        examples=_capped_examples(ping, study),
    )


def _capped_examples(ping: _Ping, study: Study) -> int:
    """Return the number of examples of a ping, up to the study's limit."""
    most = study.limits.examples if study.limits is not None else None
    return ping.examples if most is None else min(ping.examples, most)


def _evaluation(version: int, arm: str, pings: list[_Ping], study: Study, line: str) -> Evaluation:
    weights = [_votes(ping, study, line) for ping in pings]
    total = sum(weights)
    losses = np.array([ping.loss for ping in pings])
    if study.limits is not None:
        losses = study.limits.clipped(losses)
    evaluation = Evaluation(
        version=version,
        arm=arm,
        clients=len(pings),
        examples=total,
        loss=sum(loss * weight for loss, weight in zip(losses.tolist(), weights, strict=True)) / total,
    )
    counts = [
        (ping.confusion, weight) for ping, weight in zip(pings, weights, strict=True) if ping.confusion is not None
    ]
    return _with_confusion(evaluation, counts) if counts else evaluation


def _votes(ping: _Ping, study: Study, line: str) -> int:
    """Return the number of examples with which a ping counts in an evaluation, at most its votes in a round."""
    pipeline, examples = study.line(line).pipeline, _capped_examples(ping, study)
    if pipeline.weighting != "examples" or pipeline.most_votes is None:
        return examples
    return min(examples, pipeline.most_votes)


def _cells(study: Study, line: str) -> int:
    """Return the number of cells of a confusion matrix; 0 if the line's model doesn't predict classes.

    A model has two classes unless its settings give another number.
    """
    spec = study.line(line).spec
    classes = spec.settings.get("classes", 2)
    return 0 if spec.model in WITHOUT_CLASSES else (classes if isinstance(classes, int) else 2) ** 2


def _with_confusion(evaluation: Evaluation, counts: list[tuple[NDArray[np.int32], int]]) -> Evaluation:
    """Return an evaluation with clients' confusion counts, shape (classes²,), each with the client's weight."""
    classes = math.isqrt(len(counts[0][0]))
    total, worst = np.zeros((classes, classes)), 1.0
    for cells, weight in counts:  # one at a time, because an array of all clients' cells would be large
        square = cells.reshape(classes, classes) * (weight / int(cells.sum(dtype=np.int64)))
        total += square
        worst = min(worst, float(np.trace(square) / square.sum()))
    rows = total.sum(axis=1)
    present = rows > 0
    return replace(
        evaluation,
        accuracy=float(np.trace(total) / rows.sum()),
        balanced_accuracy=float((np.diag(total)[present] / rows[present]).mean()),
        worst=worst,
        confusion=tuple(map(tuple, total.tolist())),
    )


class _PingReader:
    """Reads a line's valid landed pings, newest versions first, up to :data:`MOST_PINGS`.

    Confusion counts are read if they have ``cells`` numbers; if ``cells`` is 0, none are read.
    """

    def __init__(self, landing: Landing, study: Study, line: str, cells: int = 0) -> None:
        self._landing, self._study, self._line, self._cells = landing, study, line, cells
        self._assignment = hash_assignment(study)
        self._arms = {arm.name for arm in study.arms if arm.line == line}
        self.complete = True

    def pings(self) -> Iterator[_Ping]:
        """Yield the valid pings, one for each document."""
        documents: set[bytes] = set()
        for ping in self._all():
            if ping.document in documents or not self._counts(ping):
                continue
            documents.add(ping.document)
            yield ping

    def _all(self) -> Iterator[_Ping]:
        read = 0
        for number in reversed(self._landing.iterations(self._study.name, self._line)):
            for file in reversed(self._landing.files(self._study.name, self._line, number)):
                try:
                    landed = self._landing.open(file)
                except FileNotFoundError:  # pruned since it was listed
                    continue
                check_columns(landed, self._study.document, _COLUMNS)
                yield from islice(_pings_in(landed, self._cells), MOST_PINGS - read)
                read += landed.footer.num_rows
                if read > MOST_PINGS:
                    self.complete = False
                    return

    def _counts(self, ping: _Ping) -> bool:
        limits = self._study.limits
        if ping.examples <= 0 or ping.arm not in self._arms or not np.isfinite(ping.loss):
            return False
        if limits is not None and limits.trouble(ping.loss, -1) is not None:
            return False
        return self._assignment is None or self._assignment.arm_of(UUID(bytes=ping.client)) == ping.arm


_COLUMNS = ("client_id", "document_id", "study_variation", "model_version", "received_at", "loss", "examples")


def _pings_in(landed: LandedFile, cells: int) -> Iterator[_Ping]:
    has_confusion = cells > 0 and CONFUSION in landed.footer.schema.to_arrow_schema().names  # older files don't
    for batch in landed.batches([*_COLUMNS, CONFUSION] if has_confusion else _COLUMNS, rows=1024):
        rows: dict[str, list[Any]] = {
            name: batch.column(name).to_pylist() for name in _COLUMNS if name != "received_at"
        }
        received = batch.column("received_at").cast("int64").to_pylist()
        yield from map(
            _Ping,
            rows["client_id"],
            rows["document_id"],
            rows["study_variation"],
            rows["model_version"],
            received,
            rows["loss"],
            rows["examples"],
            (_confusion(value, cells) for value in batch.column(CONFUSION)) if has_confusion else repeat(None),
        )


def _confusion(value: Any, cells: int) -> NDArray[np.int32] | None:
    """Return a ping's confusion counts; None if their number of classes differs, or they have no examples."""
    numbers = value.values
    if numbers is None or len(numbers) != cells:
        return None
    counts: NDArray[np.int32] = numbers.to_numpy().astype(np.int32)  # a copy, so that the batch is freed
    return counts if counts.any() else None
