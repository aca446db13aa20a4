"""Outcomes: columns in which clients report the consequences of a choice, at the choice or later.

A study declares each outcome with its bounds. Before sending, a client moves a value to the nearest bound and rounds it
(:meth:`clipped`); ingest doesn't clip, but rejects values beyond the bounds or with finer steps. Outcomes without
``within`` are sent in the ping of the choice. Outcomes with ``within`` are sent in separate pings, one value a ping
(`fedping.protocol.ping.OUTCOME`), without an update; rounds don't read them.

Free text and values without bounds are not supported: a text can identify its author, and a single value without bounds
can decide a comparison.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from fedping.protocol.errors import InvalidSettings, UnfitTable
from fedping.protocol.weights import Finite, Positive

MOST_OUTCOMES = 32
"""Maximum outcomes of a study; each is a column of every landed file."""

MOST_VALUES = 64
"""Maximum values of a category."""

MOST_HOURS = 24 * 365
"""Maximum hours of ``within``."""

_LARGEST_COUNT = 2**31 - 1
_GRID = 1e-6
"""Tolerance between a value and a whole number of steps, in steps, because products of decimals are seldom exact."""

_MOST_STEPS = 1e9
"""Maximum steps between the bounds of a number, so that rounding in double precision stays exact enough."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_DURATION = re.compile(r"([1-9][0-9]{0,4})([hd])")

RESERVED = frozenset(
    {
        *("document_id", "client_id", "received_at", "payload", "model_version", "study_variation"),
        *("update", "update_encoding", "encoded", "loss", "examples", "rank_selected"),
        *("place", "candidates", "seen", "swapped", "pinned", "age", "choice"),
        *("study", "line", "iteration", "day", "segment"),
    }
)
"""Names that outcomes can't have, because other columns have them."""


