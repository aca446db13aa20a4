"""The weights of a model in a spec: single weights and blocks of weights, with names and start values.

Weight i of a block has its own random bits: SplitMix64 (Steele, Lea and Flood 2014) of the block's key and a counter.
Uniform numbers are their first 53 bits. Normal numbers are sums of twelve uniform numbers, less six. Their distribution
differs from the normal distribution by at most 0.003 and ends at six standard deviations. Both kinds need only integers
and exact products, whereas the logarithms and cosines of other methods differ in their last bit between processors.
"""

from __future__ import annotations

import hashlib
import math
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias, overload

import numpy as np
from msgspec import Meta, Struct

from fedping.protocol.draws import GOLDEN, mixed
from fedping.protocol.errors import InvalidSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray


MAX_WEIGHTS = 2_000_000
"""Maximum weights of a model, and maximum length of any update that ingest accepts."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z"
r"""Pattern of names. It ends with \Z, because in Python $ also matches before a final newline; JSON schemas have $."""

Name: TypeAlias = Annotated[
    str, Meta(pattern=NAME_PATTERN, max_length=64, description="letters, digits, '_', '.' and '-'")
]
LARGEST = 1e30
"""Largest absolute value of a number in a ping, a model or a setting."""

Finite: TypeAlias = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Positive: TypeAlias = Annotated[float, Meta(gt=0, le=LARGEST)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Kind: TypeAlias = Literal["cutoff", "bucket_weight", "bonus", "coefficient"]


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """The step size of one weight (thesis eq. 4), in units of that weight.

    Attributes:
        start: first step size.
        min: smallest step size.
        max: largest step size.
    """

    start: Positive
    min: Positive
    max: Positive

    def check(self, whose: str) -> None:
        """Raise :class:`InvalidSettings` unless the start is within the bounds."""
        if not self.min <= self.start <= self.max:
            raise InvalidSettings(
                f"{whose}: step.start {self.start:g} is not between step.min {self.min:g} and step.max {self.max:g}; "
                "widen the bounds"
            )


class Weight(Struct, frozen=True, forbid_unknown_fields=True):
    """A single weight.

    Attributes:
        name: name in model documents.
        start: value in version 0.
        step: step sizes.
        kind: meaning and unit of the number, for display; no arithmetic depends on it.
        integer: whether it is published as a whole number, rounded half up; the optimizer's state keeps it as a double.
    """

    digest_name: ClassVar[str] = "Weight"

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    start: Finite
    step: Step
    kind: Kind = "coefficient"
    integer: bool = False


class Zeros(Struct, frozen=True, forbid_unknown_fields=True, tag_field="values", tag="zeros"):
    """Every weight of a block starts at 0."""


class Uniform(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="values", tag="uniform"):
    """The weights of a block start at numbers drawn evenly from [-scale, scale) (`fedping.protocol.weights`)."""

    seed: Seed
    scale: Positive


class Normal(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="values", tag="normal"):
    """The weights of a block start at numbers drawn normally, with mean 0 and standard deviation ``scale``."""

    seed: Seed
    scale: Positive


class Numbers(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="values", tag="numbers"):
    """The weights of a block start at these numbers, row by row; a single number is used for all weights."""

    numbers: Annotated[tuple[Finite, ...], Meta(min_length=1, max_length=MAX_WEIGHTS)]


class SingleNumbers(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="values", tag="float32"):
    """The weights of a block start at these single-precision numbers, row by row, as little-endian bytes in base64.

    This form is for arbitrary arrays, such as the weights of your own network.
    """

    base64: Annotated[str, Meta(min_length=8, max_length=4 * -(-4 * MAX_WEIGHTS // 3))]

    @classmethod
    def of(cls, values: NDArray[np.floating]) -> Zeros | Numbers | SingleNumbers:
        """Return start settings for these values, rounded to single precision; in the short form if all are equal."""
        single = np.asarray(values, "<f4").ravel()
        if (single == single[0]).all():
            return Zeros() if single[0] == 0 else Numbers(numbers=(float(single[0]),))
        return cls(base64=b64encode(single.tobytes()).decode())

    def values(self, block: str, count: int) -> NDArray[np.float64]:
        """Return the values, shape (count,).

        Raises:
            InvalidSettings: the text does not contain exactly ``count`` finite numbers.
        """
        try:
            raw = b64decode(self.base64, validate=True)
        except ValueError:
            raw = b""
        if len(raw) != 4 * count:
            raise InvalidSettings(
                f"the start of block '{block}' is not {count:,} single-precision numbers in base64; write the spec "
                "again"
            )
        found = np.frombuffer(raw, "<f4").astype(np.float64)
        if not (np.abs(found) <= LARGEST).all():
            raise InvalidSettings(f"the start of block '{block}' has a number that is not finite; write the spec again")
        return found


Start: TypeAlias = Zeros | Uniform | Normal | Numbers | SingleNumbers


class Block(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An array of weights with the same settings, such as a network's layer; row by row, the last index fastest.

    Its weights are named by their indices from 0, as ``W1[3,5]``.

    Attributes:
        name: the block's name.
        shape: sizes of the array.
        start: values in version 0.
        step: step sizes of each weight.
        kind: meaning and unit of each weight; see :class:`Weight`.
        integer: whether each weight is published as a whole number; see :class:`Weight`.
    """

    digest_name: ClassVar[str] = "Block"

    name: Name
    shape: Annotated[tuple[Annotated[int, Meta(ge=1, le=MAX_WEIGHTS)], ...], Meta(min_length=1, max_length=8)]
    start: Start = Zeros()
    step: Step
    kind: Kind = "coefficient"
    integer: bool = False


