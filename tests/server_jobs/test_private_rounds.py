"""Rounds of private lines: noise is drawn once, the budget ends the rounds, and no exact sum is stored or shown."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.private_rounds import CASES, a_round, land
from fedping.model_store.decisions import continue_at, rollback
from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.pipeline import GradientDescent, Pipeline, RProp
from fedping.protocol.privacy import Central, LocalGaussian, Privacy, Signs, frame_of
from fedping.protocol.study import Study
from fedping.server_jobs.optimize import Arrays, BrokenLink, Transformation, Vector, first_versions
from fedping.server_jobs.optimize.optimizers import OPTIMIZERS
from fedping.server_jobs.privacy.budget import epsilon_after, spent, with_noise
from fedping.server_jobs.privacy.keys import digest_of_key
from fedping.server_jobs.privacy.noise import SystemNoise
from fedping.server_jobs.round import RoundOptions, RoundResult, recompute, run_round
from fedping.server_jobs.round.aggregate import ShardPartial
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.plan import Work
from tests.support.private import private_study
from tests.support.private_rounds import land_private, private_crowd
from tests.support.rounds import FIRST_MS, WHEN, store_with

ENGINE = NumpyEngine()
CENTRAL = Central(epsilon=3, delta=1e-6, rounds=5, population=1000, noise_multiplier=4.0)
KEY = bytes(range(32))
SAMPLED = Central(epsilon=8, delta=1e-6, rounds=5, population=1000, sampling=0.5, noise_multiplier=1.5)


def study_of(central: Central = CENTRAL, *, pipeline: Pipeline | None = None, **privacy: Any) -> Study:
    made = private_study(privacy=Privacy(central=central, **privacy))
    line = msgspec.structs.replace(made.lines[0], pipeline=pipeline or Pipeline(min_clients=1))
    return msgspec.structs.replace(made, lines=(line,))


def round_of(store: ModelStore, landing: Path, **more: Any) -> RoundResult:
    return run_round(
        store, landing, "private", "main", ENGINE, RoundOptions(clock=lambda: WHEN, code_version="test", **more)
    )


def landed(landing: Path) -> list[Path]:
    return sorted(landing.rglob("*.parquet"))


class Counted:
    """Records the number of noise draws and their sizes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, value: int | None = None) -> None:
        self.calls: list[tuple[float, int]] = []
        real = SystemNoise.integers

        def draw(noise: SystemNoise, sigma: float, size: int) -> np.ndarray:
            self.calls.append((sigma, size))
            return real(noise, sigma, size) if value is None else np.full(size, value, np.int64)

        monkeypatch.setattr(SystemNoise, "integers", draw)


def test_a_round_publishes_what_follows_from_noisy_sums_and_deletes_the_pings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = Counted(monkeypatch)
    study = study_of()
    store = store_with(tmp_path / "store", study)
    crowd = [*private_crowd(study, 200), *private_crowd(study, 100, seed=1, arm="control")]
    land_private(tmp_path / "landing", study, crowd)
    result = round_of(store, tmp_path / "landing")
    version = store.version("private", "main", 1)
    event = version.lineage.privacy
    assert event is not None
    frame = frame_of(study.lines[0].privacy, study.lines[0].spec)  # type: ignore[arg-type]
    assert drawn.calls == [(4.0 * frame.sensitivity, 7 + 3)]
    assert (event.sigma, event.releases, event.stepped, event.sampling) == (4.0 * frame.sensitivity, 1, True, 1.0)
    assert event.released["control"][:4] == (0, 0, 0, 0)
    assert version.lineage.aggregate is None
    assert version.lineage.inputs == ()
    assert version.lineage.ages == ()
    assert version.lineage.counts == {"used": sum(arm.pings for arm in version.lineage.arms.values())}
    assert abs(version.lineage.counts["used"] - 300) < 6 * 16 * np.sqrt(2)
    assert np.array_equal(np.sign(version.weights), np.sign(np.array(event.released["treatment"][:4])))
    assert landed(tmp_path / "landing") == []
    assert result.status == "published"
    assert result.sentence.startswith(f"private/main: published version 1 from about {result.clients:,} clients")
    assert "; epsilon 1.06 of 3 so far" in result.sentence
    assert result.sentence.endswith("so far, and 4 rounds are left")


