"""Upload links: what a client does to an update before it sends it, and what the server does with what arrives.

A line's ``upload`` is a list of links, which are published with it (`fedping.protocol.links`). A client goes through
them in their order; the server undoes them in reverse. A link has two ends, which are made of its settings and of the
model's spec:

- a :class:`ClientEnd` turns an update into another of the same length, or *encodes* it: makes bytes of it;
- a :class:`ServerEnd` reads those bytes, or undoes what was done to an update, to each or, where that is linear, once
  to their sum.

At most one link of a line encodes, and it is the last; a mask may stand before it, and is a part of the encoding then.
Its tag travels. Without one updates are dense. The mathematics of ours is in `fedping.protocol.encodings`; those of
others are extensions (`fedping.protocol.extensions`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import Extension, ExtensionFailed, extension_of
from fedping.protocol.link_ends import (
    ClientEnd,
    Decoded,
    Encode,
    Ends,
    ServerEnd,
    Sparse,
    Structured,
    Transform,
    Undo,
    UndoSum,
)
from fedping.protocol.links import (
    Dense,
    Eden,
    Float32,
    Levels,
    LowRank,
    Mask,
    OwnLink,
    PrivateVector,
    Rotation,
    SharedVector,
    Sign,
    Signs,
    Steps,
    Upload,
    UploadLink,
    name_of,
    refuse_after_encoding,
    stages,
    tag_of,
    traits_of_links,
)
from fedping.protocol.rules import Parts, check, traits_of
from fedping.protocol.update import DENSE, longest_payload

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from fedping.protocol.limits import UpdateLimits
    from fedping.protocol.pipeline import Pipeline
    from fedping.protocol.spec import ModelSpec
    from fedping.protocol.training import Training

_End = TypeVar("_End", ClientEnd, ServerEnd)


def ends_of(link: UploadLink, spec: ModelSpec, values: UploadLink | None = None) -> Ends:
    """Return the two ends of a link.

    Args:
        link: its settings.
        spec: of the model whose updates go through it.
        values: the link that encodes what a mask has kept, if one follows it.

    Raises:
        InvalidSettings: it is an extension that is not here, or has other code than the settings name; or one that
            cannot follow a mask.
        ExtensionFailed: it raises an error, or what it gives are no two ends.
    """
    if isinstance(link, Mask):
        return _mask(link, spec, values)
    return _ENDS[type(link)](link, spec)


@dataclass(frozen=True)
class Sending:
    """The client's ends of a line's links: what is done to each update in turn, and what encodes it (None: dense).

    ``structured`` is how clients train within what the encoding sends, for a line whose clients do; ``encode`` takes
    movements within it then.
    """

    transforms: tuple[Transform, ...]
    encoding: str = DENSE
    encode: Encode | None = None
    structured: Structured | None = None


class SendingLine(Protocol):
    """A line, or the public part of one, as far as its clients' ends depend on it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def spec(self) -> ModelSpec:
        """The model whose updates are sent."""

    @property
    def training(self) -> Training:
        """What its clients do."""

    @property
    def upload(self) -> Upload:
        """Its links."""


def sending(line: SendingLine) -> Sending:
    """Return the client's ends of a line's links.

    Raises:
        InvalidSettings, ExtensionFailed: as :func:`ends_of`, or a link that encodes is not the last, or clients cannot
            train within it as the line's training asks.
    """
    transforms: list[Transform] = []
    parts, where = (
        Parts(traits_of(line.training) | traits_of_links(line.upload)),
        f"[lines.training] of line '{line.name}' ",
    )
    within = parts.has("structured")
    for link, values, last in stages(line.upload, line.name):
        client, _ = ends_of(link, line.spec, values)
        if client.transform is not None:
            transforms.append(client.transform)
            continue
        refuse_after_encoding(link, line.name, last)
        encoding = client.encoding or tag_of(link)
        if not within:
            return Sending(tuple(transforms), encoding, client.encode)
        if client.structured is not None and not transforms:
            check("clients' end of low rank", parts, where)
            return Sending((), encoding, client.structured.encode, client.structured)
    check("clients' end", parts, where)
    return Sending(tuple(transforms))


