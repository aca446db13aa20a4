"""Clients' influence on the model: sketches against exact counts, the same bits everywhere, and versions' records."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.landing_data import Traffic
from benchmarks.landing_data import land as land_traffic
from fedping.extending import upload_link
from fedping.main import main
from fedping.model_store.decisions import discard, rollback
from fedping.model_store.store import ModelStore
from fedping.model_store.version import Influence, Version
from fedping.protocol import extensions
from fedping.protocol.digest import canonical_json
from fedping.protocol.guard import Guard
from fedping.protocol.landing import landed_files
from fedping.protocol.link_ends import ClientEnd, ServerEnd
from fedping.protocol.links import OwnLink
from fedping.protocol.pipeline import ClipByNorm, ClipByQuantile, MeanOfSigns, Pipeline
from fedping.protocol.settings_file import converted
from fedping.protocol.study import Study
from fedping.server_jobs.round import RoundOptions, RoundResult, recompute, run_round
from fedping.server_jobs.round.aggregate import combined
from fedping.server_jobs.round.clipping import norms_of
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.influence import (
    InfluenceSums,
    UpdateFigures,
    in_words,
    influence_of,
    influence_sums,
    merged_pulls,
    needs_influence,
    signs_of,
    units,
)
from fedping.server_jobs.round.new_clients import estimated, no_clients, registers_of, with_more
from fedping.server_jobs.round.plan import Rules
from fedping.server_jobs.round.shard import shard_partials
from tests.support.rounds import FIRST_MS, WHEN, Ping, crowd, land, line_of, store_with, work_of
from tests.support.versions import small_study

SALT = bytes(range(16))
M = 3

numbers = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-30, 3.4e38, -3.4e38]) | st.floats(-100, 100, width=32)
sent = st.lists(st.tuples(st.integers(0, 9), st.lists(numbers, min_size=M, max_size=M)), min_size=1, max_size=40)


def seen_of(
    clients: np.ndarray, updates: np.ndarray, pipeline: Pipeline | None = None, bound: float | None = None
) -> InfluenceSums:
    _, of = np.unique(clients, return_inverse=True)
    pings = np.bincount(of)[of]
    counts = units(pings)
    figures = UpdateFigures(norms_of(updates), counts, 1 / pings, of, signs_of(updates, counts))
    return influence_sums(pipeline or Pipeline(), bound, figures)


def arrays_of(pings: list[tuple[int, list[float]]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([c for c, _ in pings]), np.array([u for _, u in pings], np.float32)


@given(sent, st.none() | st.floats(1e-3, 1e3))
def test_what_is_told_is_what_plain_counting_finds(pings: list[tuple[int, list[float]]], bound: float | None) -> None:
    clients, updates = arrays_of(pings)
    found = influence_of(seen_of(clients, updates, bound=bound), bound)
    assert found is not None
    norms = norms_of(updates)
    shares = np.array([1 / (clients == c).sum() for c in clients])
    everyone = len(set(clients.tolist()))
    assert found.norm_most == norms.max()
    assert found.clipped == pytest.approx(0 if bound is None else shares[norms > bound].sum() / everyone, abs=1e-5)
    for share, told in ((0.05, found.norm_low), (0.5, found.norm_median), (0.95, found.norm_high)):
        least = [norm for norm in norms if shares[norms <= norm].sum() >= (share + 1e-5) * everyone]
        most = [norm for norm in norms if shares[norms <= norm].sum() >= (share - 1e-5) * everyone]
        assert min(most) <= told <= min(least, default=norms.max()) * 17 / 16 + 1e-44
    ups, downs = (shares @ (updates > 0)), (shares @ (updates < 0))
    if (ups + downs).any():
        assert found.agreement == pytest.approx(np.abs(ups - downs).sum() / (ups + downs).sum(), abs=1e-4)
    else:
        assert found.agreement is None
    pulls = [(shares * np.minimum(norms, bound or math.inf))[clients == c].sum() for c in set(clients.tolist())]
    strongest = sorted((pull for pull in pulls if pull > 0), reverse=True)
    if strongest:
        assert sum(strongest[: found.half]) >= (0.5 - 1 / 16) * sum(strongest)
        assert sum(strongest[: found.half - 1]) <= (0.5 + 1 / 16) * sum(strongest)
    else:
        assert found.half == 0


@given(sent, st.randoms(use_true_random=False))
def test_sketches_merge_to_the_same_in_any_order_and_to_that_of_all(
    pings: list[tuple[int, list[float]]], random: Any
) -> None:
    shards = [arrays_of([ping for ping in pings if ping[0] % 3 == shard]) for shard in range(3)]
    parts = [seen_of(*shard) for shard in shards if len(shard[0])]
    random.shuffle(parts)
    whole = seen_of(*arrays_of(pings))
    total = parts[0]
    for part in parts[1:]:
        total = merged_pulls(total, part)
    for field in dataclasses.fields(InfluenceSums):
        np.testing.assert_array_equal(getattr(total, field.name), getattr(whole, field.name), err_msg=field.name)


def test_one_loud_client_is_half_of_the_step_unless_it_is_clipped() -> None:
    updates = np.ones((100, M), np.float32)
    updates[7] = 1e6
    clients = np.arange(100)
    plain, clipped = (
        influence_of(seen_of(clients, updates), None),
        influence_of(seen_of(clients, updates, bound=2), 2),
    )
    assert plain is not None
    assert clipped is not None
    assert (plain.half, clipped.half) == (1, 50)
    assert (plain.clipped, clipped.clipped) == (0, 0.01)
    assert "half of the step comes from 1 of 100 clients" in in_words(plain, 100)


def test_signs_have_no_length_and_pull_alike() -> None:
    updates = np.array([[1e9, 1, 1], [1, 1, 1], [-1, 1, 1], [0, 0, 0]], np.float32)
    found = influence_of(seen_of(np.arange(4), updates, Pipeline(aggregate=MeanOfSigns())), None)
    assert found is not None
    assert found.half == 2
    assert found.agreement == pytest.approx((1 + 3 + 3) / 9)


@pytest.mark.parametrize("clients", [0, 1, 50, 2_000, 8_000, 300_000])
def test_about_how_many_clients_there_were_is_known_to_some_per_cent(clients: int) -> None:
    errors = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        known = with_more(
            no_clients(SALT), registers_of(rng.integers(0, 2**63, (clients, 2), np.uint64), rng.bytes(16))
        )
        errors.append(abs(estimated(known) - clients) / max(clients, 1))
    assert max(errors) < 5 * 0.023


def test_whoever_is_known_is_not_new_and_ids_that_are_alike_count_like_others() -> None:
    ids = np.stack([np.arange(5_000, dtype=np.uint64), np.zeros(5_000, np.uint64)], axis=1)
    known = with_more(no_clients(SALT), registers_of(ids, SALT))
    assert with_more(known, registers_of(ids[::7], SALT)) == known
    assert estimated(known) == pytest.approx(5_000, rel=0.1)
    other = bytes(reversed(SALT))
    assert with_more(no_clients(other), registers_of(ids, other)).registers != known.registers


def study_of(**settings: Any) -> Study:
    study = small_study()
    line = study.lines[0]
    guard = settings.pop("guard", None)
    pipeline = msgspec.structs.replace(line.pipeline, **settings)
    return msgspec.structs.replace(study, lines=(msgspec.structs.replace(line, pipeline=pipeline, guard=guard),))


def play(store: ModelStore, landing: Path, at: int, pings: Sequence[Ping] = ()) -> RoundResult:
    land(landing, [*crowd(40, seed=at, version=at), *pings], iteration=at, at_ms=FIRST_MS + at)
    return run_round(
        store, landing, "study", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="test")
    )


def seen_in(version: Version) -> Influence:
    assert version.lineage.aggregate is not None
    assert version.lineage.aggregate.influence is not None
    return version.lineage.aggregate.influence


@pytest.mark.parametrize("clip", [ClipByNorm(norm=2.0), ClipByQuantile(), None])
def test_rounds_tell_who_moved_the_model_and_are_computed_again_to_the_bit(tmp_path: Path, clip: Any) -> None:
    store = store_with(tmp_path / "store", study_of(clip=clip))
    results = [play(store, tmp_path, at) for at in range(3)]
    for number in (1, 2, 3):
        assert recompute(store, tmp_path, "study", "main", number, NumpyEngine()).identical
    found = seen_in(store.head("study", "main"))
    assert found == results[-1].influence
    assert (found.bound is None) == (clip is None)
    assert 0 < found.norm_low < found.norm_median < found.norm_high <= found.norm_most
    assert found.new_clients is None, "nobody keeps who was there without a guard"
    assert store.head("study", "main").lineage.known is None


def test_a_version_of_before_that_does_not_tell_it_is_computed_again_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_with(tmp_path / "store", study_of(clip=ClipByNorm(norm=2.0), guard=Guard()))
    with monkeypatch.context() as patch:
        patch.setattr("fedping.server_jobs.round.next_version.needs_influence", lambda line: False)
        patch.setattr("fedping.server_jobs.round.next_version.looks_at_new_clients", lambda guard: False)
        play(store, tmp_path, 0)
    play(store, tmp_path, 1)
    first = store.version("study", "main", 1)
    assert first.lineage.aggregate is not None
    assert (first.lineage.aggregate.influence, first.lineage.known) == (None, None)
    assert b"influence" not in canonical_json(first)
    assert store.version("study", "main", 2).lineage.known is not None
    for number in (1, 2):
        assert recompute(store, tmp_path, "study", "main", number, NumpyEngine()).identical


def test_nothing_is_told_of_updates_that_mean_nothing_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "_registered", dict(extensions._registered))

    @upload_link("masked")
    def masked() -> tuple[ClientEnd, ServerEnd]:
        return ClientEnd(transform=lambda updates, keys: updates), ServerEnd(undo_sum=lambda spec, direction: direction)

    assert needs_influence(line_of(2))
    assert not needs_influence(
        msgspec.structs.replace(line_of(2), upload=(converted({"link": "masked"}, OwnLink, ""),))
    )


def test_new_clients_are_counted_over_rounds_rollbacks_and_recomputations(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", study_of(guard=Guard(rounds=1000, window=1000)))
    assert play(store, tmp_path, 0).influence.new_clients is None, "there is nothing before the first round"  # type: ignore[union-attr]
    assert play(store, tmp_path, 1).influence.new_clients == 0  # type: ignore[union-attr]
    known = store.head("study", "main").lineage.known
    rollback(store, "study", "main", 1, created=WHEN, code_version="test")
    assert store.head("study", "main").lineage.known == known
    result = play(store, tmp_path, 3, [Ping(9000 + i, 9000 + i, version=3) for i in range(60)])
    assert result.influence is not None
    assert result.influence.new_clients == pytest.approx(60, abs=5)
    for number in (1, 2, 3, 4):
        assert recompute(store, tmp_path, "study", "main", number, NumpyEngine()).identical


def test_many_new_clients_have_a_version_held_and_are_new_again_if_it_is_discarded(tmp_path: Path) -> None:
    guard = Guard(rounds=3, norm=None, jump=None, agreement=None, clients=None)
    store = store_with(tmp_path / "store", study_of(guard=guard))
    for at in range(5):
        assert play(store, tmp_path, at).status == "published"
    known = store.head("study", "main").lineage.known
    result = play(store, tmp_path, 5, [Ping(9000 + i, 9000 + i, version=5) for i in range(40)])
    assert result.status == "held"
    assert "clients are new" in result.sentence
    assert discard(store, "study", "main", created=WHEN, code_version="test").lineage.known == known


@pytest.mark.parametrize("rows_per_file", [900, 6000], ids=["small files", "files in shards"])
def test_shards_in_any_tasks_and_batches_come_to_the_same_bits(
    tmp_path: Path, rows_per_file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_traffic(tmp_path, Traffic(pings=6_000, clients=700, duplicates=0.1), seed=1, rows_per_file=rows_per_file)
    rules = Rules(
        line=line_of(22, clip=ClipByNorm(norm=3.0)),
        iteration=0,
        arms=("treatment", "control"),
        submits=(True, False),
        pings="frecency-update",
        sees=True,
        salt=SALT,
    )
    work = work_of(landed_files(tmp_path), rules)
    whole = combined(NumpyEngine().partials(work), rules)
    apart = [part for shard in range(15, -1, -1) for part in shard_partials(work.paths, [shard], rules)]
    monkeypatch.setattr("fedping.server_jobs.round.shard.BATCH_BYTES", 4096)
    batches = combined(NumpyEngine(threads=3).partials(work), rules)
    for other in (combined(apart, rules), batches):
        assert other.updates.influence == whole.updates.influence
        np.testing.assert_array_equal(other.registers, whole.registers)
    assert whole.updates.influence is not None
    assert 0 < whole.updates.influence.half < whole.updates.clients


def test_the_command_says_it_in_a_line_and_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_with(tmp_path / "store", study_of(clip=ClipByNorm(norm=1.0)))
    command = ["round", "study", "main", "--store", str(tmp_path / "store"), "--landing", str(tmp_path)]
    command += ["--engine", "numpy"]
    land(tmp_path, crowd(40))
    assert main(command) == 0
    found = seen_in(store.head("study", "main"))
    assert f"  {in_words(found, 40)}\n" in capsys.readouterr().out
    land(tmp_path, crowd(40, version=1), iteration=1, at_ms=FIRST_MS + 1)
    assert main([*command, "--json"]) == 0
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["influence"] == msgspec.to_builtins(seen_in(store.head("study", "main")))
