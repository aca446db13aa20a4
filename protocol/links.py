"""The list of all upload links: the steps of a line's ``upload``, which a client applies to an update to send it.

A link consists of its settings, which are published with the line, and two ends (`fedping.protocol.link_ends`), which
`fedping.protocol.upload` puts together. Each link is a file of `fedping.protocol.encodings` and is registered only
here, in :data:`UploadLink`. A study's schema, the names that extensions may not have, the documentation's tests and the
tests of encodings follow from that list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from msgspec import json
from msgspec.structs import fields

from fedping.protocol.encodings.dense import Dense, Float32
from fedping.protocol.encodings.eden import Eden
from fedping.protocol.encodings.error_feedback import ErrorFeedback
from fedping.protocol.encodings.levels import Levels
from fedping.protocol.encodings.low_rank import LowRank
from fedping.protocol.encodings.mask import Mask
from fedping.protocol.encodings.own import OwnLink
from fedping.protocol.encodings.private import PrivateVector, SharedVector
from fedping.protocol.encodings.rotation import Rotation
from fedping.protocol.encodings.scaled_signs import ScaledSigns
from fedping.protocol.encodings.signs import Sign, Signs
from fedping.protocol.encodings.steps import Steps
from fedping.protocol.encodings.top_k import TopK
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.rules import Traits, traits_of, traits_where

__all__ = [
    "Dense",
    "Eden",
    "ErrorFeedback",
    "Float32",
    "Levels",
    "LowRank",
    "Mask",
    "OwnLink",
    "PrivateVector",
    "Rotation",
    "ScaledSigns",
    "SharedVector",
    "Sign",
    "Signs",
    "Steps",
    "TopK",
    "Upload",
    "UploadLink",
    "check_links",
    "in_words",
    "name_of",
    "refuse_after_encoding",
    "settings_of",
    "stages",
    "tag_of",
    "traits_of_links",
]

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
    | TopK
    | ScaledSigns
    | ErrorFeedback
    | PrivateVector
    | SharedVector
    | OwnLink
)
Upload: TypeAlias = tuple[UploadLink, ...]


def name_of(link: UploadLink) -> str:
    """Return a link's registered name."""
    return link.name if isinstance(link, OwnLink) else str(link.__struct_config__.tag)


def settings_of(link: UploadLink) -> Iterator[str]:
    """Yield the settings of a link that differ from their defaults, such as "keep = 0.1"."""
    if isinstance(link, OwnLink):
        settings = link.settings
    else:
        values = ((field, getattr(link, field.name)) for field in fields(link))
        settings = {field.encode_name: value for field, value in values if value != field.default}
    for name, value in settings.items():
        if value is not None:
            yield f"{name} = {_as_toml(value)}"


def _as_toml(value: Any) -> str:
    """Return a JSON value as TOML on one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.encode(key).decode()} = {_as_toml(each)}' for key, each in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_as_toml, value))}]"
    return json.encode(value).decode()


def in_words(upload: Upload) -> str:
    """Return a readable description of links, such as "mask keep = 0.1, steps size = 2.0"."""
    return ", ".join(" ".join([name_of(link), *settings_of(link)]) for link in upload) or "none"


def tag_of(link: UploadLink) -> str:
    """Return the tag that is sent with a link's payloads."""
    return str(getattr(link, "encoding", name_of(link)))


def check_links(upload: Upload, line: str) -> None:
    """Check the order of a line's links, as far as that doesn't depend on extensions.

    Raises:
        InvalidSettings: a built-in link that encodes is not the last, or error feedback is not the first.
    """
    for place, link in enumerate(upload):
        if isinstance(link, ErrorFeedback) and (place or len(upload) == 1):
            raise InvalidSettings(
                f"'upload' of line '{line}' has 'error-feedback' {'after' if place else 'without'} a link that omits "
                "part of an update. Put it first, followed by such a link: "
                'upload = [{ link = "error-feedback" }, { link = "top-k", keep = 0.01 }]'
            )
    for link, _, last in stages(upload, line):
        if "encodes" in traits_of(link):
            refuse_after_encoding(link, line, last)


def stages(upload: Upload, line: str) -> Iterator[tuple[UploadLink, UploadLink | None, bool]]:
    """Yield each link of a line, for a mask also the link after it (else None), and whether this is the last.

    Raises:
        InvalidSettings: a mask is followed by a link that doesn't support this.
    """
    for place, link in enumerate(upload, 1):
        if isinstance(link, Mask):
            following = upload[place:]
            _refuse_after_mask(link, following, line)
            yield link, following[0] if following else None, True
            return
        yield link, None, place == len(upload)


def _refuse_after_mask(mask: Mask, following: Upload, line: str) -> None:
    if not following:
        return
    first = following[0]
    where = f"'upload' of line '{line}' has '{name_of(first)}' after 'mask'"
    if len(following) > 1 or "follows a mask" not in traits_of(first):
        raise InvalidSettings(
            f"{where}, which keeps a few numbers; one link may follow, that encodes them: 'float32', 'levels' without "
            "rotate, or 'steps'"
        )
    if mask.draw == "independent":
        raise InvalidSettings(
            f'{where} with draw = "independent", which keeps a different number of weights each time and sends them '
            'as float32; remove one of these two links, or set draw = "blocks"'
        )


def refuse_after_encoding(link: UploadLink, line: str, last: bool) -> None:
    """Raise :class:`InvalidSettings` if a link that encodes is not the last one of a line."""
    if not last:
        raise InvalidSettings(
            f"'upload' of line '{line}' has the link '{name_of(link)}' before its last one, but it encodes updates, "
            "so it must be last"
        )


def traits_of_links(upload: Upload) -> Traits:
    """Return the traits of a line's links; one of them shows whether the encoding link is the only link."""
    alone = len(upload) == 1 or isinstance(next(iter(upload), None), Mask)
    return traits_where({"alone": alone}).union(*map(traits_of, upload))
