"""Canonical form of Python source: what runs, without comments, docstrings, annotations and formatting.

The form is our own, and the same on every Python from 3.11 on: `ast.dump` writes the same source in another way in
each of them. Digests of code are made of it, so no change here may change the form of what exists.
"""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

_SILENT_DECORATORS = frozenset(
    {
        *("abstractmethod", "classmethod", "contextmanager", "deleter", "final", "getter", "overload", "override"),
        *("cache", "cached_property", "lru_cache", "property", "setter", "staticmethod"),
    }
)
"""Decorators that read no annotations of a function."""

_SILENT_BASES = frozenset({"ABC", "Generic", "Protocol", "object"})
"""Base classes that read no annotations of a class."""

_DOCSTRING_READERS = frozenset({"__doc__", "getdoc"})
_ANNOTATION_READERS = frozenset(
    {"__annotations__", "__annotate__", "get_annotations", "get_type_hints", "signature", "getfullargspec"}
)

_NOT_RUN = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
"""Fields of syntax trees that do not decide what runs, or that another field decides."""


class CanonicalSource(NamedTuple):
    """A piece of source in canonical form.

    Attributes:
        text: the form; equal for sources that do the same and differ in comments, docstrings and the like alone.
        names: the names that the code reads or writes.
    """

    text: str
    names: frozenset[str]


def canonical_source(source: str) -> CanonicalSource:
    """Return the canonical form of the source of a function, a class or a module.

    Docstrings stay if the source names something that reads them, such as ``__doc__``. Annotations stay in a class that
    has a decorator or a base class, such as a dataclass, in functions with a decorator that may read them, and
    everywhere if the source names something that reads them, such as ``__annotations__``.

    Raises:
        SyntaxError: it is no Python.
    """
    tree = ast.parse(source)
    mentioned = _mentioned(tree)
    tree = _WhatRuns(bool(mentioned & _DOCSTRING_READERS), bool(mentioned & _ANNOTATION_READERS)).visit(tree)
    names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return CanonicalSource(_form(tree), names)


def _mentioned(tree: ast.AST) -> set[str]:
    """Return names, attributes and short texts: whatever may name a reader of docstrings or annotations."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.Constant(value=str(name)):
                found.add(name)
    return found


class _WhatRuns(ast.NodeTransformer):
    """Takes out of a tree what does not run."""

    def __init__(self, keeps_docstrings: bool, keeps_annotations: bool) -> None:
        self._docstrings, self._all_annotations = keeps_docstrings, keeps_annotations
        self._annotations = keeps_annotations

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
            for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                each.annotation = None
            for star in (arguments.vararg, arguments.kwarg):
                if star is not None:
                    star.annotation = None
        return self._block(node, False)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if self._annotations or self._all_annotations:
            return self.generic_visit(node)
        if node.value is None:
            return None if isinstance(node.target, ast.Name) else self.generic_visit(ast.Expr(node.target))
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
        """Join the texts of an f-string, which Pythons cut in different places."""
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
        """Visit a module, class or function, in whose own body annotations are read or not."""
        around, self._annotations = self._annotations, annotations
        docstring = ast.get_docstring(node, clean=True) if self._docstrings else None
        self.generic_visit(node)
        if docstring is not None:
            node.body.insert(0, ast.Expr(ast.Constant(docstring)))
        self._annotations = around
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
    """Return a tree as text: fields by name, those that are empty left out, as a newer Python adds some."""
    match value:
        case ast.Constant(value=constant):
            return f"{type(constant).__name__}:{constant!a}"
        case ast.AST():
            fields = ((name, getattr(value, name, None)) for name in sorted(value._fields) if name not in _NOT_RUN)
            said = ",".join(f"{name}={_form(each)}" for name, each in fields if each is not None and each != [])
            return f"{type(value).__name__}({said})"
        case list():
            return f"[{','.join(map(_form, value))}]"
    return ascii(value)
