"""Reads pickles of plain values and of arrays of numbers without running code that they may contain.

A pickle is a program. Only instructions that build lists, dictionaries, tuples, numbers, texts and bytes are run. The
only classes are NumPy's arrays, which are replaced by classes of this file. So no code of a pickle's choice runs, and
memory grows with the file only.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

_PLAIN = frozenset(
    {
        *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE"),
        *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
        *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"),
    }
)
"""The instructions that may run. GLOBAL finds only the classes of this file."""

_MOST_TUPLES = 24
"""Maximum tuples of a pickle; an array takes six."""


class OddPickle(ValueError):
    """A pickle has something other than plain values and arrays of numbers, or is cut off."""


def loads(data: bytes) -> Any:
    """Return the value of a pickle; texts of Python 2 are bytes.

    Raises:
        OddPickle: it holds something other than plain values and arrays of numbers, or is cut off.
    """
    try:
        _check(data)
        return _finished(_Unpickler(io.BytesIO(data), encoding="bytes").load())
    except OddPickle:
        raise
    except Exception as error:  # any error: a damaged pickle may raise anything
        raise OddPickle(f"it is no whole pickle ({type(error).__name__})") from error


def _check(data: bytes) -> None:
    tuples = 0
    for seen, (opcode, argument, _) in enumerate(pickletools.genops(data), 1):
        if opcode.name not in _PLAIN:
            raise OddPickle(f"it has the instruction {opcode.name}, which plain values do not need")
        if opcode.name in ("PUT", "LONG_BINPUT") and (argument or 0) > seen:
            raise OddPickle("it numbers its values out of order")
        tuples += opcode.name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
        if tuples > _MOST_TUPLES:
            raise OddPickle(f"it has more than {_MOST_TUPLES} tuples, and an array has six")


class _Array:
    """Placeholder for an array until its state is known."""

    value: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, data = state
        if not isinstance(kind, _Dtype) or not isinstance(data, bytes) or by_columns not in (False, 0):
            raise OddPickle("it has an array that is not of plain numbers, row by row")
        if not isinstance(shape, tuple) or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise OddPickle("it has an array of no shape")
        dtype = np.dtype(kind.order + kind.name)
        if len(shape) > 8 or prod(shape) * dtype.itemsize != len(data):
            raise OddPickle(f"it has {len(data):,} bytes for an array of shape {shape}")
        self.value = np.frombuffer(data, dtype).reshape(shape)


class _Dtype:
    """Placeholder for the type of an array's numbers."""

    known: ClassVar = frozenset({"b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"})
    order = "="

    def __init__(self, name: str) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1])
        if order not in ("<", ">", "|", "="):
            raise OddPickle("it has numbers of an unknown order of bytes")
        self.order = order


def _text(value: Any) -> str:
    if not isinstance(value, bytes | str):  # nested lists could become texts of unlimited size
        raise OddPickle("it has something other than a text where an array has one")
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _dtype(name: Any, *_: Any) -> _Dtype:
    if _text(name) not in _Dtype.known:
        raise OddPickle(f"it has an array of '{_text(name)[:20]}', not of numbers")
    return _Dtype(_text(name))


def _reconstruct(*_: Any) -> _Array:
    return _Array()


_CALLED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _dtype,
}


class _Unpickler(pickle._Unpickler):
    """Python's unpickler in pure Python, whose memo is a dictionary; it finds only the classes above."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the placeholder for one of NumPy's names."""
        try:
            return _CALLED[module, name]
        except (KeyError, TypeError):
            raise OddPickle(f"it names {module[:40]}.{name[:40]}, which only other pickles need") from None

    def load_build(self) -> None:
        """Set the state of an array or a type only; a function would keep its state from file to file."""
        if not isinstance(self.stack[-2], _Array | _Dtype):  # type: ignore[attr-defined]
            raise OddPickle("it gives a state to something other than an array")
        super().load_build()  # type: ignore[misc]

    def load_setitem(self) -> None:
        """Put a value into a dictionary."""
        _check_keys(self.stack[-2:-1])  # type: ignore[attr-defined]
        super().load_setitem()  # type: ignore[misc]

    def load_setitems(self) -> None:
        """Put values into a dictionary."""
        _check_keys(self.stack[::2])  # type: ignore[attr-defined]
        super().load_setitems()  # type: ignore[misc]

    def load_dict(self) -> None:
        """Build a dictionary."""
        _check_keys(self.stack[::2])  # type: ignore[attr-defined]
        super().load_dict()  # type: ignore[misc]

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.DICT[0]: load_dict,
    }


def _check_keys(keys: Sequence[Any]) -> None:
    """Raise for keys that aren't texts: a file can choose numbers with equal hashes, or tuples that hash for hours."""
    if not all(isinstance(key, bytes | str) for key in keys):
        raise OddPickle("it has a dictionary whose keys are not texts")


def _finished(value: Any) -> Any:
    """Return a value with its placeholder, or those in a dictionary's values, replaced by the arrays."""
    if isinstance(value, dict):
        return {key: each.value if isinstance(each, _Array) else each for key, each in value.items()}
    return value.value if isinstance(value, _Array) else value
