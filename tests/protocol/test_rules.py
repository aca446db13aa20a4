"""The verdicts on a grid of studies and laboratory files stay unchanged: none is silently allowed or rejected.

``verdicts.json`` has the names of all deviations, and the verdicts on the grid's combinations
(`tests.support.combinations`), in order: two characters each, an index of the list ``verdicts``. A verdict is the
stage of a rejection with the settings that its sentence names, or "accepted" with the safe defaults of a new study
and the settings named by the advice. After a deliberate change, ``python -m tests.protocol.test_rules`` prints the
changed verdicts and writes the file. A new deviation adds combinations, and keeps all other verdicts.
"""

import ast
import json
import string
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any, TypeAlias

import pytest

from fedping.protocol.rules import RULES, Parts, Trait
from fedping.protocol.rules import sentences as sentences_of
from tests.support.combinations import bases_of, changed, combinations_of, deviations_of, keys_of, sentences
from tests.support.registry import registry_of_its_own

ROOT = Path(__file__).parents[2]

FROZEN = Path(__file__).with_name("verdicts.json")
DIGITS = string.digits + string.ascii_letters
WIDTH = 110
KINDS = ("study", "file")


@pytest.fixture(autouse=True)
def _forget_what_the_grid_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    registry_of_its_own(monkeypatch)


def verdict_on(label: str, tables: dict[str, Any]) -> tuple[str, ...]:
    """Return a verdict with its named settings in place of its sentences."""
    outcome, *said = sentences(label, tables)
    keys = [one if one.startswith("clips ") else keys_of(one) for one in said]
    return outcome, *sorted(keys)


Combination: TypeAlias = tuple[str, ...]
Verdict: TypeAlias = tuple[str, ...]


def frozen() -> dict[str, dict[Combination, Verdict]]:
    """Return the verdicts on all combinations, by the base's label."""
    document = json.loads(FROZEN.read_text())
    verdicts = {}
    for label, lines in document["grid"].items():
        text = "".join(lines)
        pairs = [text[at : at + 2] for at in range(0, len(text), 2)]
        found = [tuple(document["verdicts"][DIGITS.index(a) * len(DIGITS) + DIGITS.index(b)]) for a, b in pairs]
        combinations = combinations_of(document["deviations"][label.partition(" ")[0]], label)
        verdicts[label] = dict(zip(combinations, found, strict=True))
    return verdicts


def is_same(before: tuple[str, ...], now: tuple[str, ...]) -> bool:
    """Return whether a verdict is unchanged; sentences may name more settings than before."""
    return (
        before[0] == now[0]
        and len(before) == len(now)
        and all(set(old.split()) <= set(new.split()) for old, new in zip(before[1:], now[1:], strict=True))
    )


def differences(verdicts: dict[str, dict[Combination, Verdict]]) -> Iterator[str]:
    """Yield the differences from the frozen verdicts, and the deviations that they lack."""
    names = json.loads(FROZEN.read_text())["deviations"]
    for kind in KINDS:
        deviations = deviations_of(kind)
        for name in sorted({*names[kind]} ^ deviations.keys()):
            yield f"{kind}: {name} is new or has gone; write the verdicts: python -m tests.protocol.test_rules"
        for label, base in bases_of(kind).items():
            for combination, before in verdicts.get(label, {}).items():
                if deviations.keys() >= {*combination}:
                    tables = changed(base, [deviations[name] for name in combination])
                    now = verdict_on(label, tables)
                    if not is_same(before, now):
                        yield f"{label} {combination}: {before} is now {now} of {sentences(label, tables)}"


def test_each_verdict_is_what_it_was() -> None:
    """Tested for one combination of each base and verdict."""
    firsts = {label: {now: each for each, now in reversed(found.items())} for label, found in frozen().items()}
    assert list(differences({label: {each: now for now, each in of.items()} for label, of in firsts.items()})) == []


@pytest.mark.long
def test_all_verdicts_are_what_they_were() -> None:
    assert list(differences(frozen())) == []


def test_a_deviation_adds_combinations_and_leaves_all_others() -> None:
    names = [*deviations_of("study")]
    without, all_of = ({*combinations_of(some, "study plain")} for some in (names[:50] + names[51:], names))
    assert without < all_of
    assert all(names[50] in each for each in all_of - without)


