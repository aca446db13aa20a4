"""The settings of upload links: what a client does to an update before it sends it, as a study's line says it.

They are published with the line. What they do is in `fedping.protocol.upload`, the mathematics of each encoding in
`fedping.protocol.encodings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct, json
from msgspec.structs import fields

from fedping.protocol.errors import InvalidSettings, UnfitTable
from fedping.protocol.extensions import OWN, Own
from fedping.protocol.rules import Traits, traits_of, traits_where
from fedping.protocol.sharing.keys import Seal
from fedping.protocol.spec import Positive
from fedping.protocol.update import DENSE


class Dense(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag=DENSE):
    """Encode an update as float32 numbers, 4 bytes a weight, as JSON a plain array. It is what no link means, too."""

    traits: ClassVar[Traits] = frozenset({"encodes"})


class Float32(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="float32"):
    """Encode an update as the bytes of its float32 numbers: as exact as `dense`, and quicker to read than JSON."""

    traits: ClassVar[Traits] = frozenset({"encodes"})


class Sign(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="sign"):
    """Encode the signs of an update alone, in bits. For older studies: `signs` takes fewer, and means the same.

    ``zero`` is how a zero travels: ``up`` as a positive number, so that a weight is one bit; ``abstain`` as a zero,
    with two bits a weight.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "sends bits", "equal lengths", "inexact"})

    zero: Literal["abstain", "up"] = "abstain"


class Signs(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="signs"):
    """Encode the signs of an update alone (thesis 4.4).

    ``zero`` is how a zero travels: ``abstain`` as a zero, five weights a byte; ``up`` as a positive number, eight.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "sends bits", "inexact"})

    zero: Literal["abstain", "up"] = "abstain"

    @property
    def encoding(self) -> str:
        """The tag that travels."""
        return "signs" if self.zero == "abstain" else "signs-up"


class Mask(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="mask"):
    """Send a random share of the weights, which follow from a seed that is sent along (thesis 4.2.1).

    ``keep`` is that share. ``draw`` is how weights are drawn: ``blocks`` takes one of each of k blocks of neighbours,
    k = max(1, round(keep m)); ``independent`` tosses a coin for each, as in the thesis. A link that encodes may follow,
    and encodes what was kept; without one they are float32 numbers.
    """

    keep: Annotated[float, Meta(gt=0, le=1)]
    draw: Literal["blocks", "independent"] = "blocks"

    @property
    def traits(self) -> Traits:
        """What it is (`fedping.protocol.rules`)."""
        coins = self.draw == "independent"
        return traits_where(
            {"encodes": True, "inexact": True, "leaves zeros": True, "within": True, "other draws": coins}
        )

    @property
    def encoding(self) -> str:
        """The tag that travels, where no other link follows."""
        return "mask" if self.draw == "blocks" else "mask-independent"


class Rotation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="rotation"):
    """Rotate an update at random, by the same rotation for every client, so that no weight is much larger than others.

    The server rotates back once, the mean of all updates, where it takes one; else each of them. ``seed`` is what the
    rotation follows from.
    """

    traits: ClassVar[Traits] = frozenset({"inexact"})

    seed: Annotated[int, Meta(ge=0, lt=2**53)] = 0


class Levels(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="levels"):
    """Round each number at random to one of 2^bits levels between the least and the greatest of its block (4.2.2).

    ``rotate`` has each client rotate its update before, by a rotation of its own (Suresh et al. 2017).
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "inexact"})

    bits: Literal[1, 2, 4, 8]
    rotate: bool = False

    @property
    def encoding(self) -> str:
        """The tag that travels."""
        return f"levels-r-{self.bits}" if self.rotate else f"levels-{self.bits}"


class Steps(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="steps"):
    """Round each number at random to a multiple of a step, so that zeros stay zeros, and compress that.

    The step is ``size`` times the root of the update's mean square, or ``step`` for everybody; one of them is given. It
    is never less than the largest number over 127.

    Raises:
        InvalidSettings: both or none are given.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "inexact"})

    size: Positive | None = None
    step: Positive | None = None

    def __post_init__(self) -> None:
        if (self.size is None) == (self.step is None):
            raise UnfitTable(
                "the upload link 'steps' needs 'size', in roots of an update's mean square, or 'step', the same for "
                "everybody; give one of them, such as size = 2.0"
            )


class Eden(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="eden"):
    """Rotate twice at random and round to the best levels for normal numbers (EDEN, Vargaftik et al. 2022).

    The least error at 1 to 4 bits a weight where numbers are alike, at more work. Its mean has a bias, at 1 bit of less
    than 0.5 % of the norm from 22 weights of similar size on, and more of fewer or where a few stand out.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "inexact", "other draws"})

    bits: Annotated[int, Meta(ge=1, le=4)] = 1

    @property
    def encoding(self) -> str:
        """The tag that travels."""
        return f"eden-{self.bits}"