class _Outcome(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """Settings common to all kinds of outcomes.

    Attributes:
        name: the outcome's name, which is also its column's.
        within: maximum time after the choice at which a later outcome counts, such as "48h" or "14d". None for an
            outcome at the choice.
        linked: whether its pings contain the document id of their choice; else they name only the client and its arm.
        better: direction that is better for users, as a guardrail needs; None if neither is.
    """

    name: str
    within: str | None = None
    linked: bool = False
    better: Literal["less", "more"] | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UnfitTable(
                f"'{self.name[:80]}' can't name an outcome. Use a name such as 'basket': at most 40 lower-case "
                "letters, digits and '_', a letter first"
            )
        if self.name in RESERVED:
            raise UnfitTable(f"'{self.name}' is another column of landed pings. Choose another name")
        if self.within is not None:
            _hours(self.name, self.within)
        elif self.linked:
            raise UnfitTable(
                f"outcome '{self.name}' is linked, but travels in the ping of its choice. Remove 'linked', or set "
                "'within' for a later outcome"
            )
        if self.better is not None and isinstance(self, CategoryOutcome):
            raise UnfitTable(f"outcome '{self.name}' is a category, so no direction is better. Remove 'better'")
        self._check()

    def _check(self) -> None:
        """Raise :class:`UnfitTable` if the bounds contradict each other."""

    @property
    def hours(self) -> int | None:
        """Hours of ``within``; None for an outcome at the choice."""
        return None if self.within is None else _hours(self.name, self.within)

    @property
    def wire_type(self) -> Any:
        """The type of the outcome's field in a payload."""
        raise NotImplementedError

    @property
    def in_words(self) -> str:
        """The outcome's name with its bounds, for messages."""
        return self.name


class FlagOutcome(_Outcome, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="flag", omit_defaults=True):
    """An outcome that is true or false."""

    @property
    def wire_type(self) -> Any:
        """See :class:`_Outcome`."""
        return bool

    def clipped(self, value: bool) -> bool:
        """Return the value that a client sends."""
        return value


class CountOutcome(_Outcome, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="count", omit_defaults=True):
    """An outcome that is a whole number from 0 to ``most``."""

    most: Annotated[int, Meta(ge=1, le=_LARGEST_COUNT)]

    @property
    def wire_type(self) -> Any:
        """See :class:`_Outcome`."""
        return Annotated[int, Meta(ge=0, le=self.most)]

    @property
    def in_words(self) -> str:
        """See :class:`_Outcome`."""
        return f"{self.name} (0 to {self.most:,})"

    def clipped(self, value: float) -> int:
        """Return the value that a client sends: the nearest whole number within the bounds, a half upwards."""
        return math.floor(min(max(value, 0.0), float(self.most)) + 0.5)


class NumberOutcome(_Outcome, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="number", omit_defaults=True):
    """An outcome that is a number from ``low`` to ``high``, in whole steps of ``round`` from ``low``."""

    low: Finite
    high: Finite
    round: Positive

    def _check(self) -> None:
        if self.low >= self.high:
            raise UnfitTable(
                f"outcome '{self.name}' has low = {self.low:g} and high = {self.high:g}. Set 'low' below 'high'"
            )
        steps = (self.high - self.low) / self.round
        if steps > _MOST_STEPS:
            raise UnfitTable(
                f"outcome '{self.name}' has {steps:.3g} steps of round = {self.round:g} between its bounds, and at "
                f"most {_MOST_STEPS:g} are possible. Set a larger 'round'"
            )
        if steps < 1 - _GRID or abs(steps - math.floor(steps + 0.5)) > _GRID * max(1.0, steps * 1e-6):
            raise UnfitTable(
                f"outcome '{self.name}' has {steps:.6g} steps of round = {self.round:g} from low = {self.low:g} to "
                f"high = {self.high:g}. Set bounds that are whole steps apart"
            )

    @property
    def wire_type(self) -> Any:
        """See :class:`_Outcome`."""
        return Annotated[float, Meta(ge=self.low, le=self.high)]

    @property
    def in_words(self) -> str:
        """See :class:`_Outcome`."""
        return f"{self.name} ({self.low:,g} to {self.high:,g} in steps of {self.round:g})"

    def clipped(self, value: float) -> float:
        """Return the value that a client sends: within the bounds, at the nearest step, a half upwards.

        Each operation is in double precision, in this order, so that every language gets the same bits.
        """
        within = min(max(value, self.low), self.high)
        steps = math.floor((within - self.low) / self.round + 0.5)
        return min(self.low + steps * self.round, self.high)

    def is_fine(self, value: float) -> bool:
        """Return whether a value within the bounds is a whole number of steps."""
        steps = (value - self.low) / self.round
        return abs(steps - round(steps)) <= _GRID


class CategoryOutcome(
    _Outcome, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="category", omit_defaults=True
):
    """An outcome that is one of the listed ``values``."""

    values: tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...]

    def _check(self) -> None:
        if not 2 <= len(self.values) <= MOST_VALUES:
            raise UnfitTable(
                f"outcome '{self.name}' has {len(self.values)} values. List 2 to {MOST_VALUES} of them in 'values'"
            )
        if repeated := next((value for value in self.values if self.values.count(value) > 1), None):
            raise UnfitTable(f"outcome '{self.name}' lists the value '{repeated}' twice. Remove one")

    @property
    def wire_type(self) -> Any:
        """See :class:`_Outcome`."""
        return Literal[self.values]

    @property
    def in_words(self) -> str:
        """See :class:`_Outcome`."""
        return f"{self.name} (one of {len(self.values)})"

    def clipped(self, value: str) -> str | None:
        """Return the value that a client sends; None for an unlisted value, which isn't sent."""
        return value if value in self.values else None


NumericOutcome: TypeAlias = FlagOutcome | CountOutcome | NumberOutcome
Outcome: TypeAlias = NumericOutcome | CategoryOutcome


