"""Digests of code depend only on the executed code, not on wording, formatting or the version of Python."""

import ast
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec import Struct

from fedping.protocol.canonical_source import CanonicalSource, canonical_source
from fedping.protocol.extensions import Extension, Own, all_of, recorded, with_recorded_code
from fedping.protocol.source_digest import RECORDED_AS, digest_as_written, source_digest
from tests.support.copies import ROOMS, ROOT, copied_program, outside

AS_WRITTEN = '''
def lion(spec: Spec, *, rate: float = 0.1) -> Link:
    """Move by signs."""
    # a comment
    size: int = 3
    def step(x: list[float], /, *more: int, y: "int" = 2, **rest: str) -> float:
        "Docstring."
    if TYPE_CHECKING:
        import numbers
    return f"{size}" "%" f"{rate:>{size}}"
'''
BARE = """
def lion(spec,*,rate=.1):
  size=3
  def step(x,/,*more,y=2,**rest):
    pass
  return (
      f'{size}%{rate:>{size}}'
  )
"""


def test_comments_docstrings_annotations_and_formatting_do_not_count() -> None:
    assert canonical_source(AS_WRITTEN) == canonical_source(BARE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("= 3", "= 4"),
        ("= 0.1", "= 0.2"),
        ("size: int = 3", "pass"),
        ("rate: float", "rates: float"),
        (", /", ""),
        ("*more", "more"),
        ('"%"', '"!"'),
        (":>{", ":<{"),
        ("{size}", "{size!r}"),
        ("TYPE_CHECKING", "CHECKING"),
        ('"Docstring."', "yield"),
        ("def step", "async def step"),
        ("# a comment", "rate: float"),
    ],
)
def test_what_runs_counts(old: str, new: str) -> None:
    assert old in AS_WRITTEN
    assert canonical_source(AS_WRITTEN.replace(old, new, 1)).text != canonical_source(AS_WRITTEN).text


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("@dataclass\nclass A:\n    x: int = 3", "@dataclass\nclass A:\n    x: float = 3"),
        ("class A(Struct):\n    x: int", "class A(Struct):\n    x: float"),
        ("@optimizer('a')\ndef f(*, x: int): return x", "@optimizer('a')\ndef f(*, x: float): return x"),
        ("def f(x: int): return f.__annotations__", "def f(x: float): return f.__annotations__"),
        ("def f(x: int): return get_type_hints(f)", "def f(x: float): return get_type_hints(f)"),
        ("def f():\n    'a'\n    return f.__doc__", "def f():\n    'b'\n    return f.__doc__"),
        ("def f():\n    'a'\n    return inspect.getdoc(f)", "def f():\n    'b'\n    return inspect.getdoc(f)"),
    ],
)
def test_docstrings_and_annotations_that_code_reads_count(source: str, changed: str) -> None:
    assert canonical_source(source).text != canonical_source(changed).text


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("class A:\n    x: int = 3", "class A:\n    x = 3"),
        ("class A(Protocol):\n    def f(self) -> int: ...", "class A(Protocol):\n    'D.'\n    def f(self): pass"),
        ("@property\ndef f(self) -> int: return 1", "@property\ndef f(self): return 1"),
        (
            "@functools.lru_cache(maxsize=1)\ndef f(x: int): return 1",
            "@functools.lru_cache(maxsize=1)\ndef f(x): return 1",
        ),
        ("'Module.'\nx: int = 1", "x = 1  # one"),
    ],
)
def test_those_that_no_code_reads_do_not(source: str, changed: str) -> None:
    assert canonical_source(source) == canonical_source(changed)


@pytest.mark.parametrize(
    "source",
    [
        "def f(x: int, *, ks: list[int]): return ks",
        "class A:\n    def __init__(self, y: str, *, ks: list[int]):\n        self.ks = ks",
    ],
)
def test_annotations_of_settings_count_where_they_are_read(source: str) -> None:
    other = source.replace("list[int]", "set[int]")
    assert canonical_source(source) == canonical_source(other)
    assert canonical_source(source, reads_settings=True).text != canonical_source(other, reads_settings=True).text
    untyped = source.replace(": int", "").replace(": str", "")
    assert canonical_source(source, reads_settings=True) == canonical_source(untyped, reads_settings=True)


def test_code_may_be_nested_deeply_and_that_does_not_depend_on_the_caller() -> None:
    branches = "".join(f"    elif x == {n}:\n        y = {n}\n" for n in range(800))
    source = f"def f(x):\n    if x:\n        y = 0\n{branches}    return {' + '.join(['x'] * 800)}\n"
    form = canonical_source(source)

    def deeper(calls: int) -> CanonicalSource:
        return canonical_source(source) if calls == 0 else deeper(calls - 1)

    assert deeper(500) == form
    assert canonical_source(f"x = {16**5000:#x}").text != canonical_source(f"x = {16**5000 + 1:#x}").text
    with pytest.raises(SyntaxError):
        canonical_source(f"x = {'-' * 100_000}1")