class WeightNames(Sequence[str]):
    """The names of all weights in order: first the single weights, then the weights of each block."""

    def __init__(self, single: tuple[str, ...], blocks: tuple[Block, ...]) -> None:
        self._single = single
        self._where = {name: position for position, name in enumerate(single)}
        self._blocks = blocks
        self._numbers: dict[str, list[int]] = {}  # of the blocks of a name
        for number, block in enumerate(blocks):
            self._numbers.setdefault(block.name, []).append(number)
        self._ends = list(accumulate((math.prod(block.shape) for block in blocks), initial=len(single)))

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, where: int) -> str: ...
    @overload
    def __getitem__(self, where: slice) -> tuple[str, ...]: ...
    def __getitem__(self, where: int | slice) -> str | tuple[str, ...]:
        """Return the name at a position, or the names of a slice."""
        every = range(len(self))
        return tuple(map(self._at, every[where])) if isinstance(where, slice) else self._at(every[where])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._position(name) is not None

    def index(self, name: str, start: int = 0, stop: int | None = None) -> int:
        """Return the position of a name; raise :class:`ValueError` if it is unknown."""
        found = self._position(name)
        if found is None or found not in range(len(self))[start:stop]:
            raise ValueError(f"no weight is named '{name}'")
        return found

    def places(self, name: str) -> range:
        """Return the position of a weight, or the positions of a block, by name; empty for an unknown name."""
        if name in self._numbers:
            return self.block_places(self._numbers[name][0])
        at = self._position(name)
        return range(0) if at is None else range(at, at + 1)

    def block_places(self, number: int) -> range:
        """Return the positions of a block's weights, by the block's number."""
        return range(self._ends[number], self._ends[number + 1])

    def layer_places(self, layer: str) -> list[int]:
        """Return the positions of a layer's weights: all blocks whose names begin with the layer's name and a dot."""
        found: list[int] = []
        for number, block in enumerate(self._blocks):
            if block.name.startswith(layer + "."):
                found += self.block_places(number)
        return found

    @property
    def block_names(self) -> tuple[str, ...]:
        """The names of the blocks."""
        return tuple(block.name for block in self._blocks)

    def _at(self, position: int) -> str:
        if position < len(self._single):
            return self._single[position]
        number = bisect_right(self._ends, position) - 1
        block, rest = self._blocks[number], position - self._ends[number]
        indices: list[int] = []
        for size in reversed(block.shape):
            rest, index = divmod(rest, size)
            indices.append(index)
        return f"{block.name}[{','.join(map(str, reversed(indices)))}]"

    def _position(self, name: str) -> int | None:
        if name in self._where:
            return self._where[name]
        prefix, _, inside = name.removesuffix("]").partition("[")
        texts = inside.split(",")
        for number in self._numbers.get(prefix, ()):
            block, first = self._blocks[number], self._ends[number]
            if len(texts) == len(block.shape) and all(map(_is_index, texts)):
                position = 0
                for text, size in zip(texts, block.shape, strict=True):
                    if int(text) >= size:
                        return None
                    position = position * size + int(text)
                return first + position if self._at(first + position) == name else None
        return None


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 8


_HALF = np.uint64(32)
_DRAWS_A_WEIGHT = 6


def start_values(block: Block) -> NDArray[np.float64]:
    """Return the start values of a block's weights, row by row, shape (weights,)."""
    count = math.prod(block.shape)
    match block.start:
        case Zeros():
            return np.zeros(count)
        case Uniform(seed=seed, scale=scale):
            return scale * (2.0 * _fractions(_bits(_key(block, seed), 0, count)) - 1.0)
        case Normal(seed=seed, scale=scale):
            return scale * _bell(_key(block, seed), count)
        case Numbers(numbers=numbers):
            return np.full(count, numbers[0]) if len(numbers) == 1 else np.array(numbers, dtype=np.float64)
        case SingleNumbers():
            return block.start.values(block.name, count)


def _key(block: Block, seed: int) -> np.uint64:
    """Return the key of a block: the first 8 bytes of SHA-256(seed, newline, name) as a little-endian number."""
    digest = hashlib.sha256(f"{seed}\n{block.name}".encode()).digest()
    return np.uint64(int.from_bytes(digest[:8], "little"))


def _bits(key: np.uint64, draw: int, count: int) -> NDArray[np.uint64]:
    """Return 64 random bits for each weight; ``draw`` distinguishes several draws of a weight."""
    counter = np.arange(count, dtype=np.uint64) * np.uint64(_DRAWS_A_WEIGHT) + np.uint64(draw + 1)
    return mixed(key + counter * GOLDEN)


def _fractions(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _bell(key: np.uint64, count: int) -> NDArray[np.float64]:
    """Return sums of twelve 32-bit fractions, less six; the sums are exact in any order."""
    total = np.zeros(count, dtype=np.uint64)
    for draw in range(_DRAWS_A_WEIGHT):
        bits = _bits(key, draw, count)
        total += (bits >> _HALF) + (bits & np.uint64(2**32 - 1))
    return total.astype(np.float64) * 2.0**-32 - 6.0
