"""Canonical form of Python source: only the code that runs, without comments, docstrings, annotations and formatting.

The form is fedping's own and the same on every Python since 3.11; the output of `ast.dump` differs between them.
Digests of code are computed from it, so no change here may change the form of existing code.
"""

from __future__ import annotations

import ast
import sys
from typing import Any, NamedTuple

_SILENT_DECORATORS = frozenset(
    {
        *("abstractmethod", "classmethod", "contextmanager", "deleter", "final", "getter", "overload", "override"),
        *("cache", "cached_property", "lru_cache", "property", "setter", "staticmethod"),
    }
)
"""Decorators that don't read a function's annotations."""

_SILENT_BASES = frozenset({"ABC", "Generic", "Protocol", "object"})
"""Base classes that don't read a class's annotations."""

_DOCSTRING_READERS = frozenset({"__doc__", "getdoc"})
_ANNOTATION_READERS = frozenset(
    {"__annotations__", "__annotate__", "get_annotations", "get_type_hints", "signature", "getfullargspec"}
)

_NOT_RUN = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
"""Fields of syntax trees that don't affect what runs, or that follow from another field."""


class CanonicalSource(NamedTuple):
    """Source code in canonical form.

    Attributes:
        text: the canonical text, equal for sources that differ only in comments, docstrings and the like.
        names: the names that the code reads or writes.
    """

    text: str
    names: frozenset[str]


def canonical_source(source: str, *, reads_settings: bool = False) -> CanonicalSource:
    """Return the canonical form of the source of a function, a class or a module.

    Docstrings stay if the source names something that reads them, such as ``__doc__``. Annotations stay in a class with
    a decorator or a base class, such as a dataclass, in functions with a decorator that may read them, and everywhere
    if the source names something that reads them, such as ``__annotations__``.

    Args:
        source: the source.
        reads_settings: whether to keep the annotations of keyword-only parameters of the function, or of the class's
            ``__init__``. For an extension, fedping reads the types of its settings from them.

    Raises:
        SyntaxError: the source isn't valid Python, or is nested too deeply.
    """
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEPEST))  # or the form would depend on how deep the caller is
    try:
        tree = ast.parse(source)
        mentioned = _mentioned(tree)
        settings = _with_settings(tree) if reads_settings else None
        tree = _WhatRuns(bool(mentioned & _DOCSTRING_READERS), bool(mentioned & _ANNOTATION_READERS), settings).visit(
            tree
        )
        names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        return CanonicalSource(_form(tree), names)
    except (RecursionError, MemoryError):
        raise SyntaxError("it is nested too deeply") from None
    finally:
        sys.setrecursionlimit(limit)


_DEEPEST = 20_000
"""Recursion limit for syntax trees, in calls; a chain of 1,000 ``elif`` takes about 5,000."""


def _with_settings(tree: ast.Module) -> ast.AST | None:
    """Return the outermost function, or the ``__init__`` of the outermost class."""
    found = tree.body[0] if tree.body else None
    if isinstance(found, ast.ClassDef):
        methods = (each for each in found.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
        return next(methods, None)
    return found


def _mentioned(tree: ast.AST) -> set[str]:
    """Return names, attributes and short texts: everything that may name a reader of docstrings or annotations."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.Constant(value=str(name)):
                found.add(name)
    return found


class _WhatRuns(ast.NodeTransformer):
    """Removes from a syntax tree the parts that don't run."""

    def __init__(self, keeps_docstrings: bool, keeps_annotations: bool, settings: ast.AST | None) -> None:
        self._docstrings, self._all_annotations, self._settings = keeps_docstrings, keeps_annotations, settings
        self._annotations = keeps_annotations
        self._in_function = False

    def visit_Module(self, node: ast.Module) -> Any:
        return self._block(node, self._all_annotations)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        bases = {_last_name(each) for each in node.bases}
        return self._block(node, bool(node.decorator_list or node.keywords or bases - _SILENT_BASES))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
        are_read = self._all_annotations or any(
            _last_name(each) not in _SILENT_DECORATORS for each in node.decorator_list
        )
        if not are_read:
            node.returns = None
            arguments = node.args
            keywords = () if node is self._settings else arguments.kwonlyargs
            for each in (*arguments.posonlyargs, *arguments.args, *keywords):
                each.annotation = None
            for star in (arguments.vararg, arguments.kwarg):
                if star is not None:
                    star.annotation = None
        return self._block(node, False)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if self._annotations or self._all_annotations:
            return self.generic_visit(node)
        if node.value is None and isinstance(node.target, ast.Name):  # in a function it makes the name a local one
            node.annotation = ast.Constant(None)
            return node if self._in_function else None
        if node.value is None:
            return self.generic_visit(ast.Expr(node.target))
        return self.generic_visit(ast.Assign(targets=[node.target], value=node.value))

    def visit_Pass(self, node: ast.Pass) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:
        if _last_name(node.test) == "TYPE_CHECKING":
            return self.generic_visit(ast.Module(body=node.orelse, type_ignores=[])).body  # type: ignore[attr-defined]
        return self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Join the literal texts of an f-string, which Python versions split in different places."""
        self.generic_visit(node)
        values: list[ast.expr] = []
        for each in node.values:
            last = values[-1] if values else None
            if isinstance(each, ast.Constant) and isinstance(last, ast.Constant):
                values[-1] = ast.Constant(str(last.value) + str(each.value))
            elif not (isinstance(each, ast.Constant) and each.value == ""):
                values.append(each)
        node.values = values
        return node

    def _block(self, node: Any, annotations: bool) -> Any:
        """Visit a module, class or function, and record whether annotations in its own body are read."""
        around = self._annotations, self._in_function
        self._annotations, self._in_function = annotations, isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        docstring = ast.get_docstring(node, clean=True) if self._docstrings else None
        self.generic_visit(node)
        if docstring is not None:
            node.body.insert(0, ast.Expr(ast.Constant(docstring)))
        self._annotations, self._in_function = around
        return node


def _last_name(node: ast.expr) -> str:
    """Return the last name of ``a.b.c``, ``a.b.c(...)`` or ``a.b.c[...]``; empty for anything else."""
    match node:
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _last_name(inner)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _form(value: Any) -> str:
    """Return a tree as text: its fields by name, without empty fields, since newer Pythons add some."""
    if isinstance(value, ast.Constant):
        constant = value.value
        if isinstance(constant, int) and constant.bit_length() > _LONGEST_DECIMAL:
            return f"int:{constant:#x}"
        return f"{type(constant).__name__}:{constant!a}"
    if isinstance(value, ast.AST):
        fields = []
        for name in sorted(value._fields):
            item = getattr(value, name, None)
            if name not in _NOT_RUN and item is not None and item != []:
                fields.append(f"{name}={_form(item)}")
        return f"{type(value).__name__}({','.join(fields)})"
    if isinstance(value, list):
        items = []
        for item in value:
            items.append(_form(item))  # noqa: PERF401 - a comprehension would take room on the stack of C
        return f"[{','.join(items)}]"
    return ascii(value)


_LONGEST_DECIMAL = 10_000
"""Maximum bits of a number that is written in decimal; Python refuses this conversion for very long numbers."""