def test_the_round_after_the_last_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Counted(monkeypatch)
    study = study_of()
    store = store_with(tmp_path / "store", study)
    for n in range(5):
        land_private(tmp_path / "landing", study, private_crowd(study, 60, seed=n, version=n), iteration=n)
        assert round_of(store, tmp_path / "landing").status == "published"
    folder = partition(tmp_path / "landing", "private", "main", 5)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("1700000000000-a.parquet", "x.parquet"):
        (folder / name).write_bytes(b"no Parquet: reading it would fail")
    ahead = land_private(tmp_path / "landing", study, private_crowd(study, 3, version=9), iteration=9)
    opened: list[str] = []
    monkeypatch.setattr("fedping.server_jobs.round.context.list_landed", lambda *a, **k: opened.append("listed"))
    result = round_of(store, tmp_path / "landing")
    assert (result.status, opened, len(drawn.calls)) == ("exhausted", [], 5)
    assert result.privacy is not None
    assert result.privacy.rounds_left == 0
    assert "nothing was read" in result.sentence
    assert store.head("private", "main").iteration == 5
    assert landed_files(folder) == []
    assert not ahead.exists()
    epsilons = [store.version("private", "main", n).lineage.privacy.epsilon for n in range(1, 6)]  # type: ignore[union-attr]
    assert epsilons == sorted(epsilons)


def test_a_round_cannot_look_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no pings, or too few for a step, a result is still released and charged."""
    Counted(monkeypatch, 0)
    study = study_of(pipeline=Pipeline(min_clients=50))
    store = store_with(tmp_path / "store", study)
    (tmp_path / "landing").mkdir()
    nothing = round_of(store, tmp_path / "landing")
    assert (nothing.status, nothing.clients) == ("published", 0)
    land_private(tmp_path / "landing", study, private_crowd(study, 49, version=1), iteration=1)
    few = round_of(store, tmp_path / "landing")
    assert "which repeats version 1: too few for a step, which needs 50" in few.sentence
    land_private(tmp_path / "landing", study, private_crowd(study, 50, version=2), iteration=2)
    assert round_of(store, tmp_path / "landing").status == "published"
    versions = [store.version("private", "main", n) for n in range(4)]
    assert versions[0].weights == versions[1].weights == versions[2].weights != versions[3].weights
    assert versions[0].state == versions[2].state
    assert [v.lineage.privacy.stepped for v in versions[1:]] == [False, False, True]  # type: ignore[union-attr]
    assert [v.lineage.privacy.releases for v in versions[1:]] == [1, 2, 3]  # type: ignore[union-attr]


def test_a_weight_within_the_dead_zone_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_of()
    frame = frame_of(study.lines[0].privacy, study.lines[0].spec)  # type: ignore[arg-type]
    zone = 0.5 * 4.0 * frame.sensitivity
    for noise, moves in ((int(zone), False), (int(zone) + 1, True)):
        Counted(monkeypatch, noise)
        store = store_with(tmp_path / f"store{noise}", study)
        (tmp_path / f"landing{noise}").mkdir()
        assert "repeats" not in round_of(store, tmp_path / f"landing{noise}").sentence
        assert [weight != 0 for weight in store.version("private", "main", 1).weights] == [moves] * 4


def test_what_looks_at_length_gets_a_mean_by_a_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Counted(monkeypatch, 0)
    study = study_of(pipeline=Pipeline(min_clients=1, optimizer=GradientDescent(rate=1.0)))
    store = store_with(tmp_path / "store", study)
    land_private(tmp_path / "landing", study, private_crowd(study, 30))
    round_of(store, tmp_path / "landing")
    version = store.version("private", "main", 1)
    sums = np.array(version.lineage.privacy.released["treatment"][:4])  # type: ignore[union-attr]
    zone = 0.5 * version.lineage.privacy.sigma  # type: ignore[union-attr]
    expected = np.where(np.abs(sums) < zone, 0, sums / 64 / 500)
    assert np.allclose(version.weights, expected, rtol=1e-12)
    assert np.any(expected)


def test_weights_that_no_client_could_read_are_not_published_and_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Counted(monkeypatch, 10**9)
    study = study_of(pipeline=Pipeline(min_clients=1, optimizer=GradientDescent(rate=1e30)))
    store = store_with(tmp_path / "store", study)
    (tmp_path / "landing").mkdir()
    assert round_of(store, tmp_path / "landing").status == "published"
    version = store.version("private", "main", 1)
    assert version.weights == (0, 0, 0, 0)
    assert version.lineage.privacy.stepped is False


def test_a_link_that_fails_on_what_was_released_is_no_way_to_draw_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each repetition with new noise would be another, uncharged release of the same sums."""
    drawn = Counted(monkeypatch)

    def failing(step: Vector, state: Arrays, weights: Vector) -> tuple[Vector, Arrays]:
        if np.any(step):
            raise ZeroDivisionError(f"of {step}")
        return step, state

    with monkeypatch.context() as patch:
        patch.setitem(OPTIMIZERS, GradientDescent, lambda *_: Transformation(lambda spec: {}, failing))
        study = study_of(pipeline=Pipeline(min_clients=1, optimizer=GradientDescent(rate=0.625)))
        store = store_with(tmp_path / "store", study)
        land_private(tmp_path / "landing", study, private_crowd(study, 900))
        result = round_of(store, tmp_path / "landing")
        assert (result.status, len(drawn.calls)) == ("published", 1)
        assert "its step failed, or resulted in weights that clients can't read" in result.sentence
        assert store.head("private", "main").lineage.privacy.stepped is False  # type: ignore[union-attr]
        assert landed(tmp_path / "landing") == []