def outcome_range(outcome: NumericOutcome) -> tuple[float, float]:
    """Return the least and the greatest value of a numeric outcome; a flag is 0 or 1."""
    if isinstance(outcome, NumberOutcome):
        return outcome.low, outcome.high
    return 0.0, float(outcome.most) if isinstance(outcome, CountOutcome) else 1.0


def _hours(name: str, within: str) -> int:
    found = _DURATION.fullmatch(within)
    hours = 0 if found is None else int(found[1]) * (24 if found[2] == "d" else 1)
    if not 0 < hours <= MOST_HOURS:
        raise UnfitTable(
            f"outcome '{name}' has within = '{within[:80]}'. Give whole hours or days, at most a year, such as "
            '"48h" or "14d"'
        )
    return hours


def check_outcomes(study: str, outcomes: Sequence[Outcome]) -> None:
    """Raise :class:`InvalidSettings` if two of a study's outcomes have the same name, or there are too many."""
    names = [outcome.name for outcome in outcomes]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InvalidSettings(f"study '{study}' declares the outcome '{repeated}' twice. Rename one of them")
    if len(names) > MOST_OUTCOMES:
        raise InvalidSettings(f"study '{study}' declares {len(names)} outcomes. Declare at most {MOST_OUTCOMES}")


def at_choice(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Return the outcomes that are sent in the ping of the choice."""
    return tuple(outcome for outcome in outcomes if outcome.within is None)


def later(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Return the outcomes that are sent in separate pings."""
    return tuple(outcome for outcome in outcomes if outcome.within is not None)


class OutcomeColumns(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Declared columns of a payload, which a subclass adds as optional fields (:func:`with_columns`).

    Raises:
        ValueError: a number is finer than its outcome allows.
    """

    GRIDS: ClassVar[tuple[tuple[str, float, float], ...]] = ()
    """Name, least value and step of each outcome that is a number."""

    def __post_init__(self) -> None:
        # every ping comes here: no call but getattr and round
        for name, low, step in self.GRIDS:
            if (value := getattr(self, name)) is not UNSET:
                steps = (value - low) / step
                if not -_GRID <= steps - round(steps) <= _GRID:
                    raise ValueError(f"`{name}` is finer than {step:g}; round it to whole steps from {low:g}")


def grids_of(outcomes: Sequence[Outcome]) -> tuple[tuple[str, float, float], ...]:
    """Return :attr:`OutcomeColumns.GRIDS` for these outcomes."""
    numbers = (outcome for outcome in outcomes if isinstance(outcome, NumberOutcome))
    return tuple((outcome.name, outcome.low, outcome.round) for outcome in numbers)


def columns_of(outcomes: Sequence[Outcome]) -> list[tuple[str, Any, Any]]:
    """Return the optional fields for outcomes, in the form that :func:`msgspec.defstruct` expects."""
    return [(outcome.name, outcome.wire_type | UnsetType, UNSET) for outcome in outcomes]


def linked_id(choice: UUID, column: str) -> UUID:
    """Return the document id of a later outcome that names its choice; a repeated outcome gets the same id."""
    return _id_of(f"{choice}\n{column}")


def unlinked_id(secret: UUID, choice: UUID, column: str) -> UUID:
    """Return the document id of a later outcome that doesn't name its choice.

    ``secret`` is a UUID that the client draws at random and never sends, so that a server can't find the choice by
    trying all ids.
    """
    return _id_of(f"{secret}\n{choice}\n{column}")


def _id_of(text: str) -> UUID:
    """Return a UUID of version 8 (RFC 9562) with the first bits of the SHA-256 of a text."""
    digest = bytearray(hashlib.sha256(text.encode()).digest()[:16])
    digest[6], digest[8] = 0x80 | digest[6] & 0x0F, 0x80 | digest[8] & 0x3F
    return UUID(bytes=bytes(digest))


def age_hours(choice_ms: int, outcome_ms: int) -> int:
    """Return the ``age`` of an outcome: whole hours since its choice by the client's clock; 0 if it was set back."""
    return max(0, outcome_ms - choice_ms) // 3_600_000
