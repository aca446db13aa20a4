"""Composition of a line's links: the client's steps before an update is sent, and the server's steps to undo them.

A line's ``upload`` is a list of links, which are published with it (`fedping.protocol.links`). A client applies them in
order; the server undoes them in reverse. Each has two ends (`fedping.protocol.link_ends`), which follow from its
settings and the model's spec:

- a :class:`ClientEnd` turns an update into another of the same length, or *encodes* it as bytes;
- a :class:`ServerEnd` decodes those bytes, or undoes the client's end for each update or, where that is linear, once
  for their sum.

At most one link of a line encodes, and it is the last. A mask may precede it, and is then part of the encoding.
Payloads are sent with the encoding's tag. Without an encoding link, updates are dense. The links are in
`fedping.protocol.encodings`, including those of users' packages (`fedping.protocol.encodings.own`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.link_ends import (
    Decoded,
    Encode,
    Ends,
    LinkState,
    ServerEnd,
    Sparse,
    Structured,
    Transform,
    Undo,
    UndoSum,
    without_infinite,
)
from fedping.protocol.links import (
    Dense,
    Mask,
    Upload,
    UploadLink,
    name_of,
    refuse_after_encoding,
    stages,
    tag_of,
    traits_of_links,
)
from fedping.protocol.rules import Parts, check, traits_of
from fedping.protocol.update import DENSE, Payloads, longest_payload

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from fedping.protocol.limits import UpdateLimits
    from fedping.protocol.pipeline import Pipeline
    from fedping.protocol.spec import ModelSpec
    from fedping.protocol.training import Training


Read: TypeAlias = Callable[["NDArray[np.floating[Any]] | Payloads"], "NDArray[np.float64]"]
"""A function from k sent updates to the updates as the server decodes each of them, shape (k, m)."""


def ends_of(link: UploadLink, spec: ModelSpec, values: UploadLink | None = None) -> Ends:
    """Return the two ends of a link.

    Args:
        link: the link's settings.
        spec: spec of the model whose updates it encodes.
        values: the link that encodes a mask's kept numbers, if one follows it.

    Raises:
        InvalidSettings: the link doesn't fit the spec; or it is an extension that is not installed, or whose code
            differs from the settings' digest.
        ExtensionFailed: the link is an extension that raises an error, or doesn't return two ends.
    """
    if values is not None:
        assert isinstance(link, Mask)
        return link.ends_with(values.ends(spec), tag_of(values))
    return link.ends(spec)


@dataclass(frozen=True)
class Sending:
    """The client's ends of a line's links: the transformations in order, and the encoder (None: dense).

    ``structured`` has the functions for structured training, if the line's clients use it; ``encode`` then takes
    movements that can be sent. ``first`` has the initial state of each link with client state, by the link's position;
    such a link also takes and returns its state (:class:`fedping.protocol.link_ends.ClientEnd`). ``read`` is the
    server's decoding, for a line with error feedback.
    """

    transforms: tuple[Transform, ...]
    encoding: str = DENSE
    encode: Encode | None = None
    structured: Structured | None = None
    first: Mapping[int, LinkState] = field(default_factory=dict)
    read: Read | None = None

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep state from one update to the next."""
        return bool(self.first) or self.read is not None


class SendingLine(Protocol):
    """A line or its public part, reduced to the attributes that determine its clients' ends."""

    @property
    def name(self) -> str:
        """The line's name."""

    @property
    def spec(self) -> ModelSpec:
        """The model whose updates are sent."""

    @property
    def training(self) -> Training:
        """The clients' training."""

    @property
    def upload(self) -> Upload:
        """The line's upload links."""


def sending(line: SendingLine) -> Sending:
    """Return the client's ends of a line's links.

    Raises:
        InvalidSettings, ExtensionFailed: as :func:`ends_of`, or a link that encodes is not the last, or the links don't
            support the line's structured training.
    """
    transforms: list[Transform] = []
    parts, where = (
        Parts(traits_of(line.training) | traits_of_links(line.upload)),
        f"[lines.training] of line '{line.name}' ",
    )
    within = parts.has("structured")
    first: dict[int, LinkState] = {}
    servers: list[ServerEnd] = []
    feeds_back = parts.has("feeds back")
    for link, values, last in stages(line.upload, line.name):
        client, server = ends_of(link, line.spec, values)
        servers.append(server)
        if client.init_state is not None and (state := client.init_state(line.spec.m)):
            first[len(transforms)] = state
        if client.transform is not None:
            transforms.append(client.transform)
            continue
        refuse_after_encoding(link, line.name, last)
        encoding = client.encoding or tag_of(link)
        if not within:
            read = _reading(line.spec, servers) if feeds_back else None
            return Sending(tuple(transforms), encoding, client.encode, first=first, read=read)
        if client.structured is not None and not transforms:
            check("clients' end of low rank", parts, where)
            return Sending((), encoding, client.structured.encode, client.structured)
    check("clients' end", parts, where)
    return Sending(tuple(transforms), first=first, read=_reading(line.spec, servers) if feeds_back else None)


