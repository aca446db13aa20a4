"""Settings of a line's guard, guardrail and staged releases."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from fedping.protocol.errors import UnfitTable

Times: TypeAlias = Annotated[float, Meta(gt=1, le=1e6)]
Figure: TypeAlias = Times | Literal["off"] | None
"""Maximum ratio to the reference; None (TOML: "off") disables the check."""


class Guardrail(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Metric that rolls a line back automatically when the arms that apply the model do worse than the control.

    A round rolls back when, in ``rounds`` consecutive rounds, the mean of ``metric`` over the arms that apply the model
    exceeded ``most`` times the mean of the line's other arms. It returns to the version before the first of these
    rounds. If means are winsorised, so that their standard errors are known, the excess must also be significant:
    chance alone may cause it in all of these rounds at most once in a thousand cases.

    For an outcome at the choice of which more is better, a round rolls back when the mean was less than the control's
    mean divided by ``most``.

    Attributes:
        metric: ``loss``; ``rank_selected``, the selected rank, counted from 1; or an outcome at the choice that says
            which direction is better.
        most: maximum ratio to the control's mean; if the latter is negative, the excess over it may be ``most`` - 1
            times its absolute value.
        rounds: number of consecutive rounds with an excess that triggers the rollback.
    """

    metric: str = "loss"
    most: Times = 1.1
    rounds: Annotated[int, Meta(ge=1, le=1000)] = 3


CLAIMED = ("loss", "rank_selected")
"""Metrics of a guardrail other than outcomes."""


class Stage(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Staged release: the share of clients that get a version first, and the criteria for its full release.

    Among the clients of arms that apply the line's model, ids whose hash falls below the share take a staged version
    (`fedping.protocol.enrolment.staged_for`). The others stay on the previous version. Once enough clients on both
    sides have sent, a round compares the two, and releases the version to all clients or withdraws it.

    Attributes:
        share: share of the clients of these arms that get a version first.
        clients: minimum number of clients with an example on each side.
        most: maximum ratio of the loss on the staged version to the loss of the others; if the latter is negative, the
            excess over it may be ``most`` - 1 times its absolute value.
        minutes: minimum time in minutes that a version is staged.
    """

    share: Annotated[float, Meta(gt=0, lt=1)]
    clients: Annotated[int, Meta(ge=1, le=10**9)] = 200
    most: Times = 1.1
    minutes: Annotated[float, Meta(ge=0, le=1e6)] = 0.0


class Guard(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Comparison of a round with earlier rounds; a version that stands out is held until a person decides.

    A figure stands out if it exceeds the highest of the last ``window`` rounds by more than the given factor, and their
    median by more than ``deviations`` robust standard deviations (1.4826 times the median absolute deviation), both on
    a logarithmic scale. Once the window is full, it is also compared with the window without its last ``rounds``
    rounds: otherwise each round could go a little further than the previous one. After a release the version's figures
    count as normal. A figure whose factor is None (in TOML: "off") is not checked. The first ``rounds`` rounds of a
    line are not checked, because there is no reference yet.

    Attributes:
        enabled: false disables all checks and staging.
        rounds: number of first rounds that are not checked.
        window: number of last rounds that a round is compared with.
        deviations: minimum distance above the median, in robust standard deviations.
        norm: maximum ratio for the norm of the direction that the updates give together.
        jump: maximum ratio for the largest change of one weight.
        clients: maximum ratio for the number of clients with a usable update.
        new_clients: maximum ratio for the number of clients without an earlier usable update, an estimate
            (`fedping.server_jobs.round.new_clients`) plus its possible error.
        agreement: maximum ratio for the agreement of clients on the direction, from 0 to 1: invented clients agree too
            well.
        loss: maximum ratio for the loss of the arms that apply the model, relative to the line's other arms.
        guardrail: criterion for an automatic rollback; None for none.
        floors: true raises figures to their level by chance (`fedping.server_jobs.round.guard` lists them), and ignores
            a control without any loss. None, in lines older than this setting, means false.
        stage: staged release; None releases versions to all clients at once.

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
                f"a guard with window = {self.window} never contains the {self.rounds} rounds that it needs. Give a "
                "window of at least as many"
            )
        for name in FIGURES:
            if getattr(self, name) == "off":
                force_setattr(self, name, None)


FIGURES = ("norm", "jump", "clients", "new_clients", "agreement", "loss")
"""The figures of a round that a guard checks, in the order of its reports."""
