"""Limits on the claims of clients: losses, examples, ranks and updates.

Ingest refuses values beyond a limit; rounds and analyses leave out landed ones. Two claims are taken: more examples
than a ping may have count as that many, and a loss beyond ``clip_loss`` counts as the nearer of its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.weights import Finite, Positive

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedping.protocol.ping import DocumentType


class Limits(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is believed of the numbers in a study's pings; without a setting, whatever their type allows.

    ``examples`` is as how many examples a ping counts at most, ``loss`` the least and the greatest loss, ``rank`` the
    greatest selected rank. ``clip_loss`` is the least and the greatest value that a loss counts as where losses are
    averaged or compared; the ping itself is taken and stored as it came. ``votes`` is what counts once in the mean loss
    and rank of an arm in a version's lineage: every example, or every client with the mean of its pings. ``tails`` is
    the share of an arm's clients at either end whose values `fedping analyze` moves to the nearest that is not among
    them (winsorising). With ``round_tails`` a round does so too with that share, at least one client, at either end of
    what an arm's clients say of loss, rank and examples. The lineage then has these means besides, and decisions go by
    them: those of the guard, early stopping and health. None and 0 do not.

    Raises:
        InvalidSettings: a least loss is above the greatest.
    """

    examples: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    loss: tuple[Finite, Finite] | None = None
    rank: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    votes: Literal["examples", "client"] = "examples"
    tails: Annotated[float, Meta(ge=0, lt=0.5)] = 0.0
    round_tails: Annotated[float, Meta(ge=0, lt=0.5)] | None = None
    clip_loss: tuple[Finite, Finite] | None = None

    def __post_init__(self) -> None:
        if self.loss is not None and self.loss[0] > self.loss[1]:
            raise InvalidSettings(f"the limits have a least loss of {self.loss[0]:g} above the greatest; swap the two")
        if self.clip_loss is not None and self.clip_loss[0] > self.clip_loss[1]:
            raise InvalidSettings(
                f"the limits have a 'clip_loss' of {self.clip_loss[0]:g} above {self.clip_loss[1]:g}; swap the two"
            )

    def trouble(self, loss: float, rank: int) -> str | None:
        """Return what is beyond the limits, in words; None if nothing is. Without a rank it is -1."""
        if self.loss is not None and not self.loss[0] <= loss <= self.loss[1]:
            return f"loss is {loss:g}, and lies between {self.loss[0]:g} and {self.loss[1]:g}"
        if self.rank is not None and rank > self.rank:
            return f"selected rank is {rank}, and at most {self.rank}"
        return None

    def clipped(self, loss: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the losses as they count, of the same shape."""
        import numpy as np

        return loss if self.clip_loss is None else np.clip(loss, *self.clip_loss)

    def beyond(self, loss: NDArray[np.float64], rank: NDArray[np.int32] | None) -> NDArray[np.bool_]:
        """Return which of k pings are beyond the limits, shape (k,); ``rank`` is None of pings without any."""
        import numpy as np

        found = np.zeros(len(loss), np.bool_)
        if self.loss is not None:
            found |= (loss < self.loss[0]) | (loss > self.loss[1])
        if self.rank is not None and rank is not None:
            found |= rank > self.rank
        return found


class UpdateLimits(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How large an update of a line may be: each of its numbers, by ``weight``, and its Euclidean norm.

    Limits apply to the decoded update, with transforming links undone, which only rounds do.
    """

    weight: Positive | None = None
    norm: Positive | None = None

    def trouble(self, update: Sequence[float]) -> str | None:
        """Return what is beyond the limits, in words; None if nothing is."""
        if self.weight is not None and update and (most := max(max(update), -min(update))) > self.weight:
            return f"has a number of size {most:g}, and each is within ±{self.weight:g}"
        if self.norm is not None and (norm := math.hypot(*update)) > self.norm:
            return f"has the norm {norm:g}, and may have {self.norm:g}"
        return None

    def within(self, updates: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
        """Return which of k updates, shape (k, m), are within the limits."""
        import numpy as np

        found = np.ones(len(updates), np.bool_)
        if self.weight is not None and updates.shape[1]:
            found &= np.maximum(updates.max(axis=1), -updates.min(axis=1)) <= self.weight
        if self.norm is not None:
            # squares of 1e30 are numbers in float64; einsum makes no copy of all updates in it
            found &= np.einsum("ij,ij->i", updates, updates, dtype=np.float64) <= self.norm**2
        return found


def check_new_limits(study: str, limits: Limits) -> None:
    """Raise :class:`InvalidSettings` if every loss that is taken counts as the same number.

    It is no rule of :class:`Limits`, since stored studies may have such.
    """
    if limits.clip_loss is None:
        return
    (low, high), (least, most) = limits.loss or (-math.inf, math.inf), limits.clip_loss
    if min(high, most) <= max(low, least):
        raise InvalidSettings(
            f"the limits of study '{study}' have every loss that is taken count as {min(max(low, least), most):g}; "
            "widen 'clip_loss' or 'loss' until they share a range"
        )


MOST_LOSS = 1e6
"""Maximum that a loss counts as: in 2018, one ping in fifteen had a larger one, all with long histories."""

FARTHEST_LOSS = 1e15
"""Largest loss of an honest client: a thousand suggestions with scores that are off by 10^12 each."""

MOST_RANK = 1000
MOST_EXAMPLES = 1000
TAILS = 0.005
ROUND_TAILS = 0.025
"""Of a round's clients: more than the hundredth that a round has to stand, and so few that a loss remains where three
quarters of the clients have none, as happens late in learning to rank."""


def usual_limits(document: DocumentType, *, clips: bool = True) -> Limits:
    """Return the limits of a new study that sets none: far from what honest clients send, and near enough to matter.

    Args:
        document: the type of its pings.
        clips: whether losses are clipped; earlier versions of fedping refused them from there on.
    """
    least = 0.0 if document.ranked else -1.0
    most = FARTHEST_LOSS if clips else MOST_LOSS
    return Limits(
        loss=(least * most, most),
        clip_loss=(least * MOST_LOSS, MOST_LOSS) if clips else None,
        rank=MOST_RANK if document.ranked else None,
        examples=None if document.ranked else MOST_EXAMPLES,
        votes="client",
        tails=TAILS,
        round_tails=ROUND_TAILS,
    )


def completed(limits: Limits | None, document: DocumentType, *, clips: bool = True) -> Limits:
    """Return the limits of a new study: the usual ones if it sets none, and none if it sets them to none at all."""
    if limits is None:
        return usual_limits(document, clips=clips)
    if limits == Limits() or limits.round_tails is not None:
        return limits
    return replace(limits, round_tails=ROUND_TAILS)
