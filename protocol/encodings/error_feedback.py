"""Error feedback (Seide et al. 2014; Karimireddy et al. 2019): a client sends later what its links have left out.

It is no encoding, but stands before the links that are. A client keeps a residual e, zero at first. With an update u it
sends p = e + u through the links after it, decodes its own payload, like the server, to y, and keeps

    e ← p - y.

That needs links that lose less than they get, |p - y| ≤ |p|. Links that are unbiased by making a few numbers large,
such as a mask, do not; so a client sends c p instead, where c = ⟨p, y⟩ / |y|² makes c y the closest to p. For `top-k`
and `scaled-signs` c is 1; for a mask it is the share of kept weights (Stich, Cordonnier and Jaggi 2018). Links whose
output is proportional to their input then lose at most their input. `fedping.client_sim.upload` applies it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from fedping.protocol.link_ends import ClientEnd, Ends, ServerEnd
from fedping.protocol.rules import Traits

if TYPE_CHECKING:
    from fedping.protocol.spec import ModelSpec


class ErrorFeedback(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="error-feedback"
):
    """Add to each update what the links after this one have left out of the client's updates before.

    The client keeps that, a number for each weight. It is the first link.
    """

    traits: ClassVar[Traits] = frozenset({"feeds back", "other draws"})

    def ends(self, spec: ModelSpec) -> Ends:
        """Return its ends (`fedping.protocol.link_ends`), which do nothing to a single update."""
        return ClientEnd(transform=lambda updates, _: updates), ServerEnd()


EXAMPLES = (ErrorFeedback(),)
"""Settings that tests try."""
