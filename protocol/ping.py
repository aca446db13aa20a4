"""The ping, the only document that a client sends: its payloads, its envelopes, and the types of pings.

Sign convention, stated here once for both sides: an update is the direction of **descent**,
(loss(w - ε) - loss(w + ε)) / 2ε per weight. The server *adds* it.

A payload is the complete definition of a type: the validator, the JSON Schema (`fedping.protocol.json_schema`) and the
Arrow schema (`fedping.protocol.arrow`) are derived from it. Unknown fields are rejected, so that nothing undeclared is
stored. To add a type, define a payload, an entry in :data:`DOCUMENT_TYPES`, and its name in :data:`DocumentName`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import force_setattr

from fedping.protocol.outcomes import Outcome, OutcomeColumns, at_choice, columns_of, grids_of, later
from fedping.protocol.spec import Finite, Name
from fedping.protocol.tickets import LONGEST, PATTERN
from fedping.protocol.update import EncodedUpdate, Update

NO_VERSION = -1
"""The model version in a ping of a client that has not fetched a version yet."""

NOTHING_SELECTED = -1
"""The selected rank of an interaction that ended without a choice; such a ping has loss 0 and an update of zeros."""

_LARGEST = 2**31 - 1
Count: TypeAlias = Annotated[int, Meta(ge=0, le=_LARGEST)]
CountOrNone: TypeAlias = Annotated[int, Meta(ge=-1, le=_LARGEST)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=2**53 - 1)]
MillisecondsOrNone: TypeAlias = Annotated[int, Meta(ge=-1, le=2**53 - 1)]
ShortText: TypeAlias = Annotated[str, Meta(max_length=64)]
Score: TypeAlias = Annotated[float, Meta(ge=-1e30, le=1e30, extra={"arrow": "float32"})]


MOST_CANDIDATES = 1000
"""Maximum candidates of a list."""

BY_STUDY = "@"
"""Separator before the study in the name of a journal; names of types and studies do not contain it."""

MOST_CLASSES = 32
"""Maximum number of classes of a model whose pings have a confusion matrix."""

MOST_CELLS = MOST_CLASSES**2

_PAIR = ("num_suggestions_displayed", "rank_selected")
_OF_HISTORY = "bookmark_and_history_"


class Payload(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of every ping, for all products and types: the model version that the client knew, and its arm.

    :attr:`ALIASES` are other names of fields. A payload that was sent with such a name has the value under the field's
    own name.
    """

    ALIASES: ClassVar[Mapping[str, str]] = {}

    model_version: Annotated[
        int, Meta(ge=NO_VERSION, le=_LARGEST, description="the version known to the client; -1 before any was fetched")
    ]
    study_variation: Annotated[Name, Meta(description="the arm")]