def test_a_link_that_fails_whatever_was_released_fails_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = Counted(monkeypatch)
    study = study_of(pipeline=Pipeline(min_clients=10**6, optimizer=GradientDescent(rate=0.5625)))
    store = store_with(tmp_path / "store", study)
    (tmp_path / "landing").mkdir()
    with monkeypatch.context() as patch:
        patch.setitem(OPTIMIZERS, GradientDescent, lambda *_: Transformation(lambda spec: {}, lambda *_: 1 / 0))  # type: ignore[arg-type, return-value]
        with pytest.raises(BrokenLink, match="division by zero"):
            round_of(store, tmp_path / "landing")
    assert (drawn.calls, store.head("private", "main").iteration) == ([], 0)


def test_neither_rollback_nor_continuation_gives_anything_back(tmp_path: Path) -> None:
    study = study_of()
    store = store_with(tmp_path / "store", study)
    (tmp_path / "landing").mkdir()
    assert round_of(store, tmp_path / "landing").status == "published"
    rollback(store, "private", "main", 0, created=WHEN, code_version="test")
    assert spent(store, store.head("private", "main")).releases == 1
    assert round_of(store, tmp_path / "landing").status == "published"
    assert spent(store, store.head("private", "main")).releases == 2
    continue_at(store, "private", "main", 5, created=WHEN, code_version="test")  # version 4 may have been released
    assert spent(store, store.head("private", "main")).releases == 3
    assert round_of(store, tmp_path / "landing").status == "published"
    assert store.head("private", "main").lineage.privacy.releases == 4  # type: ignore[union-attr]
    continue_at(store, "private", "main", 900, created=WHEN, code_version="test")
    assert round_of(store, tmp_path / "landing").status == "exhausted"


