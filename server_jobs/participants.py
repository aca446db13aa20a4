"""Who takes part in a line of few clients, such as institutions, and how versions do on rows that these held out.

All of it is from landed pings alone. What a client says of itself counts within the study's limits, one ping of it a
version, and only in the arm that its id belongs to; anybody can post, so no number here is more than what was said. A
line of many clients is not listed: reading stops at a number of pings. A private line has nothing to list, for its
clients have another id with every version.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from fedping.protocol.landing import open_landing
from fedping.protocol.location import Place
from fedping.protocol.ping import MODEL_UPDATE
from fedping.protocol.study import Study

MOST_PINGS = 20_000
"""That are read to list who takes part, or to evaluate: those of the newest versions first, and of the newest files."""

MOST_LISTED = 100
"""Clients that are listed; of more it is told how many there are."""

ID_DIGITS = 8
"""Of a client's id, which is enough to tell a hundred apart."""

CONFUSION = "confusion"

WITHOUT_CLASSES = frozenset({"linear-regression", "k-means"})
"""Models that predict no class, whatever a client tells of classes."""


class Participant(Struct, frozen=True, kw_only=True):
    """A client, as its pings tell.

    Attributes:
        client: the beginning of its id.
        arm: its arm, as its newest ping says.
        version: the newest version that it says it held.
        heard_ms: when its last ping was taken, milliseconds since 1970.
        pings: how many have landed.
        examples: the rows that its newest ping says it has, up to the study's limit.
    """

    client: str
    arm: str
    version: int
    heard_ms: int
    pings: int
    examples: int


class ParticipantList(Struct, frozen=True, kw_only=True):
    """The clients of a line, who was heard last first.

    Attributes:
        clients: how many there are.
        listed: they, if there are no more than :data:`MOST_LISTED`.
        complete: whether all landed pings were read; else there may be more clients.
    """

    clients: int
    listed: tuple[Participant, ...]
    complete: bool


