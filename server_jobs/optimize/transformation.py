"""The interface of links, which consist of two pure functions, and the composition of links to a chain.

Sign convention (`fedping.protocol.ping`): the input of a chain is a direction of *descent*, its output is a step, and
the server *adds* the step to the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedping.model_store.version import ChainState, LinkState
from fedping.protocol.errors import FedpingError, as_raised
from fedping.protocol.extensions import ExtensionFailed
from fedping.protocol.spec import ModelSpec

Vector: TypeAlias = NDArray[np.float64]
"""One double per weight, shape (m,), in wire order."""

Arrays: TypeAlias = dict[str, Vector]
"""The state of one link: named vectors of any length."""

States: TypeAlias = dict[str, Arrays]
"""The state of a chain: each link's state by its name, in order; empty for a link without state."""

S = TypeVar("S")


class Display(NamedTuple):
    """Values of a link to display, from its state in a version.

    ``words`` describes them. ``values(state)`` returns one number per weight, shape (m,), or one for all weights,
    shape (1,); NaN if the state doesn't contain it, as before the first step.
    """

    words: str
    values: Callable[[Arrays], Vector]


class Transformation(NamedTuple, Generic[S]):
    """A link, or a chain of them.

    ``init(spec)`` returns the state of version 0. ``update(step, state, weights)`` returns the transformed step and
    the next state; the step will be added to ``weights``. Neither function changes its arguments. ``displays`` are
    values for pages, by a short name; if there are none, pages show the vectors of the state.
    """

    init: Callable[[ModelSpec], S]
    update: Callable[[Vector, S, Vector], tuple[Vector, S]]
    displays: Mapping[str, Display] = {}


LinkMaker: TypeAlias = Callable[[Any, ModelSpec], Transformation[Arrays]]
"""Function that creates a link from its settings and the model spec."""


def chain(links: Mapping[str, Transformation[Arrays]]) -> Transformation[States]:
    """Return a transformation that applies named links in order; its state has the links' states by name."""

    def init(spec: ModelSpec) -> States:
        return {name: link.init(spec) for name, link in links.items()}

    def update(step: Vector, state: States, weights: Vector) -> tuple[Vector, States]:
        after = {}
        for name, link in links.items():
            step, after[name] = link.update(step, state[name], weights)
        return step, after

    return Transformation(init, update)


def stateless(function: Callable[[Vector, Vector], Vector]) -> Transformation[Arrays]:
    """Return a link without state from ``function(step, weights) -> step``."""

    def update(step: Vector, state: Arrays, weights: Vector) -> tuple[Vector, Arrays]:
        return function(step, weights), state

    return Transformation(lambda _: {}, update)


class BrokenLink(FedpingError):
    """A part of a line, such as its aggregation or optimizer, raised an error or returned something unusable.

    No version was published. The exit code is 3, as for a version that clients couldn't read: the same command would
    fail again.
    """

    exit_code = 3


def link_name(settings: Any) -> str:
    """Return a link's name from its settings: the settings' tag, or the name of an extension."""
    return getattr(settings, "name", None) or str(type(settings).__struct_config__.tag)


@contextmanager
def blamed(link: str) -> Iterator[None]:
    """Turn errors raised in the context into a :class:`BrokenLink` that names the link.

    Errors that already have a sentence are unchanged, as is a lack of memory, which isn't the link's fault.
    """
    try:
        yield
    except (FedpingError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise blame(link, error) from error


def blame(link: str, error: BaseException) -> BrokenLink:
    """Return an error that names the link, to be raised instead of the link's error."""
    return BrokenLink(f"{link} raised {as_raised(error)}")


@contextmanager
def broken_if_failed() -> Iterator[None]:
    """Treat failures of an extension in the context as a broken link."""
    try:
        yield
    except ExtensionFailed as error:
        raise BrokenLink(str(error)) from error


def guarded(link: Transformation[Arrays], name: str) -> Transformation[Arrays]:
    """Return a link that raises a :class:`BrokenLink` with its name instead of other errors.

    It also fails if it turns a finite step into a step that isn't finite.
    """

    def init(spec: ModelSpec) -> Arrays:
        with blamed(name):
            return as_vectors(link.init(spec))

    def update(step: Vector, state: Arrays, weights: Vector) -> tuple[Vector, Arrays]:
        with blamed(name):
            made, after = link.update(step, state, weights)
            made, after = np.asarray(made, dtype=np.float64), as_vectors(after)
        had, has = ({own: vector.shape for own, vector in each.items()} for each in (as_vectors(state), after))
        if had != has:
            raise BrokenLink(
                f"{name} returned a state with {_shapes(has)} from update, but init returned {_shapes(had)}; return "
                "the same vectors"
            )
        if made.shape != weights.shape:
            raise BrokenLink(f"{name} returned a step of shape {made.shape}, not {weights.shape}")
        if not np.isfinite(made).all() and np.isfinite(step).all():
            odd = np.flatnonzero(~np.isfinite(made))[0]
            raise BrokenLink(
                f"{name} returned a step that is {made[odd]} at position {odd}, from an input of {step[odd]:g}"
            )
        return made, after

    return link._replace(init=init, update=update)


def _shapes(state: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{length:,} numbers '{name}'" for name, (length,) in sorted(state.items())) or "no numbers"


def as_vectors(state: Arrays) -> Arrays:
    """Return a link's state as vectors of doubles; raise :class:`ValueError` if that is impossible."""
    vectors = {name: np.asarray(vector, dtype=np.float64) for name, vector in state.items()}
    for name, vector in vectors.items():
        if vector.ndim != 1:
            raise ValueError(f"its state '{name}' has shape {vector.shape}; return a single vector")
    return vectors


def by_link(document: ChainState, first: States) -> dict[str, LinkState]:
    """Return the states of a chain's links, by link name, from a document of any format.

    ``first`` is the chain's state in version 0, which names the links.
    """
    if isinstance(document, dict):
        return document
    names = [*first, *(f"link {number + 1}" for number in range(len(first), len(document)))]
    return dict(zip(names, document, strict=False))


def state_to_document(state: States) -> dict[str, LinkState]:
    """Return a chain's state in the form stored in versions; the exact inverse of :func:`state_from_document`."""
    return {link: {name: tuple(vector.tolist()) for name, vector in own.items()} for link, own in state.items() if own}


def state_from_document(document: ChainState, first: States) -> States:
    """Return a chain's state from a version, of any format.

    Args:
        document: the version's state.
        first: the chain's state in version 0, which determines its links.

    Raises:
        FedpingError: the links with a state in the document don't match the chain.
    """
    named = by_link(document, first)
    kept, wanted = ({link: set(own) for link, own in each.items() if own} for each in (named, first))
    if kept != wanted:
        raise FedpingError(
            f"a version has the optimizer state of {', '.join(kept) or 'no link'}, but its line uses "
            f"{', '.join(wanted) or 'no link'}; the version belongs to another line, or the study was changed: "
            "restore them from a copy"
        )
    return {
        link: {name: np.array(vector, dtype=np.float64) for name, vector in named.get(link, {}).items()}
        for link in first
    }


def in_order(document: ChainState, first: States) -> tuple[LinkState, ...]:
    """Return a state in format 1: each link's state, in the order of the chain."""
    return document if isinstance(document, tuple) else tuple(document.get(link, {}) for link in first)