def _two_digits(number: int) -> str:
    return DIGITS[number // len(DIGITS)] + DIGITS[number % len(DIGITS)]


DOCUMENTED: tuple[tuple[str, str, str, tuple[set[Trait], ...]], ...] = (
    (
        "reference.md",
        "averaged first; not with `mean` or `recluster`",
        "pipeline",
        ({"buckets", "mean"}, {"buckets", "centroids"}),
    ),
    ("reference.md", "(`over_capacity`); not with `staleness`", "pipeline", ({"late pings", "centroids"},)),
    (
        "reference.md",
        "`recluster` of gradients, of signs, or of integer weights",
        "reclustering",
        ({"centroids", "gradient"}, {"centroids", "sends signs"}, {"centroids", "integer weights"}),
    ),
    (
        "researchers.md",
        "can't be combined with `[co_op]`, `[gossip]`, a server that clusters again, or `trained`",
        "personal file",
        ({"co_op"}, {"centroids"}, {"trained"}),
    ),
    (
        "researchers.md",
        "can't be combined with `[co_op]`, `[gossip]`",
        "gossip",
        ({"personal", "all clients", "local steps"},),
    ),
    ("researchers.md", "a vector not with `[lateness]`", "personal file", ({"vector", "lateness"},)),
    (
        "extending.md",
        "A server with another optimizer, aggregate or clip, or with late pings, is then refused",
        "mean",
        (
            {"adds the mean", "mean"},
            {"adds the mean", "as it is"},
            {"adds the mean", "mean", "as it is", "clips"},
            {"adds the mean", "mean", "as it is", "late pings"},
        ),
    ),
    (
        "extending.md",
        'leave it at `all` or `uniform`, the latter without `weighting = "examples"`',
        "votes of a file",
        ({"adds the mean", "by coin"}, {"adds the mean", "equal parts", "votes of examples"}),
    ),
)
"""The statements of pages of docs/ on incompatible parts, with the traits that a group's rules reject."""


@pytest.mark.parametrize(("page", "words", "group", "refused"), DOCUMENTED)
def test_what_the_documentation_refuses_is_refused(
    page: str, words: str, group: str, refused: tuple[set[Trait], ...]
) -> None:
    assert words in " ".join((ROOT / "docs" / page).read_text().split())
    for traits in refused:
        assert list(sentences_of(group, Parts(frozenset(traits)))), traits


def test_what_the_documentation_allows_is_allowed() -> None:
    for traits in {"adds the mean", "all clients", "votes of examples"}, {"adds the mean", "equal parts"}:
        assert not list(sentences_of("votes of a file", Parts(frozenset(traits))))  # type: ignore[arg-type]


def test_each_group_of_rules_is_checked_somewhere() -> None:
    """Every checked group also exists: a group's name is a key, which no type checker knows."""
    found = set()
    for room in ("protocol", "client_sim", "experiments"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("check", "sentences") and node.args:
                    first = node.args[0]
                    if isinstance(first, ast.Constant) and isinstance(first.value, str):
                        found.add(first.value)
    assert found == RULES.keys()


def write() -> None:
    """Write the verdicts of the current code."""
    deviations = {kind: deviations_of(kind) for kind in KINDS}
    found = {
        label: [
            verdict_on(label, changed(base, [deviations[kind][name] for name in each]))
            for each in combinations_of(deviations[kind], label)
        ]
        for kind in KINDS
        for label, base in bases_of(kind).items()
    }
    verdicts = sorted({each for of_base in found.values() for each in of_base})
    index = {each: number for number, each in enumerate(verdicts)}
    coded = {label: wrap("".join(_two_digits(index[each]) for each in of), WIDTH) for label, of in found.items()}
    names = {kind: sorted(of_kind) for kind, of_kind in deviations.items()}
    FROZEN.write_text(json.dumps({"verdicts": verdicts, "deviations": names, "grid": coded}, indent=1) + "\n")


if __name__ == "__main__":
    if FROZEN.exists():
        print(*differences(frozen()), sep="\n")
    write()