def test_the_form_of_what_exists_stays() -> None:
    """The canonical form is hashed into documents: a changed form would look like changed code everywhere."""
    source = (
        "def f(x, *, y=-1.5):\n    return [x ** y for x in {'\\u1c89': b'a', **x} if x is not None and not ...][1:]"
    )
    assert canonical_source(source).text == (
        "Module(body=[FunctionDef(args=arguments(args=[arg(arg='x')],kw_defaults=[UnaryOp(op=USub(),operand=float:1.5)],"
        "kwonlyargs=[arg(arg='y')]),body=[Return(value=Subscript(slice=Slice(lower=int:1),value=ListComp("
        "elt=BinOp(left=Name(id='x'),op=Pow(),right=Name(id='y')),generators=[comprehension(ifs=[BoolOp(op=And(),"
        "values=[Compare(comparators=[NoneType:None],left=Name(id='x'),ops=[IsNot()]),"
        "UnaryOp(op=Not(),operand=ellipsis:Ellipsis)])],is_async=0,iter=Dict(keys=[str:'\\u1c89',None],"
        "values=[bytes:b'a',Name(id='x')]),target=Name(id='x'))])))],name='f')])"
    )


def test_our_own_algorithms_keep_the_digests_that_documents_have() -> None:
    ours = {each.name: each for each in all_of("client_algorithm") if each.make.__module__ == "fedping.algorithms"}
    assert {name: each.code[:12] for name, each in ours.items()} == {
        "apfl": "978859dac160",
        "decaying": "179e0dbd047a",
        "feddyn": "9e1d5a51d40e",
        "scaffold": "df01e23e46c1",
    }
    assert {each.code for each in ours.values()} >= {*RECORDED_AS.values()}


IDENTITIES = """
import json, sys
from pathlib import Path
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.protocol.extensions import KINDS, all_of
from fedping.protocol.study import study_from_toml

found = {f"{kind} {each.name}": each.code for kind in KINDS for each in all_of(kind)}
for file in map(Path, sys.argv[1:]):
    is_study = "[[arms]]" in file.read_text()
    found[file.name] = study_from_toml(file, new=True).digest if is_study else experiment_from_toml(file).digest
print(json.dumps(found))
"""
"""Script that prints the identities of extensions and of given files."""


class _Bare(ast.NodeTransformer):
    """Removes docstrings; comments disappear with the source text."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])
        return node


def bare_files(root: Path) -> Iterator[Path]:
    """Yield the files of a program without docstrings and comments."""
    for file in sorted(each for room in ROOMS for each in (root / room).rglob("*.py")):
        file.write_text(ast.unparse(_Bare().visit(ast.parse(file.read_text()))))
        yield file


def test_a_program_without_docstrings_and_comments_records_the_same_identities(tmp_path: Path) -> None:
    copy = copied_program(tmp_path / "program")
    assert len(list(bare_files(copy))) > 300
    files = [ROOT / f"experiments/{name}.toml" for name in ("firefox_2018", "linear", "breast_cancer")]
    files.append(with_scaffold(tmp_path))
    found = []
    for where in (outside(copy), {"cwd": ROOT}):
        command = [sys.executable, "-c", IDENTITIES, *map(str, files)]
        done = subprocess.run(command, **where, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]
    assert {"client_algorithm scaffold", "firefox_2018.toml", "scaffold.toml"} <= found[0].keys()


def with_scaffold(folder: Path) -> Path:
    """Write an experiment that names an extension."""
    file = folder / "scaffold.toml"
    file.write_text(
        'rounds = 1\nmodel = { name = "logistic-regression" }\ndata = { name = "breast-cancer" }\n'
        'partition = { partition = "iid", clients = 3 }\n'
        'training = { algorithm = "scaffold", rate = 0.1, epochs = 1 }\n'
        'server = { optimizer = { optimizer = "gradient_descent", rate = 1.0 } }\n'
    )
    return file


def as_extension(code: str, as_written: str) -> Extension:
    def make() -> None:
        """Do nothing."""

    return Extension("client_algorithm", "mine", make, code, as_written, (), Own)


class Settings(Struct):
    name: str
    code: str


def test_what_was_recorded_of_the_text_is_a_name_of_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedping.protocol.extensions._registered", {("client_algorithm", "mine"): as_extension("new", "old")}
    )
    assert recorded("client_algorithm", "mine", "old").code == "new"
    assert with_recorded_code(Settings("mine", "new"), {"name": "mine", "code": "old"}) == Settings("mine", "old")
    for name, code in (("mine", "other"), ("another", "old")):
        assert with_recorded_code(Settings("mine", "new"), {"name": name, "code": code}) == Settings("mine", "new")


def test_an_older_digest_is_that_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = 'def f(x):\n    """Add."""\n    return x + 1\n'
    (tmp_path / "written_once.py").write_text(text)
    (tmp_path / "written_twice.py").write_text(text.replace("Add", "Sum"))
    import written_once
    import written_twice

    assert source_digest(written_once.f, "f") == source_digest(written_twice.f, "f")
    assert digest_as_written(written_once.f, "f") != digest_as_written(written_twice.f, "f")
    assert digest_as_written(written_once.f, "f") == sha256(textwrap.dedent(text).encode()).hexdigest()
