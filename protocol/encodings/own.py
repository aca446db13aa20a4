"""Upload links from users' packages, with ends whose errors name the extension and whose results are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import OWN, Extension, ExtensionFailed, Own, extension_of
from fedping.protocol.link_ends import ClientEnd, Decoded, Ends, ServerEnd, without_infinite
from fedping.protocol.update import longest_payload

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from fedping.protocol.spec import ModelSpec

_End = TypeVar("_End", ClientEnd, ServerEnd)


class OwnLink(Own, frozen=True, tag_field="link", tag=OWN):
    """An upload link from another package (:mod:`fedping.protocol.extensions`)."""

    kind = "upload_link"

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends: the result of the extension's function, or the methods of its instance.

        Raises:
            InvalidSettings: the extension is not installed, or its code differs from the settings' digest.
            ExtensionFailed: it raises an error, or doesn't return two ends.
        """
        extension = extension_of(self)
        result = extension.made(self.settings)
        client, server = result if isinstance(result, tuple) and len(result) == 2 else _ends_of_methods(result)
        _check_ends(extension, client, server)
        return _guarded_end(extension, client), _guarded_end(extension, server)


_OF_AN_EXTENSION: dict[type[ClientEnd] | type[ServerEnd], tuple[str, ...]] = {
    ClientEnd: ("transform", "encode", "init_state"),
    ServerEnd: ("decode", "lengths", "trouble", "undo", "undo_sum"),
}
"""The functions of an end that an extension may have."""


def _ends_of_methods(instance: object) -> Ends:
    """Return the two ends whose functions are an instance's methods of the same names."""
    client, server = (
        {name: getattr(instance, name, None) for name in functions} for functions in _OF_AN_EXTENSION.values()
    )
    return ClientEnd(**client), ServerEnd(**server)


def _check_ends(extension: Extension, client: Any, server: Any) -> None:
    problem = None
    if not isinstance(client, ClientEnd) or not isinstance(server, ServerEnd):
        problem = "return a ClientEnd and a ServerEnd"
    elif (client.transform is None) == (client.encode is None):
        problem = "the client's end has 'transform' or 'encode', not both"
    elif unknown := [
        name for end in (client, server) for name in _functions(end) if name not in _OF_AN_EXTENSION[type(end)]
    ]:
        problem = f"'{unknown[0]}' is for fedping's own links. Remove it"
    elif len({client.encode is None, server.decode is None, server.lengths is None}) > 1:
        problem = "the client's end has 'encode' and the server's 'decode' and 'lengths', or none of them"
    if problem:
        raise ExtensionFailed(f"{extension}, an extension, gives no two ends of a link: {problem}")


def _functions(end: ClientEnd | ServerEnd) -> list[str]:
    """Return the names of an end's functions."""
    return [field.name for field in fields(end) if getattr(end, field.name) is not None]


def _guarded_end(extension: Extension, end: _End) -> _End:
    """Return an end whose functions raise only :class:`ExtensionFailed`, and whose results are checked."""
    functions = {name: getattr(end, name) for name in _OF_AN_EXTENSION[type(end)]}
    guarded: dict[str, Any] = {
        name: function and _guarded(extension, name, function) for name, function in functions.items()
    }
    return type(end)(**guarded)