def test_a_copy_of_the_store_does_not_release_the_same_pings_again(tmp_path: Path) -> None:
    """The noise would be different, so two releases would halve it, and each store would charge only one."""
    study = study_of()
    store = store_with(tmp_path / "store", study)
    land_private(tmp_path / "landing", study, private_crowd(study, 20))
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    copy = open_store(tmp_path / "copy")
    for _ in range(2):
        assert round_of(store, tmp_path / "landing", keep=True).status == "published"
    with pytest.raises(FedpingError, match=r"is at version 0 here, but .* released version 2.*Nothing was read"):
        round_of(copy, tmp_path / "landing", keep=True)
    continue_at(copy, "private", "main", 3, created=WHEN, code_version="test")
    assert spent(copy, copy.head("private", "main")).releases == 2
    assert round_of(copy, tmp_path / "landing", keep=True).status == "published"
    with pytest.raises(FedpingError, match=r"is at version 2 here, but .* released version 4"):
        round_of(store, tmp_path / "landing", keep=True)


def test_a_lost_round_publishes_and_tells_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    study = study_of()
    store = store_with(tmp_path / "store", study)
    land_private(tmp_path / "landing", study, private_crowd(study, 60))

    def another_first(step: str) -> None:
        if step == "stepped":
            round_of(store, tmp_path / "landing", keep=True)

    lost = round_of(store, tmp_path / "landing", on_step=another_first)
    assert lost == replace(
        RoundResult(status="lost", study="private", line="main", iteration=0, min_clients=1), min_clients=1
    )
    assert store.iterations("private", "main") == [0, 1]
    assert spent(store, store.head("private", "main")).releases == 1
    assert capfd.readouterr() == ("", "")


def test_another_study_has_a_budget_of_its_own(tmp_path: Path) -> None:
    first = study_of()
    store = store_with(tmp_path / "store", first)
    other = msgspec.structs.replace(first, name="second")
    store.create_study(other, first_versions(other, created=WHEN, code_version="test"))
    (tmp_path / "landing").mkdir()
    round_of(store, tmp_path / "landing")
    assert [spent(store, store.head(name, "main")).releases for name in ("private", "second")] == [1, 0]


def test_settings_changed_behind_its_back_do_not_undo_what_was_spent(tmp_path: Path) -> None:
    """The versions record the number of releases, regardless of the study's current settings."""
    store = store_with(tmp_path / "store", study_of())
    (tmp_path / "landing").mkdir()
    for _ in range(3):
        round_of(store, tmp_path / "landing")
    path = tmp_path / "store/private/study.json"
    path.write_bytes(msgspec.json.encode(study_of(msgspec.structs.replace(CENTRAL, rounds=3))))
    assert round_of(open_store(tmp_path / "store"), tmp_path / "landing").status == "exhausted"


