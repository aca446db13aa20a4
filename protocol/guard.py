"""When a round holds its version back instead of publishing it, as settings of a line."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from fedping.protocol.errors import UnfitTable

Times: TypeAlias = Annotated[float, Meta(gt=1, le=1e6)]
Figure: TypeAlias = Times | Literal["off"] | None
"""By how many times a figure may be exceeded; None, in TOML "off", if it is not looked at."""


class Guardrail(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the arms that apply the model may not be worse in than the control, or the line is rolled back by itself.

    The round rolls back to the version before the first of them when, for ``rounds`` rounds one after the other, the
    mean of ``metric`` over the arms that apply the model was more than ``most`` times that of the line's other arms.
    Where means are winsorised, so that their standard errors are known, it has to be more by so much that chance does
    it for so many rounds at most once in a thousand.

    Of an outcome at the choice of which more is better, it rolls back when the mean was less than the control's divided
    by ``most``.

    Attributes:
        metric: ``loss``; ``rank_selected``, the selected rank, counted from 1; or an outcome at the choice that says
            which direction is better.
        most: how many times the control's it may be; of a negative one, by how many parts of its size it may be above.
        rounds: for how many rounds it may be more.
    """

    metric: str = "loss"
    most: Times = 1.1
    rounds: Annotated[int, Meta(ge=1, le=1000)] = 3


CLAIMED = ("loss", "rank_selected")
"""What a guardrail may look at besides outcomes."""


class Stage(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """That a share of the clients gets a version before everybody does, and what it has to show there.

    Of the clients of the arms that apply the line's model, those take a staged version whose id falls below the share
    (`fedping.protocol.enrolment.staged_for`). The others stay on the version before it. A round compares the two once
    enough clients of either have been heard: the version is for everybody, or is withdrawn.

    Attributes:
        share: of the clients of those arms, by the hash of their ids.
        clients: how many have to be heard of either side, each with an example.
        most: how many times the loss of those who stayed that on the staged version may be; of a negative one, by how
            many parts of its size it may be above.
        minutes: how long a version is staged at least.
    """

    share: Annotated[float, Meta(gt=0, lt=1)]
    clients: Annotated[int, Meta(ge=1, le=10**9)] = 200
    most: Times = 1.1
    minutes: Annotated[float, Meta(ge=0, le=1e6)] = 0.0


class Guard(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a round compares with the rounds before it; a version that stands out is held until somebody decides.

    A figure stands out if it exceeds the highest of the last ``window`` rounds by more than the given factor, and their
    median by more than ``deviations`` robust standard deviations (1.4826 times the median absolute deviation), both on
    a logarithmic scale. Once the window is full, it is compared so with what is in it but for the last ``rounds``, too:
    else each round could go a little further than what the last let pass. A released version's figures count as if they
    had always been so. A figure whose factor is None (in TOML: "off") is not looked at. The first ``rounds`` rounds of
    a line are compared with nothing: there is nothing to expect yet.

    Attributes:
        enabled: false looks at nothing, and stages nothing.
        rounds: how many rounds there have to be before any is judged.
        window: how many of the last rounds it is compared with.
        deviations: how many robust standard deviations above the median.
        norm: of the direction that the updates make together.
        jump: of the largest change of one weight.
        clients: of the number of clients with a usable update.
        new_clients: of the number of clients that have sent no usable update before, which is known about
            (`fedping.server_jobs.round.new_clients`); what may be chance is added to it.
        agreement: of how much the clients agree on the direction, from 0 to 1: invented clients agree too well.
        loss: of the loss of the arms that apply the model, relative to the arms of the line that do not.
        guardrail: when the line is rolled back by itself; never if None.
        floors: true takes figures for no smaller than chance makes them (`fedping.server_jobs.round.guard` says which),
            and of a control without any loss it cannot tell a factor. None is what lines say that are older than
            the question, and means false.
        stage: who gets a version first; everybody at once if None.

    Raises:
        UnfitTable: the window is too short to ever hold ``rounds`` rounds.
    """

    enabled: bool = True
    rounds: Annotated[int, Meta(ge=3, le=1000)] = 8
    window: Annotated[int, Meta(ge=3, le=1000)] = 48
    deviations: Annotated[float, Meta(gt=0, le=1000)] = 6.0
    norm: Figure = 3.0
    jump: Figure = 3.0
    clients: Figure = 1.6
    agreement: Figure = 2.0
    new_clients: Figure = 3.0
    loss: Figure = 1.25
    guardrail: Guardrail | None = None
    floors: bool | None = None
    stage: Stage | None = None

    def __post_init__(self) -> None:
        if self.window < self.rounds:
            raise UnfitTable(
                f"a guard with window = {self.window} never has the {self.rounds} rounds that it judges from; give a "
                "window of at least as many"
            )
        for name in FIGURES:
            if getattr(self, name) == "off":
                force_setattr(self, name, None)


FIGURES = ("norm", "jump", "clients", "new_clients", "agreement", "loss")
"""What a guard looks at of a round, in the order in which it is told."""
