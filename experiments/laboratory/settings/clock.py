"""The settings of simulated time: clients' durations, their availability, and the end of a round."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.rules import Trait, Traits, traits_where
from fedping.protocol.spec import Positive


class LogNormal(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An amount that differs between clients: with this ``median``; ``sigma`` is the deviation of its logarithm."""

    median: Positive
    sigma: Annotated[float, Meta(ge=0, le=5)] = 1.0


Amount: TypeAlias = Positive | Annotated[tuple[Positive, ...], Meta(min_length=1)] | LogNormal
"""One number for all clients, several numbers that are assigned in turn, or a distribution to draw from."""


class Hours(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="hours"):
    """A client is available at the same hours of every day; a run begins at hour 0.

    Attributes:
        start: hour of the day when it becomes available.
        hours: number of hours that it stays available.
        spread: standard deviation of ``start`` over the clients, in hours.
    """

    start: Annotated[float, Meta(ge=0, lt=24)]
    hours: Annotated[float, Meta(gt=0, lt=24)]
    spread: Annotated[float, Meta(ge=0, le=24)] = 0.0


class OnOff(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="by", tag="on_off"):
    """A client is available for ``on`` hours and away for ``off`` hours, both means of exponential distributions."""

    on: Annotated[float, Meta(ge=0.001, le=8760)]
    off: Annotated[float, Meta(ge=0.001, le=8760)]


class Asynchronous(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """FedBuff (Nguyen et al. 2022) instead of rounds that wait for their clients.

    Attributes:
        buffer: number of answers for the server's next version.
        concurrency: number of clients that work at the same time; where one ends, another is invited.
    """

    buffer: Annotated[int, Meta(ge=1, le=1_000_000)] = 10
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] = 100


class Clock(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Simulated time: a client fetches, trains and sends, and a round ends when enough have answered.

    Attributes:
        seconds_per_example: seconds for one example of one epoch.
        seconds_per_answer: additional seconds of each answer, as for a start.
        download_rate: bytes a second; versions take no time if absent. A version has 4 bytes a weight.
        upload_rate: bytes a second; updates take no time if absent. An update has the most bytes that its encoding has.
        available: when clients are available; always if absent. One that goes away before it has answered is lost.
        drop_out: probability that an invited client never answers.
        answers: number of answers of invited clients that end a round; all if absent.
        deadline: maximum seconds of a round.
        late: whether answers after the end of their round are ``dropped`` or ``counted`` in the round of their arrival,
            with their age, as the server's ``staleness`` says.
        asynchronous: see :class:`Asynchronous`; rounds wait for clients if absent.
        hours: simulated hours of a run, which then ends with the version in progress.

    Raises:
        InvalidSettings: settings of rounds in an asynchronous run, or late answers without an end of the round.
    """

    seconds_per_example: Amount
    seconds_per_answer: Amount | None = None
    download_rate: Amount | None = None
    upload_rate: Amount | None = None
    available: Hours | OnOff | None = None
    drop_out: Annotated[float, Meta(ge=0, le=0.99)] = 0.0
    answers: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    deadline: Positive | None = None
    late: Literal["dropped", "counted"] = "dropped"
    asynchronous: Asynchronous | None = None
    hours: Positive | None = None

    def __post_init__(self) -> None:
        if self.asynchronous and (self.answers or self.deadline or self.late == "counted"):
            raise InvalidSettings(
                "[clock] is asynchronous, so no round waits for clients. Remove 'answers', 'deadline' and 'late', or "
                "'asynchronous'"
            )
        if self.late == "counted" and not (self.answers or self.deadline):
            raise InvalidSettings(
                '[clock] has late = "counted" in rounds that wait for all clients, so late answers don\'t occur. Set '
                "'answers' or 'deadline', or remove 'late'"
            )

    @property
    def counts_late(self) -> bool:
        """Whether updates from older versions are merged."""
        return self.asynchronous is not None or self.late == "counted"

    @property
    def traits(self) -> Traits:
        """The traits whose combinations are checked (`fedping.protocol.rules`)."""
        own: dict[Trait, bool] = {
            "clock": True,
            "asynchronous": self.asynchronous is not None,
            "counts late answers": self.counts_late,
            "loses answers": bool(self.counts_late or self.answers or self.deadline or self.available or self.drop_out),
        }
        return traits_where(own)