@pytest.mark.parametrize("changed", [{"noise_multiplier": 0.05}, {"rounds": 1000}, {"epsilon": 100.0}])
def test_settings_changed_behind_its_back_have_no_round(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Noise and number of rounds were computed together, and earlier rounds are charged by their own settings."""
    store = store_with(tmp_path / "store", study_of())
    land_private(tmp_path / "landing", study_of(), private_crowd(study_of(), 20))
    path = tmp_path / "store/private/study.json"
    path.write_bytes(msgspec.json.encode(study_of(msgspec.structs.replace(CENTRAL, **changed))))
    with pytest.raises(FedpingError, match=r"settings of the private line 'main' differ from those.*Nothing was read"):
        round_of(open_store(tmp_path / "store"), tmp_path / "landing")
    assert store.head("private", "main").iteration == 0
    assert len(landed(tmp_path / "landing")) == 1


def test_sampling_needs_the_key_that_the_line_has_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with(tmp_path / "store", study_of(SAMPLED))
    study = study_of(SAMPLED)
    land_private(tmp_path / "landing", study, private_crowd(study, 100))
    with pytest.raises(InvalidSettings, match=r"give --privacy-key FILE.*Nothing was read"):
        round_of(store, tmp_path / "landing")
    assert round_of(store, tmp_path / "landing", privacy_key=KEY).status == "published"
    assert store.head("private", "main").lineage.privacy.key_digest == digest_of_key(KEY)  # type: ignore[union-attr]
    with pytest.raises(InvalidSettings, match="earlier rounds of line 'main' used another privacy key"):
        round_of(store, tmp_path / "landing", privacy_key=bytes(32))
    rollback(store, "private", "main", 0, created=WHEN, code_version="test")
    with pytest.raises(InvalidSettings, match="used another privacy key"):
        round_of(store, tmp_path / "landing", privacy_key=bytes(32))
    assert round_of(store, tmp_path / "landing", privacy_key=KEY).status == "published"


def test_a_study_without_its_noise_has_no_round(tmp_path: Path) -> None:
    central = msgspec.structs.replace(CENTRAL, noise_multiplier=None)
    store = store_with(tmp_path / "store", study_of(central))
    with pytest.raises(FedpingError, match="'fedping study create', which derives"):
        round_of(store, tmp_path / "landing")


def test_noise_is_derived_or_checked_when_a_study_is_made() -> None:
    one = msgspec.structs.replace(CENTRAL, noise_multiplier=None, rounds=1, epsilon=1, delta=1e-6)
    made = with_noise(study_of(one)).lines[0].privacy
    assert made is not None
    assert made.central is not None
    assert made.central.noise_multiplier == pytest.approx(4.224679)
    with pytest.raises(InvalidSettings, match=r"epsilon = .* guarantees 3; remove 'noise_multiplier'"):
        with_noise(study_of(msgspec.structs.replace(CENTRAL, noise_multiplier=3.0)))
    enough = msgspec.structs.replace(CENTRAL, noise_multiplier=20.0)
    assert with_noise(study_of(enough)) == study_of(enough)
    k = with_noise(study_of(msgspec.structs.replace(one, rounds=100), contributions=1)).lines[0].privacy
    assert k is not None
    assert k.central is not None
    assert k.central.noise_multiplier == pytest.approx(4.224679)


def test_what_is_told_of_the_last_round_is_what_was_promised() -> None:
    """On a wider grid than the noise's, 2,000 rounds with one in a thousand clients cost 0.127."""
    central = Central(
        epsilon=0.1, delta=1e-7, rounds=2000, population=10**6, sampling=0.001, noise_multiplier=2.0252438238899537
    )
    found, accountant = epsilon_after(Privacy(central=central), 2000)
    assert found == pytest.approx(0.1, rel=1e-5)
    assert found is not None
    assert found <= 0.1
    assert "grid 0.0001" in accountant


def test_pings_are_kept_if_asked_and_deleted_by_the_next_round(tmp_path: Path) -> None:
    study = study_of()
    store = store_with(tmp_path / "store", study)
    land_private(tmp_path / "landing", study, private_crowd(study, 20))
    round_of(store, tmp_path / "landing", keep=True)
    assert len(landed(tmp_path / "landing")) == 1
    land_private(tmp_path / "landing", study, private_crowd(study, 20), at_ms=FIRST_MS + 7)  # late
    land_private(tmp_path / "landing", study, private_crowd(study, 20, version=1), iteration=1)
    with pytest.raises(InterruptedError):
        round_of(store, tmp_path / "landing", on_step=_ending_at("listed"))
    assert [file.parent.name for file in landed(tmp_path / "landing")] == ["iteration=1"]
    round_of(store, tmp_path / "landing")
    assert landed(tmp_path / "landing") == []


def test_clients_that_protect_themselves_are_counted_exactly_and_not_charged(tmp_path: Path) -> None:
    made = private_study(privacy=Privacy(local=LocalGaussian(epsilon=8, delta=1e-6), contribution=Signs()))
    line = msgspec.structs.replace(made.lines[0], pipeline=Pipeline(min_clients=30, optimizer=RProp()))
    study = msgspec.structs.replace(made, lines=(line,))
    store = store_with(tmp_path / "store", study)
    (tmp_path / "landing").mkdir()
    assert round_of(store, tmp_path / "landing").status == "nothing"
    land_private(tmp_path / "landing", study, private_crowd(study, 20))
    waiting = round_of(store, tmp_path / "landing")
    assert (waiting.status, waiting.clients) == ("waiting", 20)
    land_private(tmp_path / "landing", study, private_crowd(study, 20, seed=1), at_ms=FIRST_MS + 1)
    done = round_of(store, tmp_path / "landing")
    assert (done.status, done.clients, done.arms["treatment"].loss) == ("published", 40, None)
    event = store.head("private", "main").lineage.privacy
    assert event is not None
    assert (event.sigma, event.epsilon, event.delta) == (0.0, None, None)


def _ending_at(moment: str) -> Any:
    def on_step(step: str) -> None:
        if step == moment:
            raise InterruptedError(step)

    return on_step


@pytest.mark.parametrize("moment", ["repaired", "listed", "aggregated", "drawn", "stepped", "published", "deleted"])
def test_a_round_that_ends_anywhere_releases_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    drawn = Counted(monkeypatch)
    study = study_of()
    store = store_with(tmp_path / "store", study)
    land_private(tmp_path / "landing", study, private_crowd(study, 40))
    with pytest.raises(InterruptedError):
        round_of(store, tmp_path / "landing", on_step=_ending_at(moment))
    seen = moment in ("published", "deleted")
    assert store.head("private", "main").iteration == int(seen)
    assert len(drawn.calls) == (moment in ("drawn", "stepped", "published", "deleted"))
    assert spent(store, store.head("private", "main")).releases == int(seen)
    round_of(store, tmp_path / "landing")
    assert spent(store, store.head("private", "main")).releases == 1 + int(seen)
    assert landed(tmp_path / "landing") == []


def test_versions_are_computed_again_from_what_was_released(tmp_path: Path) -> None:
    study = study_of()
    store = store_with(tmp_path / "store", study)
    for n in range(3):
        land_private(tmp_path / "landing", study, private_crowd(study, 60, seed=n, version=n), iteration=n)
        round_of(store, tmp_path / "landing")
    rollback(store, "private", "main", 1, created=WHEN, code_version="test")
    round_of(store, tmp_path / "landing")
    assert landed(tmp_path / "landing") == []
    for n in range(6):
        again = recompute(store, tmp_path / "landing", "private", "main", n, ENGINE)
        assert (again.identical, again.differences) == (True, ()), n


@pytest.mark.parametrize("central", [CENTRAL, SAMPLED])
def test_too_little_noise_is_refused_before_anything_is_read(tmp_path: Path, central: Central) -> None:
    """The study was stored by a program that didn't check it with the accountant."""
    study = study_of(msgspec.structs.replace(central, noise_multiplier=0.5))
    store = store_with(tmp_path / "store", study)
    pings = land_private(tmp_path / "landing", study, private_crowd(study, 60))
    with pytest.raises(FedpingError, match=r"too little noise: 5 releases .* Nothing was read"):
        round_of(store, tmp_path / "landing", privacy_key=KEY)
    assert pings.is_file()
    assert store.head("private", "main").iteration == 0


def test_a_line_that_began_with_too_little_noise_ends_with_its_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(msgspec.structs.replace(CENTRAL, noise_multiplier=2.5))
    store = store_with(tmp_path / "store", study)
    (tmp_path / "landing").mkdir()
    with monkeypatch.context() as before:  # like earlier rounds without this check
        before.setattr("fedping.server_jobs.round.private.beyond_promise", lambda privacy, releases: None)
        round_of(store, tmp_path / "landing")
    assert round_of(store, tmp_path / "landing").status == "published"
    with pytest.raises(FedpingError, match=r"3 releases with noise_multiplier = 2\.5 spend epsilon = 3"):
        round_of(store, tmp_path / "landing")


def test_stores_that_share_a_key_and_the_name_of_a_study_toss_other_coins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Counted(monkeypatch, 0)
    study = study_of(SAMPLED)
    released = []
    for name, created in (("one", WHEN), ("same", WHEN), ("other", WHEN.replace("2026", "2025"))):
        store = open_store(tmp_path / name, create=True)
        store.create_study(study, first_versions(study, created=created, code_version="test"))
        land_private(tmp_path / name, study, private_crowd(study, 200))
        round_of(store, tmp_path / name, privacy_key=KEY)
        event = store.version("private", "main", 1).lineage.privacy
        assert event is not None
        released.append(event.released)
    assert released[0] == released[1] != released[2]


def _times(factor: float) -> Any:
    real = SystemNoise.integers
    return lambda noise, sigma, size: real(noise, factor * sigma, size)


def test_whether_noise_of_the_declared_size_was_added_shows_where_pings_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, landing = study_of(SAMPLED), tmp_path / "landing"
    store = store_with(tmp_path / "store", study)
    for n, sigmas in enumerate((1.0, 0.02, 6.0)):
        land_private(landing, study, private_crowd(study, 60, seed=n, version=n), iteration=n)
        with monkeypatch.context() as patch:
            patch.setattr(SystemNoise, "integers", _times(sigmas))
            round_of(store, landing, privacy_key=KEY, keep=True)
        land_private(
            landing, study, private_crowd(study, 90, seed=9, version=n), iteration=n, at_ms=2 * FIRST_MS
        )  # late
        seen = recompute(store, landing, "private", "main", n + 1, ENGINE, KEY)
        assert seen.identical
        assert seen.noise is (sigmas == 1.0)
        assert recompute(store, landing, "private", "main", n + 1, ENGINE).noise is None
    with pytest.raises(InvalidSettings, match="used another privacy key"):
        recompute(store, landing, "private", "main", 1, ENGINE, bytes(32))


def test_a_released_number_that_was_changed_shows(tmp_path: Path) -> None:
    study = study_of()
    store = store_with(tmp_path / "store", study)
    land_private(tmp_path / "landing", study, private_crowd(study, 500))
    round_of(store, tmp_path / "landing")
    path = tmp_path / "store/private/main/versions/1.json"
    version = store.version("private", "main", 1)
    event = version.lineage.privacy
    assert event is not None
    first, *others = event.released["treatment"]
    event = msgspec.structs.replace(event, released={**event.released, "treatment": (-first, *others)})
    lineage = msgspec.structs.replace(version.lineage, privacy=event)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(version, lineage=lineage)))
    again = recompute(store, tmp_path / "landing", "private", "main", 1, ENGINE)
    assert not again.identical
    assert any(each.startswith("weights differs") for each in again.differences)


