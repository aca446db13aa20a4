"""Digests outlive the code that computed them: adding a field with a default changes none."""

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec import NODEFAULT, Struct, inspect

from fedping.analysis.verdict import Asked
from fedping.dashboard.results.landed import Landed
from fedping.experiments.laboratory.settings import Experiment, experiment_from_toml
from fedping.experiments.laboratory.units import _ProblemSettings
from fedping.experiments.simulate import experiment_from_toml as simulation_from_toml
from fedping.experiments.simulate.settings import Experiment as Simulation
from fedping.model_store import Version, open_store
from fedping.protocol.digest import ADDED_WITHIN, WRITTEN_OUT, _plan, canonical_json, digest_of
from fedping.protocol.study import Line, Study, study_from_toml
from tests.support.copies import ROOMS, ROOT, copied_program, outside

KEPT = ROOT / "tests" / "model_store" / "written_by_2"
LISTED = Path(__file__).with_name("digested.json")

DIGESTED: dict[str, tuple[type[Struct], ...]] = {
    "protocol/spec.py": (Line,),  # a spec is a part of its line
    "protocol/study.py": (Study,),
    "client_sim/fleet/fleet.py": (Line,),  # a training is, too
    "client_sim/joining/consent.py": (Line,),  # of the training
    "model_store/version.py": (Version,),
    "model_store/studies.py": (Study,),
    "server_jobs/round/next_version.py": (Line,),
    "server_jobs/round/private.py": (Line,),
    "server_jobs/round/private_release.py": (Line,),
    "server_jobs/optimize/pipeline.py": (Line,),
    "experiments/laboratory/settings/experiment.py": (Experiment,),
    "experiments/laboratory/run.py": (Experiment,),
    "experiments/laboratory/units.py": (_ProblemSettings,),
    "experiments/simulate/run.py": (Simulation, Study),
    "experiments/power/curve.py": (Simulation, Study),
    "dashboard/results/landed.py": (Landed,),
    "dashboard/results/question.py": (Asked,),
}
"""Structs whose digests or canonical bytes each file computes."""


def structs_in(kind: inspect.Type) -> Iterator[type[Struct]]:
    """Yield every struct in a type, including those in its fields; repeatedly if it is reachable by several paths."""
    if isinstance(kind, inspect.StructType):
        yield kind.cls
        for field in kind.fields:
            yield from structs_in(field.type)
        return
    for name in kind.__struct_fields__:
        part = getattr(kind, name)
        for each in part if isinstance(part, tuple) else (part,):
            if isinstance(each, inspect.Type):
                yield from structs_in(each)


def digested() -> dict[str, type[Struct]]:
    """Return all structs in digests, by a name that doesn't change when a file is renamed."""
    roots = {kind for kinds in DIGESTED.values() for kind in kinds}
    found = {each for root in roots for each in structs_in(inspect.type_info(root))}
    by_name: dict[str, type[Struct]] = {}
    for kind in sorted(found, key=lambda each: each.__module__):
        room = kind.__module__.split(".")[1]
        name = kind.__name__ if kind.__name__ not in by_name else f"{kind.__name__} ({room})"
        by_name[f"{kind.__name__} (simulate)" if ".simulate" in kind.__module__ else name] = kind
    return by_name