class LowRank(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="low-rank"):
    """Send of each matrix its product with a random one of ``rank`` columns, which follows from a seed (thesis 4.3.2).

    ``fixed`` is the side of the random factor: that of a layer's ``outputs``, as in the thesis, or ``inputs``. Weights
    that are no matrix, and matrices for which it saves nothing, travel as they are.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "inexact", "within", "low rank"})

    rank: Annotated[int, Meta(ge=1, le=65_535)]
    fixed: Literal["outputs", "inputs"] = "outputs"

    @property
    def encoding(self) -> str:
        """The tag that travels."""
        return f"low-rank-{self.fixed}"


class PrivateVector(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="private"):
    """Encode a private line's vector (`fedping.protocol.privacy`), m + 3 whole numbers, as int32.

    It is the one link of such a line.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "private vector"})


class SharedVector(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="shared"):
    """Encode a private line's vector as two shares (`fedping.protocol.sharing.shares`), one of them sealed.

    It is the one link of a private line with ``shared``, whose settings these are. With ``proofs``, ``metric`` is the
    largest number of a metric, on which it depends how many bits there are.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "private vector"})

    seal: Seal = "x25519"
    proofs: bool = False
    metric: Annotated[int, Meta(ge=0, le=2**24)] = 0


class OwnLink(Own, frozen=True, tag_field="link", tag=OWN):
    """An upload link of somebody's own package (:mod:`fedping.protocol.extensions`)."""

    kind = "upload_link"


UploadLink: TypeAlias = (
    Dense
    | Float32
    | Sign
    | Signs
    | Mask
    | Rotation
    | Levels
    | Steps
    | Eden
    | LowRank
    | PrivateVector
    | SharedVector
    | OwnLink
)
Upload: TypeAlias = tuple[UploadLink, ...]


def name_of(link: UploadLink) -> str:
    """Return the name under which a link is asked for."""
    return link.name if isinstance(link, OwnLink) else str(link.__struct_config__.tag)


def settings_of(link: UploadLink) -> Iterator[str]:
    """Yield what a link's table says besides which link it is, such as "keep = 0.1"; not what is the default."""
    if isinstance(link, OwnLink):
        given = link.settings.items()
    else:
        told = ((field, getattr(link, field.name)) for field in fields(link))
        given = {field.encode_name: value for field, value in told if value != field.default}.items()
    for name, value in given:
        if value is not None:
            yield f"{name} = {_as_toml(value)}"


def _as_toml(value: Any) -> str:
    """Return a value of JSON as TOML has it in one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.encode(key).decode()} = {_as_toml(each)}' for key, each in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_as_toml, value))}]"
    return json.encode(value).decode()


def in_words(upload: Upload) -> str:
    """Return links for people, such as "mask keep = 0.1, steps size = 2.0"."""
    return ", ".join(" ".join([name_of(link), *settings_of(link)]) for link in upload) or "none"


def tag_of(link: UploadLink) -> str:
    """Return the tag that travels with what a link has encoded."""
    return str(getattr(link, "encoding", name_of(link)))


def check_links(upload: Upload, line: str) -> None:
    """Refuse what no list of links can be, whoever has registered what.

    Raises:
        InvalidSettings: a link of ours that encodes is not the last.
    """
    for link, _, last in stages(upload, line):
        if "encodes" in traits_of(link):
            refuse_after_encoding(link, line, last)


def stages(upload: Upload, line: str) -> Iterator[tuple[UploadLink, UploadLink | None, bool]]:
    """Yield a line's links, what encodes what a mask keeps together with the mask; and whether it is the last.

    Raises:
        InvalidSettings: something follows a mask that is no encoding of ours, or what encodes.
    """
    for place, link in enumerate(upload, 1):
        if isinstance(link, Mask):
            following = upload[place:]
            _refuse_after_mask(link, following, line)
            yield link, following[0] if following else None, True
            return
        yield link, None, place == len(upload)


AFTER_A_MASK = (Float32, Levels, Steps)
"""Links that may encode what a mask has kept."""


def _refuse_after_mask(mask: Mask, following: Upload, line: str) -> None:
    if not following:
        return
    first = following[0]
    where = f"'upload' of line '{line}' has '{name_of(first)}' after 'mask'"
    rotates = isinstance(first, Levels) and first.rotate
    if len(following) > 1 or not isinstance(first, AFTER_A_MASK) or rotates:
        raise InvalidSettings(
            f"{where}, which keeps a few numbers; one link may follow, that encodes them: 'float32', 'levels' without "
            "rotate, or 'steps'"
        )
    if mask.draw == "independent":
        raise InvalidSettings(
            f'{where} with draw = "independent", which keeps another number of weights each time and sends them as '
            'float32; leave one of the two out, or set draw = "blocks"'
        )


def refuse_after_encoding(link: UploadLink, line: str, last: bool) -> None:
    """Raise :class:`InvalidSettings` if a link that encodes is not the last one of a line."""
    if not last:
        raise InvalidSettings(
            f"'upload' of line '{line}' has the link '{name_of(link)}' before its last one, but it encodes updates, "
            "after which nothing can be done to them; put it last"
        )


def traits_of_links(upload: Upload) -> Traits:
    """Return what the links of a line are, and whether the one that encodes is alone."""
    alone = len(upload) == 1 or isinstance(next(iter(upload), None), Mask)
    return traits_where({"alone": alone}).union(*map(traits_of, upload))