@dataclass(frozen=True)
class Receiving:
    """The server's ends of a line's links.

    Attributes:
        encoding: the tag of every update of the line.
        decoder: reads the payloads.
        undone: what undoes the links of each update, in the order in which that is done.
        undone_once: what undoes links of the sum, in the order in which that is done.
    """

    encoding: str
    decoder: ServerEnd
    undone: tuple[Undo, ...]
    undone_once: tuple[UndoSum, ...]

    def decode(self, payloads: pa.BinaryArray, m: int) -> Decoded:
        """Return the updates of k payloads, the links undone of which this is done one by one.

        Raises:
            ExtensionFailed: an end raises, or returns what it may not.
        """
        assert self.decoder.decode is not None
        updates, ok = self.decoder.decode(payloads, m)
        for undo in self.undone:
            updates = undo(updates)
        return _finite(updates, ok) if self.undone else (updates, ok)

    def few(self, payloads: pa.BinaryArray, m: int) -> Sparse | None:
        """Return what was sent of updates that come without their zeros; None if they do not, or links are undone."""
        return self.decoder.sparse(payloads, m) if self.decoder.sparse and not self.undone else None

    def lengths(self, m: int) -> tuple[int, int]:
        """Return the least and the most bytes of a payload of m weights."""
        assert self.decoder.lengths is not None
        least, most = self.decoder.lengths(m)
        return least, min(most, longest_payload(m))

    def trouble(self, payload: bytes, m: int) -> str | None:
        """Return what is wrong with one payload of the right length; None if that cannot be seen, or nothing is."""
        return self.decoder.trouble(payload, m) if self.decoder.trouble else None

    def undo_sum(self, spec: ModelSpec, direction: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the direction of a round, shape (m,), with those links undone that are undone once.

        Raises:
            ExtensionFailed: an end raises, or returns what it may not.
        """
        for undo in self.undone_once:
            direction = undo(spec, direction)
        return direction


class ReceivingLine(SendingLine, Protocol):
    """A line as far as its server's ends depend on it."""

    @property
    def pipeline(self) -> Pipeline:
        """What the server does with its updates."""

    @property
    def limits(self) -> UpdateLimits | None:
        """How large its updates may be."""

    @property
    def parts(self) -> Parts:
        """What its parts are."""


def receiving(line: ReceivingLine) -> Receiving:
    """Return the server's ends of a line's links.

    A link is undone once, of the sum, if it can be, if the round takes the mean of updates as they are, if nothing
    looks at each of them, neither limits nor the length of iterations, and if no link before it has to be undone of
    each update, since that comes after it. Else it is undone of each update.

    Raises:
        InvalidSettings, ExtensionFailed: as :func:`ends_of`, or a link that encodes is not the last, or one cannot be
            undone where it is, or clients cannot train as asked, or the round cannot aggregate what is sent.
    """
    parts = line.parts
    inexact = [name_of(link) for link in line.upload if "inexact" in traits_of(link)]
    words = {"aggregate": str(line.pipeline.aggregate.__struct_config__.tag), "inexact": next(iter(inexact), "")}
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
                f"the upload link '{name_of(link)}' of line '{line.name}' is undone once, of the sum of the updates, "
                'which needs aggregate = { by = "mean" }, no clip, no limits of the line, no iterations by signs, and '
                "no link before it that is undone of each update"
            )
    return Receiving(encoding, decoder, tuple(reversed(each)), tuple(reversed(once)))


def _dense(link: Dense, spec: ModelSpec) -> Ends:
    from fedping.protocol.encodings import dense

    return ClientEnd(), ServerEnd(decode=dense.dense_updates, lengths=lambda m: (4 * m, 4 * m))


def _float32(link: Float32, spec: ModelSpec) -> Ends:
    from fedping.protocol.encodings import dense

    return dense.ends()


def _sign(link: Sign, spec: ModelSpec) -> Ends:
    from fedping.protocol.encodings import signs

    return signs.sign_ends(link)


def _signs(link: Signs, spec: ModelSpec) -> Ends:
    from fedping.protocol.encodings import signs

    return signs.ends(link)