def _guarded(extension: Extension, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    check = _CHECKS.get(name)

    def guarded(*arguments: Any) -> Any:
        with extension.guarded():
            result = function(*arguments)
            if check is None:
                return result
            return check(f"{extension}, an extension, returned from '{name}'", result, *arguments)

    return guarded


def _numbers(where: str, result: Any, expected: NDArray[Any]) -> Any:
    import numpy as np

    values = np.asarray(result)
    if values.shape != expected.shape or values.dtype.kind not in "fiu":
        raise ExtensionFailed(
            f"{where} {values.dtype} of shape {list(values.shape)}; return numbers of shape {list(expected.shape)}"
        )
    with np.errstate(over="ignore"):  # too large a number becomes infinite, which the caller checks
        return values.astype(expected.dtype, copy=False)


def _finite_numbers(where: str, result: Any, expected: NDArray[Any]) -> Any:
    import numpy as np

    values = _numbers(where, result, expected)
    if not np.isfinite(values).all():
        raise ExtensionFailed(f"{where} numbers that are not finite")
    return values


def _payloads(where: str, result: Any, updates: NDArray[Any]) -> pa.BinaryArray:
    import pyarrow as pa

    is_binary = isinstance(result, pa.BinaryArray | pa.LargeBinaryArray)
    if not is_binary or len(result) != len(updates) or result.null_count:
        raise ExtensionFailed(f"{where} no Arrow array of {len(updates):,} binary values; return one")
    return result


def _decoded(where: str, result: Any, payloads: pa.BinaryArray, m: int) -> Decoded:
    import numpy as np

    if not isinstance(result, tuple | list) or len(result) != 2:
        raise ExtensionFailed(f"{where} a {type(result).__name__}; return updates, and which payloads could be read")
    values, ok = np.asarray(result[0]), np.asarray(result[1])
    are_numbers = values.shape == (len(payloads), m) and values.dtype.kind in "fiu"
    if not are_numbers or ok.shape != (len(payloads),) or ok.dtype.kind != "b":
        raise ExtensionFailed(
            f"{where} {values.dtype} of shape {list(values.shape)}, and {ok.dtype} of shape {list(ok.shape)} which "
            f"could be read; return numbers of shape {[len(payloads), m]} and {len(payloads):,} booleans"
        )
    with np.errstate(over="ignore"):  # too large a number for float32 becomes infinite, and its update is unreadable
        return without_infinite(values.astype(np.float32, copy=False), ok)


def _sentence(where: str, result: Any, payload: bytes, m: int) -> str | None:
    if result is not None and not isinstance(result, str):
        raise ExtensionFailed(f"{where} a {type(result).__name__}; return what is wrong in words, or None")
    return result


def _lengths(where: str, result: Any, m: int) -> tuple[int, int]:
    least: Any
    most: Any
    least, most = result if isinstance(result, tuple | list) and len(result) == 2 else (result, None)
    whole, longest = isinstance(least, Integral) and isinstance(most, Integral), longest_payload(m)
    if not (whole and 0 <= least <= min(most, longest)):
        raise InvalidSettings(
            f"{where} {result!r} for {m:,} weights; return the minimum and maximum bytes of a payload, whole numbers, "
            f"with a minimum of at most {longest:,}"
        )
    return int(least), int(most)


def _arrays(where: str, result: Any, m: int) -> dict[str, NDArray[Any]]:
    import numpy as np

    if not isinstance(result, Mapping) or not all(isinstance(name, str) for name in result):
        raise ExtensionFailed(f"{where} a {type(result).__name__}; return a dict of arrays by name")
    return {name: np.asarray(value) for name, value in result.items()}


def _kept(check: Callable[..., Any]) -> Callable[..., Any]:
    """Return a check that also accepts the result of a link with state: a pair of the result and the next state."""

    def checked(where: str, result: Any, updates: NDArray[Any], keys: NDArray[Any], *state: Any) -> Any:
        if not state:
            return check(where, result, updates)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise ExtensionFailed(
                f"{where} a {type(result).__name__}; with 'init_state', return the result and the next state, a dict"
            )
        return check(where, result[0], updates), result[1]

    return checked


_CHECKS: dict[str, Callable[..., Any]] = {
    "transform": _kept(_finite_numbers),
    "encode": _kept(_payloads),
    "init_state": _arrays,
    "decode": _decoded,
    "lengths": _lengths,
    "trouble": _sentence,
    "undo": _numbers,
    "undo_sum": lambda where, result, spec, direction: _finite_numbers(where, result, direction),
}
"""Checks of what an end's functions return, by name; they take (start of a sentence, result, arguments)."""