def fields_of(kind: type[Struct]) -> dict[str, Any]:
    """Return each field's default as JSON, or a mark for none."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {
        field.encode_name: "required" if field.required else {"default": _as_json(_default(field))}
        for field in info.fields
    }


def _as_json(default: Any) -> Any:
    """Return a default without its omitted fields, which may grow."""
    return json.loads(canonical_json(default) if isinstance(default, Struct) else msgspec.json.encode(default))


def _default(field: inspect.Field) -> Any:
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


def test_everything_that_has_a_digest_is_held_to_what_follows() -> None:
    calling = set()
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            calls = (node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
            if any(getattr(each, "id", getattr(each, "attr", "")) in ("digest_of", "canonical_json") for each in calls):
                calling.add(file.relative_to(ROOT).as_posix())
    assert calling - {"protocol/digest.py"} == set(DIGESTED), "say in DIGESTED what the file makes a digest of"


def test_fields_of_what_has_a_digest_are_only_added_and_with_a_default_that_stays() -> None:
    """To add new ones to the list: ``python -m tests.protocol.test_digest``."""
    listed, now = json.loads(LISTED.read_text()), {name: fields_of(kind) for name, kind in digested().items()}
    for name, fields in listed.items():
        assert name in now, f"{name} has gone, and documents name it; one that is renamed is renamed in the list too"
        for field, was in fields.items():
            assert field in now[name], f"{name}.{field} has gone, and documents have it"
            assert now[name][field] == was, f"{name}.{field} had another default; add another field in its place"
        for field in now[name].keys() - fields.keys():
            assert now[name][field] != "required", f"{name}.{field} is new and needs a default, for documents lack it"
    assert now == listed, "new structs or fields: python -m tests.protocol.test_digest"


def instances() -> list[Struct]:
    """Return structs of all kinds with digests, as in files."""
    store = open_store(KEPT / "store")
    study = store.study("lines")
    found: list[Struct] = [study, *(store.version("lines", line.name, 1) for line in study.lines)]
    found.append(study_from_toml(ROOT / "experiments" / "firefox_2018.toml"))
    found += simulation_from_toml(ROOT / "experiments" / "demo_study.toml")
    papers = sorted((ROOT / "experiments" / "papers").glob("*.toml"))
    return found + [experiment_from_toml(path) for path in (ROOT / "experiments" / "breast_cancer.toml", *papers)]


def inside(value: Any) -> Iterator[Struct]:
    """Yield every struct in a value, itself first."""
    if isinstance(value, Struct):
        yield value
        for name in value.__struct_fields__:
            yield from inside(getattr(value, name))
    elif isinstance(value, dict):
        for each in value.values():
            yield from inside(each)
    elif isinstance(value, tuple | list) and not (value and isinstance(value[0], float)):
        for each in value:
            yield from inside(each)


def test_a_field_with_its_default_is_in_no_digest_and_with_another_value_in_every() -> None:
    tried = set()
    for one in (each for whole in instances() for each in inside(whole)):
        if type(one) in tried:
            continue
        tried.add(type(one))
        grown = with_field(type(one))
        given = {name: getattr(one, name) for name in one.__struct_fields__}
        assert canonical_json(grown(**given)) == canonical_json(one), type(one)
        assert digest_of(grown(**given, added=7)) != digest_of(one), type(one)
    assert len(tried) > 40


class Inner(Struct, kw_only=True):
    digest_name: ClassVar[str] = "ArmSummary"

    one: int
    other: int = 0
    clipped: int = 0


class Outer(Struct, kw_only=True, omit_defaults=True):
    inner: dict[str, Inner]
    rate: float = 0.5


def test_within_a_struct_that_omits_its_defaults_only_listed_fields_are_left_out() -> None:
    assert canonical_json(Inner(one=1)) == b'{"one":1}'
    assert canonical_json(Outer(inner={"a": Inner(one=1)})) == b'{"inner":{"a":{"one":1,"other":0}}}'
    assert canonical_json(Outer(inner={"a": Inner(one=1, clipped=2)}, rate=1.5)) == (
        b'{"inner":{"a":{"clipped":2,"one":1,"other":0}},"rate":1.5}'
    )


def within_omitting(kind: inspect.Type, within: bool = False) -> Iterator[type[Struct]]:
    """Yield the structs within a struct that omits its defaults."""
    if isinstance(kind, inspect.StructType):
        if within:
            yield kind.cls
        for field in kind.fields:
            yield from within_omitting(field.type, within or kind.cls.__struct_config__.omit_defaults)
        return
    for name in kind.__struct_fields__:
        part = getattr(kind, name)
        for each in part if isinstance(part, tuple) else (part,):
            if isinstance(each, inspect.Type):
                yield from within_omitting(each, within)


def _optional(kind: type[Struct]) -> tuple[str, ...]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return tuple(field.name for field in info.fields if not field.required)


def test_no_field_is_added_within_a_struct_that_omits_its_defaults_without_being_listed() -> None:
    """List a new field there in ``ADDED_WITHIN``, and add it here."""
    found = {kind for roots in DIGESTED.values() for root in roots for kind in within_omitting(inspect.type_info(root))}
    assert {kind.__name__: " ".join(_optional(kind)) for kind in found} == {
        "Ancestor": "private epsilon delta local_epsilon",
        "ArmSummary": "winsorised clipped outcomes",
        "OutcomeLevel": "",
        "StageResult": "clients arms",
        "StageState": "tried stayed",
        "Winsorised": "rank_selected rank_error",
    }


def test_a_struct_that_is_renamed_keeps_its_digest() -> None:
    every = instances()
    before = [digest_of(one) for one in every]
    kinds = {kind: kind.__name__ for kind in digested().values()}
    try:
        for number, kind in enumerate(kinds):
            kind.__name__ = kind.__qualname__ = f"Renamed{number}"
        _plan.cache_clear()
        assert [digest_of(one) for one in every] == before
    finally:
        for kind, name in kinds.items():
            kind.__name__ = kind.__qualname__ = name
        _plan.cache_clear()


def test_every_name_of_a_digest_is_given_to_a_struct() -> None:
    given = {name for kind in digested().values() if (name := vars(kind).get("digest_name"))}
    assert given == {*WRITTEN_OUT, *ADDED_WITHIN}, "a new struct has no digest_name: nothing of it is old"
    for kind in digested().values():
        written_out = WRITTEN_OUT.get(vars(kind).get("digest_name", ""), "").split()
        # Two structs of the laboratory share the name with one of a simulated study, and have no such fields.
        assert kind.__name__ in ("Experiment", "Evaluation") or {*written_out} <= {*kind.__struct_fields__}, kind


def with_field(kind: type[Struct]) -> type[Struct]:
    """Return a struct with one more field, which has a default."""
    config = kind.__struct_config__
    return msgspec.defstruct(
        kind.__name__,
        [("added", int | None, None)],
        bases=(kind,),
        frozen=True,
        kw_only=True,
        tag_field=config.tag_field,
        tag=config.tag,
        dict=True,
    )


@pytest.mark.parametrize("default", [0, 1.5, "a", True, (), ("a",), None])
def test_a_default_is_told_from_what_only_equals_it(default: Any) -> None:
    kind = msgspec.defstruct("Later", [("added", Any, default)], kw_only=True)
    assert canonical_json(kind()) == b"{}"
    for other in (1, 0, False, 1.5, "a", "", (), ("a",), None, 1.0):
        same = msgspec.json.encode(other) == msgspec.json.encode(default)
        assert canonical_json(kind(added=other)) == (b"{}" if same else b'{"added":%s}' % msgspec.json.encode(other))


ADDED = (
    ("protocol/pipeline.py", "class Pipeline(Struct"),
    ("protocol/spec.py", "class ModelSpec(Struct"),
    ("model_store/version.py", "class Lineage(Struct"),
    ("experiments/laboratory/settings/setup.py", "class Setup(LineSettings"),
)

FROM_OUTSIDE = """
import sys
from pathlib import Path
import fedping
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.model_store import Lineage, open_store
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.spec import ModelSpec
from fedping.server_jobs.round import recompute
from fedping.server_jobs.round.engine import NumpyEngine

