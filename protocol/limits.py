"""Limits on the claims of clients: losses, examples, ranks and updates.

Ingest rejects pings with values beyond a limit; rounds and analyses leave out landed pings with such values. Two claims
are reduced instead: more than the allowed examples count as that many, and a loss beyond ``clip_loss`` counts as the
nearer bound.
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
    """Bounds on the numbers in a study's pings. Without a setting, all values that the ping's type allows are believed.

    Attributes:
        examples: maximum number of examples that a ping counts as.
        loss: least and greatest loss; other pings are rejected.
        rank: greatest selected rank; other pings are rejected.
        votes: what counts once in the mean loss and rank of an arm in a version's lineage: every example, or every
            client, with the mean of its pings.
        tails: share of an arm's clients at either end whose values `fedping analyze` moves to the nearest of the others
            (winsorising); 0 disables it.
        round_tails: like ``tails``, but in rounds, for the loss, rank and examples of an arm's clients, and for at
            least one client at either end. The lineage then also has these means, and the guard, early stopping and
            health use them. None and 0 disable it.
        clip_loss: least and greatest value that a loss counts as where losses are averaged or compared. The ping itself
            is accepted and stored unchanged.

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
        """Return a phrase for the value beyond the limits, or None. A ping without a rank has rank -1."""
        if self.loss is not None and not self.loss[0] <= loss <= self.loss[1]:
            return f"loss is {loss:g}, and lies between {self.loss[0]:g} and {self.loss[1]:g}"
        if self.rank is not None and rank > self.rank:
            return f"selected rank is {rank}, and at most {self.rank}"
        return None

    def clipped(self, loss: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the losses, each clipped to ``clip_loss``, of the same shape."""
        import numpy as np

        return loss if self.clip_loss is None else np.clip(loss, *self.clip_loss)

    def beyond(self, loss: NDArray[np.float64], rank: NDArray[np.int32] | None) -> NDArray[np.bool_]:
        """Return which of k pings are beyond the limits, shape (k,); ``rank`` is None for pings without ranks."""
        import numpy as np

        found = np.zeros(len(loss), np.bool_)
        if self.loss is not None:
            found |= (loss < self.loss[0]) | (loss > self.loss[1])
        if self.rank is not None and rank is not None:
            found |= rank > self.rank
        return found


class UpdateLimits(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds on the size of a line's updates.

    They apply to the decoded update after transforming links are undone, so only rounds can check them.

    Attributes:
        weight: maximum size of each number.
        norm: maximum Euclidean norm.
    """

    weight: Positive | None = None
    norm: Positive | None = None

    def trouble(self, update: Sequence[float]) -> str | None:
        """Return a phrase for the value beyond the limits, or None."""
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
    """Raise :class:`InvalidSettings` if a new study's limits make all accepted losses count as the same number.

    :class:`Limits` does not check this, because stored studies may have such limits.
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
"""Maximum value that a loss counts as. In 2018, one ping in fifteen had a larger loss, all with long histories."""

FARTHEST_LOSS = 1e15
"""Largest loss of an honest client: a thousand suggestions, each with a score that is wrong by 10^12."""

MOST_RANK = 1000
MOST_EXAMPLES = 1000
TAILS = 0.005
ROUND_TAILS = 0.025
"""Share of a round's clients at either end that is winsorised. It exceeds the 1 % of hostile clients that a round must
withstand, and is small enough that a loss remains when three quarters of the clients have loss 0, as happens late in
learning to rank."""


def usual_limits(document: DocumentType, *, clips: bool = True) -> Limits:
    """Return the limits of a new study that sets none: far beyond honest clients' values, but low enough to matter.

    Args:
        document: the type of its pings.
        clips: whether losses are clipped; earlier versions of fedping rejected larger losses.
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
    """Return the limits of a new study: the usual ones if it sets none, and no limits if it explicitly disables all."""
    if limits is None:
        return usual_limits(document, clips=clips)
    if limits == Limits() or limits.round_tails is not None:
        return limits
    return replace(limits, round_tails=ROUND_TAILS)