class Retried(NumpyEngine):
    """An engine that runs all tasks twice, as with lost or slow executors."""

    def partials(self, work: Work) -> Iterator[ShardPartial]:
        list(super().partials(work))
        return super().partials(work)


class Gone(NumpyEngine):
    """An engine that reads after another round has published and deleted the pings."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self._other = other

    def partials(self, work: Work) -> Iterator[ShardPartial]:
        self._other()
        return super().partials(work)


def test_noise_is_drawn_once_however_often_tasks_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Counted(monkeypatch)
    study = study_of()
    store = store_with(tmp_path / "store", study)
    land_private(tmp_path / "landing", study, private_crowd(study, 40))
    run_round(
        store, tmp_path / "landing", "private", "main", Retried(), RoundOptions(clock=lambda: WHEN, code_version="test")
    )
    assert len(drawn.calls) == 1


def test_a_round_whose_pings_another_one_has_deleted_says_that_it_was_second(tmp_path: Path) -> None:
    study = study_of()
    store = store_with(tmp_path / "store", study)
    land_private(tmp_path / "landing", study, private_crowd(study, 40))
    gone = Gone(lambda: round_of(store, tmp_path / "landing"))
    result = run_round(
        store, tmp_path / "landing", "private", "main", gone, RoundOptions(clock=lambda: WHEN, code_version="test")
    )
    assert (result.status, store.iterations("private", "main")) == ("lost", [0, 1])


def test_what_privacy_adds_to_a_round_can_be_measured_again_and_again(tmp_path: Path) -> None:
    study = CASES["private"]
    land(tmp_path / "landed", study, 40, seed=1)
    assert all(a_round(tmp_path, tmp_path / "landed", study) > 0 for _ in range(2))
