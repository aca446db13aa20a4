"""Settings of randomised response on the targets that clients learn from."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.errors import InvalidSettings

Epsilon: TypeAlias = Annotated[float, Meta(gt=0, le=50)]


class Response(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Randomised response in two stages: clients learn from randomised targets instead of the true ones.

    It protects an example's target, such as a rating or a class. It does not protect the example's features, such as
    which film is rated, nor the existence of the example.

    Attributes:
        permanent: ε of the first stage, drawn once for each example; several, and each client chooses one at random.
        instantaneous: ε of the second stage, drawn again in each round; no such stage if None.
        values: the values that a target may have, if it is a number, such as the ten ratings of a film.

    Raises:
        InvalidSettings: ``permanent`` is empty, or ``values`` are not two or more different ones.
    """

    permanent: Epsilon | Annotated[tuple[Epsilon, ...], Meta(max_length=64)]
    instantaneous: Epsilon | None = None
    values: Annotated[tuple[float, ...], Meta(max_length=10_000)] | None = None

    def __post_init__(self) -> None:
        if not self.levels:
            raise InvalidSettings("[randomised_response] permanent: the list is empty. Give one epsilon, or several")
        if self.values is not None and not len(set(self.values)) == len(self.values) >= 2:
            raise InvalidSettings("[randomised_response] values: give two or more different values")

    @property
    def levels(self) -> tuple[float, ...]:
        """The first stage's ε, one for each level that clients choose from."""
        return self.permanent if isinstance(self.permanent, tuple) else (self.permanent,)