class Evaluation(Struct, frozen=True, kw_only=True):
    """How a version does on rows that nothing was learned from.

    Attributes:
        version: which.
        arm: the arm whose clients have told it.
        clients: how many have.
        examples: theirs together, each up to the study's limit, and to ``most_votes`` where examples are votes.
        loss: the mean by examples.
        accuracy: the share of examples whose class was predicted; None where nobody told of classes.
        balanced_accuracy: the mean of that share over classes, each as much as any other.
        worst: the lowest accuracy of a client.
        confusion: how many of each class (a row) were taken for each (a column); not whole where limits have cut.
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


class _Said(NamedTuple):
    """What one ping says."""

    client: bytes
    document: bytes
    arm: str
    version: int
    received_ms: int
    loss: float
    examples: int
    confusion: NDArray[np.int32] | None


def lists_clients(study: Study) -> bool:
    """Return whether it can be told who takes part in a study: in one of model updates that is not private."""
    return study.document is MODEL_UPDATE


def list_participants(landing: Place, study: Study, line: str) -> ParticipantList:
    """Return who takes part in a line.

    Raises:
        FedpingError: the study's pings do not tell, or a landed file is damaged.
    """
    _check(study)
    reading = _Reading(landing, study, line)
    newest: dict[bytes, _Said] = {}
    counts: dict[bytes, int] = {}
    for said in reading.pings():
        known = newest.get(said.client)
        if known is None or (said.version, said.received_ms) > (known.version, known.received_ms):
            newest[said.client] = said
        counts[said.client] = counts.get(said.client, 0) + 1
    heard = sorted(newest.values(), key=lambda said: (-said.received_ms, said.client))
    return ParticipantList(
        clients=len(heard),
        listed=tuple(_participant(said, counts[said.client], study) for said in heard)
        if len(heard) <= MOST_LISTED
        else (),
        complete=reading.complete,
    )


def evaluations(landing: Place, study: Study, line: str) -> list[Evaluation]:
    """Return how versions of a line do, as arms tell that apply them and do not submit, the oldest first.

    Raises:
        FedpingError: the study's pings do not tell, or a landed file is damaged.
    """
    _check(study)
    arms = {arm.name for arm in study.arms if arm.line == line and arm.applies and not arm.submits}
    first: dict[tuple[int, str, bytes], _Said] = {}
    for said in _Reading(landing, study, line, _cells(study, line)).pings() if arms else ():
        key = said.version, said.arm, said.client
        if said.version < 0 or said.arm not in arms:  # who holds no version yet tells of none
            continue
        if key not in first or said.document < first[key].document:
            first[key] = said  # of several, the one that any number of retries cannot choose
    groups: dict[tuple[int, str], list[_Said]] = {}
    for (version, arm, _), said in first.items():
        groups.setdefault((version, arm), []).append(said)
    return [_evaluation(version, arm, groups[version, arm], study, line) for version, arm in sorted(groups)]


def _check(study: Study) -> None:
    if not lists_clients(study):
        why = (
            "its clients have another id with every version, so that nobody can tell who they are"
            if study.is_private
            else f"its {study.pings} pings are of browsers, each an interaction"
        )
        raise FedpingError(f"nothing can be told of the clients of study '{study.name}' one by one: {why}")


def _participant(said: _Said, pings: int, study: Study) -> Participant:
    return Participant(
        client=str(UUID(bytes=said.client))[:ID_DIGITS],
        arm=said.arm,
        version=said.version,
        heard_ms=said.received_ms,
        pings=pings,
        examples=_capped_examples(said, study),
    )


def _capped_examples(said: _Said, study: Study) -> int:
    """Return as how many examples a ping counts."""
    most = study.limits.examples if study.limits is not None else None
    return said.examples if most is None else min(said.examples, most)


def _evaluation(version: int, arm: str, told: list[_Said], study: Study, line: str) -> Evaluation:
    weights = [_votes(said, study, line) for said in told]
    total = sum(weights)
    losses = np.array([said.loss for said in told])
    if study.limits is not None:
        losses = study.limits.clipped(losses)
    found = Evaluation(
        version=version,
        arm=arm,
        clients=len(told),
        examples=total,
        loss=sum(loss * weight for loss, weight in zip(losses.tolist(), weights, strict=True)) / total,
    )
    told_classes = [
        (said.confusion, weight) for said, weight in zip(told, weights, strict=True) if said.confusion is not None
    ]
    return _with_classes(found, told_classes) if told_classes else found


def _votes(said: _Said, study: Study, line: str) -> int:
    """Return as how many examples of an evaluation a ping counts: no more than in a round whose votes are examples."""
    pipeline, believed = study.line(line).pipeline, _capped_examples(said, study)
    if pipeline.weighting != "examples" or pipeline.most_votes is None:
        return believed
    return min(believed, pipeline.most_votes)


def _cells(study: Study, line: str) -> int:
    """Return how many numbers tell which classes were taken for which; 0 if a line's model predicts none.

    It predicts two unless its settings say another number.
    """
    spec = study.line(line).spec
    classes = spec.settings.get("classes", 2)
    return 0 if spec.model in WITHOUT_CLASSES else (classes if isinstance(classes, int) else 2) ** 2


def _with_classes(found: Evaluation, told: list[tuple[NDArray[np.int32], int]]) -> Evaluation:
    """Return an evaluation with what clients tell of classes: their cells, shape (classes²,), and what they weigh."""
    classes = math.isqrt(len(told[0][0]))
    total, worst = np.zeros((classes, classes)), 1.0
    for cells, weight in told:  # one after the other: of many clients their cells side by side would be large
        square = cells.reshape(classes, classes) * (weight / int(cells.sum(dtype=np.int64)))
        total += square
        worst = min(worst, float(np.trace(square) / square.sum()))
    rows = total.sum(axis=1)
    there = rows > 0
    return replace(
        found,
        accuracy=float(np.trace(total) / rows.sum()),
        balanced_accuracy=float((np.diag(total)[there] / rows[there]).mean()),
        worst=worst,
        confusion=tuple(map(tuple, total.tolist())),
    )


class _Reading:
    """Reads what counts of the landed pings of a line, the newest versions first, up to :data:`MOST_PINGS`.

    Of what pings tell of classes, it reads that which has ``cells`` numbers; nothing if 0.
    """

    def __init__(self, landing: Place, study: Study, line: str, cells: int = 0) -> None:
        self._landing, self._study, self._line, self._cells = open_landing(landing), study, line, cells
        self._dealt = hash_assignment(study)
        self._arms = {arm.name for arm in study.arms if arm.line == line}
        self.complete = True

    def pings(self) -> Iterator[_Said]:
        """Yield what each ping says that has examples and is believed, once a document."""
        seen: set[bytes] = set()
        for said in self._all():
            if said.document in seen or not self._counts(said):
                continue
            seen.add(said.document)
            yield said

    def _all(self) -> Iterator[_Said]:
        read = 0
        for number in reversed(self._landing.iterations(self._study.name, self._line)):
            for file in reversed(self._landing.files(self._study.name, self._line, number)):
                try:
                    landed = self._landing.open(file)
                except FileNotFoundError:  # pruned since it was listed
                    continue
                check_columns(landed, self._study.document, _COLUMNS)
                yield from islice(_said_in(landed, self._cells), MOST_PINGS - read)
                read += landed.footer.num_rows
                if read > MOST_PINGS:
                    self.complete = False
                    return

    def _counts(self, said: _Said) -> bool:
        limits = self._study.limits
        if said.examples <= 0 or said.arm not in self._arms or not np.isfinite(said.loss):
            return False
        if limits is not None and limits.trouble(said.loss, -1) is not None:
            return False
        return self._dealt is None or self._dealt.arm_of(UUID(bytes=said.client)) == said.arm


_COLUMNS = ("client_id", "document_id", "study_variation", "model_version", "received_at", "loss", "examples")


def _said_in(landed: LandedFile, cells: int) -> Iterator[_Said]:
    of_classes = cells > 0 and CONFUSION in landed.footer.schema.to_arrow_schema().names  # files of before have none
    for batch in landed.batches([*_COLUMNS, CONFUSION] if of_classes else _COLUMNS, rows=1024):
        rows: dict[str, list[Any]] = {
            name: batch.column(name).to_pylist() for name in _COLUMNS if name != "received_at"
        }
        received = batch.column("received_at").cast("int64").to_pylist()
        yield from map(
            _Said,
            rows["client_id"],
            rows["document_id"],
            rows["study_variation"],
            rows["model_version"],
            received,
            rows["loss"],
            rows["examples"],
            (_of_classes(told, cells) for told in batch.column(CONFUSION)) if of_classes else repeat(None),
        )


def _of_classes(told: Any, cells: int) -> NDArray[np.int32] | None:
    """Return what a ping tells of classes, in 4 bytes a number; None of another number of classes, or of no example."""
    numbers = told.values
    if numbers is None or len(numbers) != cells:
        return None
    found: NDArray[np.int32] = numbers.to_numpy().astype(np.int32)  # a copy, or it would keep the whole batch
    return found if found.any() else None