def _reading(spec: ModelSpec, servers: Sequence[ServerEnd]) -> Read:
    """Return the server's decoding, update by update, for links with these ends."""

    def read(sent: NDArray[np.floating[Any]] | Payloads) -> NDArray[np.float64]:
        import numpy as np

        updates: NDArray[Any] = np.zeros(0)
        if isinstance(sent, Payloads):
            decode = servers[-1].decode
            assert decode is not None
            updates = decode(sent.column, spec.m)[0]
        else:
            updates = sent.astype(np.float32)
        for server in reversed(servers):
            if server.undo is not None:
                updates = server.undo(updates)
            elif server.undo_sum is not None:
                updates = np.array([server.undo_sum(spec, each.astype(np.float64)) for each in updates])
        return updates.astype(np.float64)

    return read


@dataclass(frozen=True)
class Receiving:
    """The server's ends of a line's links.

    Attributes:
        encoding: the tag of all updates of the line.
        decoder: reads the payloads.
        undone: functions that undo links on each update, in order of use.
        undone_once: functions that undo links on the sum of updates, in order of use.
    """

    encoding: str
    decoder: ServerEnd
    undone: tuple[Undo, ...]
    undone_once: tuple[UndoSum, ...]

    def decode(self, payloads: pa.BinaryArray, m: int) -> Decoded:
        """Return the updates of k payloads, after undoing the links that are undone on each update.

        Raises:
            ExtensionFailed: an end raises an error, or returns an invalid result.
        """
        assert self.decoder.decode is not None
        updates, ok = self.decoder.decode(payloads, m)
        for undo in self.undone:
            updates = undo(updates)
        return without_infinite(updates, ok) if self.undone else (updates, ok)

    def few(self, payloads: pa.BinaryArray, m: int) -> Sparse | None:
        """Return the sent weights of sparse payloads; None for other encodings, or if links are undone per update."""
        return self.decoder.sparse(payloads, m) if self.decoder.sparse and not self.undone else None

    def lengths(self, m: int) -> tuple[int, int]:
        """Return the minimum and the maximum bytes of a payload of m weights."""
        assert self.decoder.lengths is not None
        least, most = self.decoder.lengths(m)
        return least, min(most, longest_payload(m))

    def trouble(self, payload: bytes, m: int) -> str | None:
        """Return the problem with one payload of the right length; None if no problem can be detected."""
        return self.decoder.trouble(payload, m) if self.decoder.trouble else None

    def undo_sum(self, spec: ModelSpec, direction: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the direction of a round, shape (m,), after undoing the links that are undone only on the sum.

        Raises:
            ExtensionFailed: an end raises an error, or returns an invalid result.
        """
        for undo in self.undone_once:
            direction = undo(spec, direction)
        return direction


class ReceivingLine(SendingLine, Protocol):
    """A line, reduced to the attributes that determine its server's ends."""

    @property
    def pipeline(self) -> Pipeline:
        """The settings for the server's processing of updates."""

    @property
    def limits(self) -> UpdateLimits | None:
        """Bounds on the size of the line's updates."""

    @property
    def parts(self) -> Parts:
        """The traits of the line's parts."""


def receiving(line: ReceivingLine) -> Receiving:
    """Return the server's ends of a line's links.

    A link is undone only once, on the sum, if all of this holds: its type allows that; the round uses the plain mean of
    updates; neither limits nor the length of iterations read single updates; and no link before it, which is undone
    later, must be undone on each update. Otherwise it is undone on each update.

    Raises:
        InvalidSettings, ExtensionFailed: as :func:`ends_of`, or a link that encodes is not the last, or a link cannot
            be undone at its position, or the links don't support the line's training, or the round cannot aggregate
            their updates.
    """
    parts = line.parts
    inexact = [name_of(link) for link in line.upload if "inexact" in traits_of(link)]
    words = {
        "aggregate": str(line.pipeline.aggregate.__struct_config__.tag),
        "inexact": next(iter(inexact), ""),
        "sparse": next((name_of(link) for link in line.upload if "leaves zeros" in traits_of(link)), ""),
    }
    check("server's end", Parts(parts.traits, words), f"[lines.pipeline] of line '{line.name}' ")
    if parts.has("structured"):
        sending(line)  # or no client could
    encoding, (_, decoder) = DENSE, ends_of(Dense(), line.spec)
    each: list[Undo] = []
    once: list[UndoSum] = []
    each_from_here = not line.pipeline.is_linear or parts.has_any("line limits", "reads each update")
    for link, values, last in stages(line.upload, line.name):
        client, server = ends_of(link, line.spec, values)
        if server.decode is not None:
            refuse_after_encoding(link, line.name, last)
            encoding, decoder = client.encoding or tag_of(link), server
        elif server.undo_sum is not None and not each_from_here:
            once.append(server.undo_sum)
        elif server.undo is not None:
            each.append(server.undo)
            each_from_here = True
        elif server.undo_sum is not None:
            raise InvalidSettings(
                f"the upload link '{name_of(link)}' of line '{line.name}' is undone once for the sum of the updates, "
                'which needs aggregate = { by = "mean" }, no clip, no limits of the line, no iterations by signs, and '
                "no earlier link that is undone for each update"
            )
    return Receiving(encoding, decoder, tuple(reversed(each)), tuple(reversed(once)))