class UpdatePayload(Payload, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of every ping that a round may read: the version, the arm, and the client's update."""

    update: Annotated[
        Update | None,
        Meta(description="the direction of descent, which the server adds; null if the arm does not submit updates"),
    ]


class PrivatePayload(UpdatePayload, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The payload of a client of a private line, reduced to the fields that a round needs.

    The loss is part of the vector sent as the update (`fedping.protocol.privacy`). A client that has fetched no version
    yet sends nothing. Clients of arms that do not submit updates send a vector as well.
    """

    model_version: Annotated[int, Meta(ge=0, le=_LARGEST, description="the version known to the client")]
    update: Annotated[
        EncodedUpdate,
        Meta(
            description="with the tag `private`: the line's vector, little-endian int32 numbers; with the tag "
            "`shared`: its two shares"
        ),
    ]


class LossPayload(UpdatePayload, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields that a round needs on a line that is not private."""

    loss: Annotated[Finite, Meta(description="the client's loss under the weights that it applied")]


class ModelPayload(LossPayload, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of learning from a client's own examples, for any model.

    A client without an example sends ``examples`` 0, loss 0 and an update of zeros: it participated, but changes
    nothing. A client that only reports a classifier's predictions on its examples, without an update, may add
    ``confusion``.

    Raises:
        ValueError: ``confusion`` is sent with an update, isn't square, or doesn't sum to the number of examples.
    """

    examples: Annotated[Count, Meta(description="number of examples behind loss and update; 0 for none")]
    confusion: (
        Annotated[
            tuple[Count, ...],
            Meta(
                max_length=MOST_CELLS,
                description="number of examples of each class (a row) that were predicted as each class (a column), "
                "row after row; only in pings without an update",
            ),
        ]
        | UnsetType
    ) = UNSET

    def __post_init__(self) -> None:
        if self.confusion is not UNSET:
            self._check_confusion(self.confusion)

    def _check_confusion(self, cells: tuple[int, ...]) -> None:
        if self.update is not None:
            raise ValueError("`confusion` is of examples that nothing was learned from; leave out it, or the update")
        if math.isqrt(len(cells)) ** 2 != len(cells):
            raise ValueError(f"`confusion` has {len(cells)} numbers, which is not a square number")
        if sum(cells) != self.examples:
            raise ValueError(f"`confusion` counts {sum(cells)} examples, and `examples` is {self.examples}")


class FrecencyPayload(LossPayload, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An interaction with a ranked list of suggestions, as the two studies of 2018 reported it.

    A client leaves out fields that it does not have. The pair ``num_suggestions_displayed`` and ``rank_selected``
    counts all suggestions; the pair ``bookmark_and_history_…`` counts only suggestions from history and bookmarks. If
    only one pair is sent, it counts history and bookmarks, whichever its names, as in the first study.

    The second study called the number of typed characters ``search_string_length``. A payload stores values under the
    names of their meaning, whichever names were sent.

    Raises:
        ValueError: a pair is incomplete, both pairs are missing, or the number of typed characters is missing or has
            both names.
    """

    ALIASES: ClassVar[Mapping[str, str]] = {"search_string_length": "num_chars_typed"}

    frecency_scores: Annotated[
        tuple[Score, ...],
        Meta(
            max_length=1000,
            description="score per history or bookmark suggestion, in displayed order; highest first in a personal arm",
        ),
    ]
    num_suggestions_displayed: Count | UnsetType = UNSET
    rank_selected: Annotated[CountOrNone, Meta(description="0 is the top; -1 if nothing was selected")] | UnsetType = (
        UNSET
    )
    bookmark_and_history_num_suggestions_displayed: Count | UnsetType = UNSET
    bookmark_and_history_rank_selected: CountOrNone | UnsetType = UNSET
    num_chars_typed: Annotated[Count, Meta(description="always present, under this name or the next")] | UnsetType = (
        UNSET
    )
    search_string_length: Annotated[Count, Meta(description="another name of num_chars_typed")] | UnsetType = UNSET
    num_key_down_events: Annotated[Count, Meta(description="Enter excluded")] | UnsetType = UNSET
    num_key_down_events_at_selecteds_first_entry: (
        Annotated[
            CountOrNone,
            Meta(description="keys pressed until the item finally chosen first appeared; -1 without a choice"),
        ]
        | UnsetType
    ) = UNSET
    time_start_interaction: Annotated[Literal[0], Meta(description="milliseconds from focus: always 0")] | UnsetType = (
        UNSET
    )
    time_end_interaction: Annotated[Milliseconds, Meta(description="milliseconds from focus")] | UnsetType = UNSET
    time_at_selecteds_first_entry: (
        Annotated[MillisecondsOrNone, Meta(description="milliseconds from focus, or -1")] | UnsetType
    ) = UNSET
    selected_style: (
        Annotated[ShortText, Meta(description="the kind of suggestion chosen; empty when none")] | UnsetType
    ) = UNSET
    selected_url_was_same_as_search_string: Literal[-1, 0, 1] | UnsetType = UNSET
    enter_was_pressed: Literal[0, 1] | UnsetType = UNSET
    study_addon_version: ShortText | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (
            self.search_string_length is UNSET
            and self.num_chars_typed is not UNSET
            and self.rank_selected is not UNSET
            and self.num_suggestions_displayed is not UNSET
            and self.bookmark_and_history_rank_selected is not UNSET
            and self.bookmark_and_history_num_suggestions_displayed is not UNSET
        ):
            return  # as nearly always, and every ping comes here
        self._name_by_meaning()

    def _name_by_meaning(self) -> None:
        if self.search_string_length is not UNSET:
            if self.num_chars_typed is not UNSET:
                raise ValueError("`num_chars_typed` and `search_string_length` are one field; send one of them")
            self._rename("search_string_length", "num_chars_typed")
        elif self.num_chars_typed is UNSET:
            raise ValueError("Object missing required field `num_chars_typed`")
        of_history = self._has_pair(_OF_HISTORY)
        if not self._has_pair("") and not of_history:
            raise ValueError("Object missing required field `rank_selected`")
        if not of_history:
            for name in _PAIR:
                self._rename(name, f"{_OF_HISTORY}{name}")

    def _has_pair(self, prefix: str) -> bool:
        shown, rank = (f"{prefix}{name}" for name in _PAIR)
        if (getattr(self, shown) is UNSET) is not (getattr(self, rank) is UNSET):
            raise ValueError(f"`{shown}` and `{rank}` go together; send both of them")
        return getattr(self, rank) is not UNSET

    def _rename(self, name: str, to: str) -> None:
        force_setattr(self, to, getattr(self, name))
        force_setattr(self, name, UNSET)


class ListPayload(LossPayload, OutcomeColumns, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A list of candidates that was shown, the choice from it, and the outcomes that a study declares at the choice.

    A list without a choice has ``place`` 0, loss 0 and an update of zeros.

    Raises:
        ValueError: the choice, or the number of seen candidates, is beyond the list; a list without a choice is pinned;
            or a number is finer than its outcome allows.
    """

    place: Annotated[
        int, Meta(ge=0, le=MOST_CANDIDATES, description="place of the choice in the list, from 1; 0 without a choice")
    ]
    candidates: Annotated[int, Meta(ge=1, le=MOST_CANDIDATES, description="number of candidates in the list")]
    seen: (
        Annotated[
            int,
            Meta(ge=0, le=MOST_CANDIDATES, description="number of candidates, from the top, that were on the screen"),
        ]
        | UnsetType
    ) = UNSET
    swapped: Annotated[bool, Meta(description="whether two neighbours had changed places at random")] | UnsetType = (
        UNSET
    )
    pinned: (
        Annotated[
            bool,
            Meta(
                description=("whether the choice had a fixed place, regardless of its score, such as an advertisement")
            ),
        ]
        | UnsetType
    ) = UNSET

    def __post_init__(self) -> None:
        place, candidates, seen = self.place, self.candidates, self.seen
        if place > candidates:
            raise ValueError(f"`place` is {place}, and the list has {candidates} candidates")
        if seen is not UNSET and not place <= seen <= candidates:
            raise ValueError(f"`seen` is {seen}; send a number from `place` to `candidates`")
        if not place and self.pinned is True:
            raise ValueError("`pinned` describes the choice, but there is none. Remove it")
        if self.GRIDS:
            OutcomeColumns.__post_init__(self)


class OutcomePayload(Payload, OutcomeColumns, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One later outcome of a choice: the value of one declared column. It has no update, and no round reads it.

    ``model_version`` is the version at the choice. ``choice`` is present if the outcome is declared as linked.

    Raises:
        ValueError: it has no declared column, or several; or a number has a finer step than its outcome allows.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ()

    age: Annotated[
        int,
        Meta(
            ge=0,
            le=_LARGEST,
            description="whole hours from the choice to the outcome by the client's clock; 0 if it was set back",
        ),
    ]
    choice: Annotated[UUID, Meta(description="document id of the choice, for linked outcomes")] | UnsetType = UNSET

    def __post_init__(self) -> None:
        sent = [name for name in self.COLUMNS if getattr(self, name) is not UNSET]
        if len(sent) != 1:
            raise ValueError(f"an outcome ping has one of {', '.join(self.COLUMNS)}, and this has {len(sent)}")
        if self.GRIDS:
            OutcomeColumns.__post_init__(self)


def column_of(payload: OutcomePayload) -> str:
    """Return the name of a later outcome's column. It isn't a property, which a column of the same name would hide."""
    return next(name for name in payload.COLUMNS if getattr(payload, name) is not UNSET)


class Ping(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """One document, posted to ``/submit/<study>/<type>/<version>/<document id>``.

    ``client_id`` names an installation, never a person; the document id is in the path and differs for every ping.
    """

    client_id: Annotated[UUID, Meta(description="the installation, a UUID drawn at random at enrolment")]
    type: str
    payload: Payload
    ticket: (
        Annotated[
            str,
            Meta(
                max_length=LONGEST,
                pattern=PATTERN,
                description="the product's ticket for the client id, in studies that require one; not stored",
            ),
        ]
        | UnsetType
    ) = UNSET


class BatchedPing(Ping, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """One line of a batch: a ping with the document id that a single ping would have in its path."""

    document_id: Annotated[UUID, Meta(description="the document; a retry carries the same")]


class TelemetryPing(Ping, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """A ping in Firefox's envelope, posted to ``/submit/telemetry/<document id>/<type>/…?v=4``.

    The form of the envelope's other contents is checked, but they are not stored; the ``environment``, which the
    browser adds to some kinds of pings, is not even parsed.
    """

    id: Annotated[UUID, Meta(description="the document, as in the path; a retry carries the same")]
    creation_date: ShortText
    version: Literal[4]
    application: Annotated[
        dict[ShortText, ShortText | None], Meta(max_length=16, description="the browser's description of itself")
    ]
    environment: Raw | UnsetType = UNSET


class LandedPing(Struct, frozen=True, kw_only=True):
    """A ping as stored: the envelope that ingest adds, and the payload. These are the rows of landed files."""

    document_id: UUID
    client_id: UUID
    received_at: Annotated[int, Meta(ge=0, description="when ingest accepted it, milliseconds since 1970, UTC")]
    payload: Payload


DocumentName: TypeAlias = Literal["frecency-update", "model-update", "private-update", "list-update"]
"""The types of pings that a study may have; its later outcomes have an additional type (:data:`OUTCOME`)."""

_P = TypeVar("_P", bound=Ping)


@dataclass(frozen=True)
class DocumentType:
    """A type of ping.

    Attributes:
        name: name in the path and in the ping.
        version: version in the path.
        format: format of such pings in the journal and in landed files; it grows when an older program would misread
            them.
        payload: class of the payload.
        counted_by: fields of the payload with the number of examples; the first of them that a ping has is used. Empty
            for a type without such a field, whose pings have one example each.
        examples: function from the field's value, or an array of values, to the number of examples.
        nothing: description of a ping without an example.
        ranked: whether ``counted_by`` is the selected rank, whose mean is reported.
        top: the value of ``counted_by`` for the top of a list, whose rank is 0.
        outcomes: the declared columns of its payload, which differ by study.
        study: the study whose type it is; empty for a type without declared columns, which is the same in all studies.
    """

    name: str
    version: str
    format: int
    payload: type[Payload]
    counted_by: tuple[str, ...]
    examples: Callable[[Any], Any]
    nothing: str
    ranked: bool = False
    top: int = 0
    outcomes: tuple[Outcome, ...] = ()
    study: str = ""

    @cached_property
    def journal(self) -> str:
        """The name of the type's journal; a type whose columns differ by study has one journal for each study."""
        return f"{self.name}{BY_STUDY}{self.study}" if self.study else self.name

    @property
    def is_outcome(self) -> bool:
        """Whether its pings are later outcomes, which are stored apart from the pings that rounds read."""
        return issubclass(self.payload, OutcomePayload)

    @cached_property
    def ping(self) -> type[Ping]:
        """The class of a single ping of this type."""
        return _with_payload(Ping, self)

    @cached_property
    def batched(self) -> type[BatchedPing]:
        """The class of one line of a batch of pings of this type."""
        return _with_payload(BatchedPing, self)

    @cached_property
    def telemetry(self) -> type[TelemetryPing]:
        """The class of a ping of this type in Firefox's envelope."""
        return _with_payload(TelemetryPing, self)

    @property
    def tells_loss(self) -> bool:
        """Whether pings of the type have a loss."""
        return issubclass(self.payload, LossPayload)

    def loss_of(self, payload: Payload) -> float:
        """Return the loss of a payload; 0 without one."""
        return payload.loss if isinstance(payload, LossPayload) else 0.0

    def examples_of(self, payload: Payload) -> int:
        """Return the number of examples of a payload."""
        return int(self.examples(self.counted_in(payload)))

    def counted_in(self, payload: Payload) -> int:
        """Return the value of the field that determines a payload's number of examples; 1 without such a field."""
        if not self.counted_by:
            return 1
        for name in self.counted_by:
            if (value := getattr(payload, name)) is not msgspec.UNSET:
                return int(value)
        raise ValueError(f"a payload has none of {', '.join(self.counted_by)}")


def _with_payload(base: type[_P], document: DocumentType) -> type[_P]:
    """Return a class of pings for one type and its payload."""
    struct: Any = msgspec.defstruct(
        base.__name__,
        [("type", Literal[document.name]), ("payload", document.payload)],
        bases=(base,),
        namespace={"__doc__": base.__doc__},
        frozen=True,
        forbid_unknown_fields=True,
        kw_only=True,
        rename="camel",
    )
    return struct  # type: ignore[no-any-return]


FRECENCY_UPDATE = DocumentType(
    name="frecency-update",
    version="1",
    format=2,  # some fields may be absent
    payload=FrecencyPayload,
    counted_by=("rank_selected", "bookmark_and_history_rank_selected"),
    examples=lambda rank: rank > NOTHING_SELECTED,
    nothing=f"nothing was selected (rank {NOTHING_SELECTED})",
    ranked=True,
)
"""An interaction with a ranked list: one example if it ended with a selection, else none."""

MODEL_UPDATE = DocumentType(
    name="model-update",
    version="1",
    format=1,
    payload=ModelPayload,
    counted_by=("examples",),
    examples=lambda number: number,
    nothing="there was no example (examples 0)",
)
"""An update of a model of any kind, computed from a client's examples."""

PRIVATE_UPDATE = DocumentType(
    name="private-update",
    version="1",
    format=1,
    payload=PrivatePayload,
    counted_by=(),
    examples=lambda number: number,
    nothing="there was no example",
)
"""A client's bounded update for a private line, and nothing else."""

LIST_UPDATE = DocumentType(
    name="list-update",
    version="1",
    format=1,
    payload=ListPayload,
    counted_by=("place",),
    examples=lambda place: place > 0,
    nothing="nothing was chosen (place 0)",
    ranked=True,
    top=1,
)
"""A list of candidates, ranked by any model, with a study's outcomes at the choice: one example if a choice was made.

A study's own variant has the study's declared columns as well (:func:`type_of_study`).
"""

OUTCOME = DocumentType(
    name="outcome",
    version="1",
    format=1,
    payload=OutcomePayload,
    counted_by=(),
    examples=lambda number: number,
    nothing="there was no example",
)
"""A later outcome; a study's own variant has the study's declared columns (:func:`outcomes_of_study`)."""

DOCUMENT_TYPES: Mapping[str, DocumentType] = {
    each.name: each for each in (FRECENCY_UPDATE, MODEL_UPDATE, PRIVATE_UPDATE, LIST_UPDATE, OUTCOME)
}
"""All types of pings by name."""


@lru_cache(maxsize=1024)
def type_of_study(pings: DocumentName, study: str, outcomes: tuple[Outcome, ...]) -> DocumentType:
    """Return the type of the pings that a study's rounds read; lists get the columns of outcomes at the choice."""
    if pings != LIST_UPDATE.name:
        return DOCUMENT_TYPES[pings]
    return _with_outcomes(LIST_UPDATE, study, at_choice(outcomes))


@lru_cache(maxsize=1024)
def outcomes_of_study(study: str, outcomes: tuple[Outcome, ...]) -> DocumentType | None:
    """Return the type of a study's later outcomes; None if the study declares none."""
    declared = later(outcomes)
    return _with_outcomes(OUTCOME, study, declared) if declared else None


def _with_outcomes(document: DocumentType, study: str, outcomes: tuple[Outcome, ...]) -> DocumentType:
    """Return a type of pings with the declared columns of a study."""
    names = {"COLUMNS": tuple(outcome.name for outcome in outcomes)} if document is OUTCOME else {}
    payload: Any = msgspec.defstruct(
        document.payload.__name__,
        columns_of(outcomes),
        bases=(document.payload,),
        namespace={
            "__doc__": document.payload.__doc__,
            "GRIDS": grids_of(outcomes),
            **names,
        },
        frozen=True,
        forbid_unknown_fields=True,
        kw_only=True,
    )
    return replace(document, payload=payload, outcomes=outcomes, study=study)