def _rotation(link: Rotation, spec: ModelSpec) -> Ends:
    from fedping.protocol.encodings import rotation

    return rotation.ends(link)


def _levels(link: Levels, spec: ModelSpec) -> Ends:
    from fedping.protocol.encodings import levels

    return levels.ends(link)


def _steps(link: Steps, spec: ModelSpec) -> Ends:
    from fedping.protocol.encodings import steps

    return steps.ends(link)


def _low_rank(link: LowRank, spec: ModelSpec) -> Ends:
    from fedping.protocol.encodings import low_rank

    return low_rank.ends(link, spec)


def _eden(link: Eden, spec: ModelSpec) -> Ends:
    from fedping.protocol.encodings import eden

    return eden.ends(link)


def _private(link: PrivateVector, spec: ModelSpec) -> Ends:
    from fedping.protocol.encodings import private

    return private.vector_ends()


def _shared(link: SharedVector, spec: ModelSpec) -> Ends:
    from fedping.protocol.encodings import private

    return private.shared_ends(link)


def _mask(link: Mask, spec: ModelSpec, values: UploadLink | None) -> Ends:
    from fedping.protocol.encodings import mask

    return mask.ends(link) if values is None else mask.ends(link, ends_of(values, spec), tag_of(values))


def _own(link: OwnLink, spec: ModelSpec) -> Ends:
    """Return the ends that an extension's function returns, or those whose functions its instance has as methods."""
    extension = extension_of(link)
    made = extension.made(link.settings)
    client, server = made if isinstance(made, tuple) and len(made) == 2 else _named(made)
    _check_ends(extension, client, server)
    return _held(extension, client), _held(extension, server)


_OF_AN_EXTENSION: dict[type[ClientEnd] | type[ServerEnd], tuple[str, ...]] = {
    ClientEnd: ("transform", "encode"),
    ServerEnd: ("decode", "lengths", "trouble", "undo", "undo_sum"),
}
"""The functions of an end that an extension may have."""


def _named(made: object) -> Ends:
    """Return the ends of a class, whose functions are methods of their names."""
    client, server = (
        {name: getattr(made, name, None) for name in functions} for functions in _OF_AN_EXTENSION.values()
    )
    return ClientEnd(**client), ServerEnd(**server)


def _check_ends(extension: Extension, client: Any, server: Any) -> None:
    said = None
    if not isinstance(client, ClientEnd) or not isinstance(server, ServerEnd):
        said = "return a ClientEnd and a ServerEnd"
    elif (client.transform is None) == (client.encode is None):
        said = "the client's end has 'transform' or 'encode', not both"
    elif unknown := [name for end in (client, server) for name in _set(end) if name not in _OF_AN_EXTENSION[type(end)]]:
        said = f"'{unknown[0]}' is for links of fedping's own; leave it out"
    elif len({client.encode is None, server.decode is None, server.lengths is None}) > 1:
        said = "the client's end has 'encode' and the server's 'decode' and 'lengths', or none of them is there"
    if said:
        raise ExtensionFailed(f"{extension}, an extension, gives no two ends of a link: {said}")


def _set(end: ClientEnd | ServerEnd) -> list[str]:
    """Return what an end has."""
    return [field.name for field in fields(end) if getattr(end, field.name) is not None]


def _held(extension: Extension, end: _End) -> _End:
    """Return an end whose functions raise nothing but :class:`ExtensionFailed`, and return only what they may."""
    given = {name: getattr(end, name) for name in _OF_AN_EXTENSION[type(end)]}
    held: dict[str, Any] = {name: function and _holding(extension, name, function) for name, function in given.items()}
    return type(end)(**held)