copy, kept = map(Path, sys.argv[1:])
assert Path(fedping.__file__).is_relative_to(copy)
assert all("later" in kind.__struct_fields__ for kind in (Pipeline, ModelSpec, Lineage))
store = open_store(kept / "store")
for line in store.study("lines").lines:
    for number in store.iterations("lines", line.name):
        again = recompute(store, kept / "landing", "lines", line.name, number, NumpyEngine())
        assert again.identical, (line.name, number, again.differences)
    assert store.lines.trouble("lines", line.name) is None
experiment = experiment_from_toml(kept / "laboratory" / "small.toml")
print(run_experiment(experiment, kept / "laboratory" / "out", jobs=1).digest)
"""


def test_a_program_with_new_fields_recomputes_an_older_store_and_resumes_an_older_run(tmp_path: Path) -> None:
    copy = copied_program(tmp_path / "program")
    for file, beginning in ADDED:
        path = copy / file
        before, found, after = path.read_text().partition(beginning)
        assert found, file
        own, following, rest = after.partition("\nclass ")
        fields, method, more = own.rstrip().partition("\n\n    def ")
        path.write_text(f"{before}{found}{fields}\n    later: int | None = None{method}{more}\n\n{following}{rest}")
    kept = Path(shutil.copytree(KEPT, tmp_path / "kept"))
    done = subprocess.run(
        [sys.executable, "-c", FROM_OUTSIDE, str(copy), str(kept)],
        **outside(copy),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == json.loads((KEPT / "digests.json").read_text())["laboratory"]


if __name__ == "__main__":
    known = json.loads(LISTED.read_text()) if LISTED.exists() else {}
    for struct, its in ((name, fields_of(kind)) for name, kind in digested().items()):
        known[struct] = {**its, **known.get(struct, {})}
    LISTED.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
