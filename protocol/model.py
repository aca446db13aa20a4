"""The model document: the static file that a client fetches."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from protocol.spec import Finite, Name


class ModelDocument(Struct, frozen=True, kw_only=True):
    """One published version of a model line.

    ``model`` and ``iteration`` are the two keys of 2018 and keep their meaning, so that a client of that time can read
    the document; unknown keys are ignored for the same reason.
    """

    model: Annotated[tuple[Finite, ...], Meta(description="the weights, in the order of `names`")]
    iteration: Annotated[int, Meta(ge=0, description="the version's number; 0 is the start model")]
    study: Name
    line: Name
    names: Annotated[
        tuple[str, ...],
        Meta(description="the weights' names, in the order of the wire; none if the spec has them in blocks"),
    ]
    spec_digest: Annotated[str, Meta(description="SHA-256 of the model spec")]
    created: Annotated[str, Meta(description="when it was published, ISO 8601 in UTC")]
    parent: Annotated[int | None, Meta(description="the version that it was computed from; null for version 0")]