def _holding(extension: Extension, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    judged = _JUDGED.get(name)

    def held(*given: Any) -> Any:
        with extension.guarded():
            found = function(*given)
            return judged(f"{extension}, an extension, returned from '{name}'", found, *given) if judged else found

    return held


def _numbers(said: str, found: Any, wanted: NDArray[Any]) -> Any:
    import numpy as np

    values = np.asarray(found)
    if values.shape != wanted.shape or values.dtype.kind not in "fiu":
        raise ExtensionFailed(
            f"{said} {values.dtype} of shape {list(values.shape)}; return numbers of shape {list(wanted.shape)}"
        )
    with np.errstate(over="ignore"):  # what is too large is infinite, and whoever asked looks for that
        return values.astype(wanted.dtype, copy=False)


def _finite_numbers(said: str, found: Any, wanted: NDArray[Any]) -> Any:
    import numpy as np

    values = _numbers(said, found, wanted)
    if not np.isfinite(values).all():
        raise ExtensionFailed(f"{said} numbers that are not finite")
    return values


def _payloads(said: str, found: Any, updates: NDArray[Any]) -> pa.BinaryArray:
    import pyarrow as pa

    if not isinstance(found, pa.BinaryArray | pa.LargeBinaryArray) or len(found) != len(updates) or found.null_count:
        raise ExtensionFailed(f"{said} no Arrow array of {len(updates):,} binary values; return one")
    return found


def _decoded(said: str, found: Any, payloads: pa.BinaryArray, m: int) -> Decoded:
    import numpy as np

    if not isinstance(found, tuple | list) or len(found) != 2:
        raise ExtensionFailed(f"{said} a {type(found).__name__}; return updates, and which payloads could be read")
    updates, there = found
    values, ok = np.asarray(updates), np.asarray(there)
    are_numbers = values.shape == (len(payloads), m) and values.dtype.kind in "fiu"
    if not are_numbers or ok.shape != (len(payloads),) or ok.dtype.kind != "b":
        raise ExtensionFailed(
            f"{said} {values.dtype} of shape {list(values.shape)}, and {ok.dtype} of shape {list(ok.shape)} which "
            f"could be read; return numbers of shape {[len(payloads), m]} and {len(payloads):,} booleans"
        )
    with np.errstate(over="ignore"):  # what is too large for float32 is infinite, and could not be read
        return _finite(values.astype(np.float32, copy=False), ok)


def _words(said: str, found: Any, payload: bytes, m: int) -> str | None:
    if found is not None and not isinstance(found, str):
        raise ExtensionFailed(f"{said} a {type(found).__name__}; return what is wrong in words, or None")
    return found


def _bytes(said: str, found: Any, m: int) -> tuple[int, int]:
    least: Any
    most: Any
    least, most = found if isinstance(found, tuple | list) and len(found) == 2 else (found, None)
    whole, longest = isinstance(least, Integral) and isinstance(most, Integral), longest_payload(m)
    if not (whole and 0 <= least <= min(most, longest)):
        raise InvalidSettings(
            f"{said} {found!r} for {m:,} weights; return the least and the most bytes of a payload, whole numbers, of "
            f"which the least is at most {longest:,}"
        )
    return int(least), int(most)


_JUDGED: dict[str, Callable[..., Any]] = {
    "transform": lambda said, found, updates, keys: _finite_numbers(said, found, updates),
    "encode": lambda said, found, updates, keys: _payloads(said, found, updates),
    "decode": _decoded,
    "lengths": _bytes,
    "trouble": _words,
    "undo": _numbers,
    "undo_sum": lambda said, found, spec, direction: _finite_numbers(said, found, direction),
}
"""By function of an end what holds its result to what it has to be: of (words for errors, result, what was given)."""


def _finite(updates: NDArray[np.float32], ok: NDArray[np.bool_]) -> Decoded:
    """Return updates with zeros for those that are not finite, which cannot be read."""
    import numpy as np

    finite = np.isfinite(updates).all(axis=1) & ok
    return (updates if finite.all() else np.where(finite[:, None], updates, np.float32(0))), finite


_ENDS: dict[type[Struct], Callable[[Any, ModelSpec], Ends]] = {
    Dense: _dense,
    Float32: _float32,
    Sign: _sign,
    Signs: _signs,
    Rotation: _rotation,
    Levels: _levels,
    Steps: _steps,
    Eden: _eden,
    LowRank: _low_rank,
    PrivateVector: _private,
    SharedVector: _shared,
    OwnLink: _own,
}
"""What makes the two ends of a link of which settings; each loads its encoding only then."""
