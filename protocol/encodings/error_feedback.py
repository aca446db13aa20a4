"""Error feedback (Seide et al. 2014; Karimireddy et al. 2019): clients later send what their links have left out.

Error feedback isn't an encoding; it precedes the encoding links. A client keeps a residual e, zero at first. With an
update u it sends p = e + u through the links after it, decodes its own payload, like the server, to y, and keeps

    e ← p - y.

The links after it must satisfy |p - y| ≤ |p|. Links that become unbiased by enlarging a few numbers, such as a mask, do
not; so a client sends c p instead, where c = ⟨p, y⟩ / |y|² makes c y the closest to p. For `top-k` and `scaled-signs` c
is 1; for a mask it is the share of kept weights (Stich, Cordonnier and Jaggi 2018). Links whose output is proportional
to their input then lose at most their input. `fedping.client_sim.upload` applies it.
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
    """Add to each update what the later links have left out of the client's previous updates.

    The client keeps this residual, a number for each weight. This link must be the first.
    """

    traits: ClassVar[Traits] = frozenset({"feeds back", "other draws"})

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`), which leave a single update unchanged."""
        return ClientEnd(transform=lambda updates, _: updates), ServerEnd()


EXAMPLES = (ErrorFeedback(),)
"""Example settings for tests."""
