"""Simulated private studies: one ping for each client and version, budgets, the same bits after kills, and files."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from fedping.client_sim.fleet.private_pings import PrivatePings
from fedping.client_sim.learning.states import in_memory
from fedping.experiments.privacy.mechanisms import SeededNoise
from fedping.experiments.run_folder import DamagedRun
from fedping.experiments.simulate import PrivateSummary, experiment_from_toml, simulate
from fedping.experiments.simulate.line_run import coins_key
from fedping.experiments.simulate.people import People
from fedping.experiments.simulate.private_ticks import PrivateTickMaker
from fedping.experiments.simulate.run import Progress
from fedping.experiments.simulate.ticks import Models
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.enrolment import enrol
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.privacy import frame_of
from fedping.protocol.study import public_study
from fedping.server_jobs.privacy.keys import digest_of_key
from fedping.server_jobs.round import NumpyEngine, RoundOptions, recompute, run_round
from tests.support import forked
from tests.support.private import private_study
from tests.support.rounds import WHEN, store_with
from tests.support.small_experiment import contents, private_experiment_file

ROOT = Path(__file__).parents[2]
TICK_MS = 1_800_000
CENTRAL_OF_ALL = "central = {{ epsilon = 8.0, delta = 1e-4, rounds = 8, population = 600 }}"


def run(file: Path, out: Path, threads: int = 1) -> PrivateSummary:
    summary = simulate(*experiment_from_toml(file), out, threads)
    assert isinstance(summary, PrivateSummary)
    return summary


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a finished run, with its experiment next to it."""
    folder = tmp_path_factory.mktemp("hushed")
    run(private_experiment_file(folder), folder / "out")
    return folder


def test_the_same_seed_gives_the_same_bits_whatever_the_threads(done: Path, tmp_path: Path) -> None:
    run(done / "experiment.toml", tmp_path / "out", threads=3)
    assert contents(tmp_path / "out") == contents(done / "out")


def test_coins_are_tossed_by_a_key_of_the_seed_which_is_nowhere(tmp_path: Path) -> None:
    events = []
    for name, seed in (("one", 4), ("again", 4), ("other", 5)):
        run(private_experiment_file(tmp_path, sampling=0.5, iterations=1, seed=seed), tmp_path / name)
        event = open_store(tmp_path / name / "store").version("hushed", "main", 1).lineage.privacy
        assert event is not None
        assert event.key_digest == digest_of_key(coins_key(seed))
        assert not any(coins_key(seed).hex().encode() in data for data in contents(tmp_path / name).values())
        events.append(event)
    one, again, other = events
    assert one == again
    assert one.released != other.released
    assert one.key_digest != other.key_digest


@pytest.mark.parametrize(
    ("function", "nth", "moment"),
    [
        ("replace", 10, "before"),  # clients' state after a tick in the middle of an iteration
        ("link", 4, "after"),  # a version published, with its pings not yet deleted
        pytest.param("link", 4, "before", marks=pytest.mark.long),  # noise drawn, and its version not published
        ("unlink", 10, "before"),  # some pings of a released version deleted
    ],
)
def test_a_killed_run_ends_with_the_same_bits(done: Path, tmp_path: Path, function: str, nth: int, moment: str) -> None:
    def process(function: str) -> int:
        arguments = [done / "experiment.toml", tmp_path / "out", function, str(nth), moment]
        command = [sys.executable, "-m", "tests.support.small_experiment", *map(str, arguments)]
        return forked.run(command, cwd=ROOT, timeout=180).returncode

    assert process(function) == -9
    assert (tmp_path / "out/clients").is_dir()  # killed in the middle of it
    assert process("nothing") == 0
    after = contents(tmp_path / "out")
    assert {name: data for name, data in after.items() if not name.endswith(".tmp")} == contents(done / "out")


def test_clients_of_whom_nobody_knows_what_they_have_contributed_do_not_go_on(done: Path, tmp_path: Path) -> None:
    def stop(now: Progress) -> None:
        if now.phase == "optimization" and now.done == 2:
            raise KeyboardInterrupt

    settings = experiment_from_toml(done / "experiment.toml")
    with pytest.raises(KeyboardInterrupt):
        simulate(*settings, tmp_path / "out", 1, stop)
    for file in (tmp_path / "out/clients").iterdir():
        file.write_bytes(b"\x93NUMPY")
    with pytest.raises(DamagedRun, match=r"contributions .* not in"):
        simulate(*settings, tmp_path / "out", 1)


def test_nothing_is_left_but_what_was_released(done: Path) -> None:
    left = contents(done / "out")
    assert not [name for name in left if name.endswith((".parquet", ".npy"))]
    assert {name for name in left if not name.startswith(("store/", "landing/.published/"))} == {
        "experiment.json",
        "environment.json",
        "summary.json",
    }
    store = open_store(done / "out/store")
    assert store.studies.declared("hushed").simulated
    assert store.studies.declared("hushed").state == "ended"
    for number in (1, 2, 3):
        lineage = store.version("hushed", "main", number).lineage
        assert lineage.aggregate is None
        assert lineage.inputs == ()
        assert recompute(store, done / "out/landing", "hushed", "main", number, NumpyEngine()).identical


def test_nobody_counts_pings_while_it_runs(done: Path, tmp_path: Path) -> None:
    told: list[Progress] = []
    simulate(*experiment_from_toml(done / "experiment.toml"), tmp_path / "out", 1, told.append)
    assert {now.pings for now in told} == {None}
    assert told[-1].phase == "summary"


def test_the_summary_is_what_the_lineages_say(done: Path, tmp_path: Path) -> None:
    summary = run(done / "experiment.toml", done / "out")
    line = summary.lines["main"]
    assert (line.version, line.spent.releases, line.spent.rounds_left, line.exhausted) == (3, 3, 1, False)
    [result] = summary.results.lines
    events = [open_store(done / "out/store").version("hushed", "main", n).lineage.privacy for n in (1, 2, 3)]
    made = experiment_from_toml(done / "experiment.toml")[1].line("main")
    assert made.privacy is not None
    metric, m = frame_of(made.privacy, made.spec).metric, made.spec.m
    for arm in result.arms:
        released = [event.released[arm.arm] for event in events if event is not None]
        assert arm.contributions.value == pytest.approx(sum(each[m] for each in released) / metric)
        assert arm.contributions.error > 0
    treatment = result.arms[0]
    # A third of them choose something within an hour.
    assert treatment.contributions.value == pytest.approx(3 * 600 * 0.6 * 0.34, rel=0.3)
    assert treatment.loss is not None
    assert treatment.loss.low < treatment.loss.value < treatment.loss.high


def test_a_line_without_a_round_left_ends_there_and_the_others_go_on(tmp_path: Path) -> None:
    other = """
[[arms]]
name = "beside"
share = 0.2
line = "other"
applies = true
submits = true
[[lines]]
name = "other"
[lines.pipeline]
min_clients = 5
[lines.privacy]
loss = [0, 100]
[lines.privacy.local]
mechanism = "one-sign"
epsilon = 4.0
[lines.spec]
name = "frecency-2018"
model = "frecency-2018"
weights = [
{weights}
]
"""
    file = private_experiment_file(tmp_path, rounds=2, sampling=1.0, iterations=4, ticks=1, more_study=other)
    summary = run(file, tmp_path / "out")
    main, beside = summary.lines["main"], summary.lines["other"]
    assert (main.version, main.exhausted) == (2, True)
    assert main.spent.epsilon == pytest.approx(8.0)
    assert (beside.version, beside.exhausted, beside.spent.most) == (4, False, None)


@pytest.mark.parametrize("mechanism", ['"one-sign", epsilon = 4.0', '"gaussian", epsilon = 4.0, delta = 1e-6'])
def test_clients_that_add_the_noise_themselves_are_counted_and_draw_from_the_seed(
    tmp_path: Path, mechanism: str
) -> None:
    file = private_experiment_file(
        tmp_path, guarantee=f"local = {{{{ mechanism = {mechanism} }}}}", iterations=2, ticks=1
    )
    summary = run(file, tmp_path / "out")
    [line] = summary.results.lines
    assert summary.lines["main"].version == 2
    assert line.noise == 0
    assert line.arms[0].contributions.value == round(line.arms[0].contributions.value) > 100
    assert line.arms[0].loss is None
    run(file, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "out")


def test_ids_that_an_attack_invents_contribute_as_clients_do(tmp_path: Path) -> None:
    more = '[attack]\nattack = "sign_flip"\ninvented = 4'
    honest = run(private_experiment_file(tmp_path, iterations=1), tmp_path / "honest")
    attacked = run(private_experiment_file(tmp_path, iterations=1, more=more), tmp_path / "attacked")
    before, after = (each.results.lines[0].arms[0].contributions.value for each in (honest, attacked))
    assert after == pytest.approx(5 * before, rel=0.3)


class Ticks:
    """Ticks of a private study's clients, with a new version every second tick."""

    def __init__(self, file: Path) -> None:
        self.experiment, self.study = experiment_from_toml(file)
        self.people = People(self.experiment, self.study)
        self.folder = file.parent / "clients"
        phase = self.experiment.optimization
        self.means = self.people.activity.means(phase.searches_per_day, phase.activity_shape)
        self.weights = dict.fromkeys(range(20), self.study.lines[0].spec.start_array)

    def maker(self, pool: ThreadPoolExecutor) -> PrivateTickMaker:
        return PrivateTickMaker(self.experiment, self.study, self.people, pool, self.folder)

    def tables(self, maker: PrivateTickMaker, tick: int) -> list[tuple[int, pa.Table]]:
        models = {"main": Models(np.arange(tick + 1) // 2, self.weights)}
        return [(part.version, part.table) for part in maker.parts(tick, tick // 2, self.means, models)]

    def clients(self, version: int) -> dict[bytes, int]:
        """Return the client of each id in a version."""
        pings = PrivatePings(public_study(self.study), self.experiment.seed, in_memory)
        found = {}
        for position, arm in enumerate(self.study.arms):
            who = np.flatnonzero(self.people.arm == position)
            ids = pings.client_ids(arm, np.full(len(who), version), self.people.roots(who))
            found.update(zip((each.bytes for each in ids), who.tolist(), strict=True))
        return found


def rows(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def test_a_client_sends_one_ping_a_version_under_another_id_each_time_and_after_a_delay(tmp_path: Path) -> None:
    ticks = Ticks(private_experiment_file(tmp_path, delay=60))
    sent: dict[int, list[bytes]] = {}
    late = 0
    with ThreadPoolExecutor(2) as pool:
        maker = ticks.maker(pool)
        for tick in range(8):
            for version, table in ticks.tables(maker, tick):
                late += version < tick // 2
                for client, arm, told in rows(table, "client_id", "study_variation", "model_version"):
                    dealt = enrol(ticks.study, str(UUID(bytes=client)))
                    assert dealt is not None
                    assert (dealt.name, told) == (arm, version)
                    sent.setdefault(version, []).append(client)
                received = table.column("received_at").cast(pa.int64()).to_numpy() - ticks.experiment.start_ms
                assert (received // TICK_MS == tick).all()
    assert late > 0  # some were under way when the next version came
    assert set(sent) == {0, 1, 2, 3}
    assert not set.intersection(*map(set, sent.values()))
    for version, ids in sent.items():
        whose = ticks.clients(version)
        assert len({whose[each] for each in ids}) == len(ids) > 100


def test_clients_keep_to_their_number_of_contributions(tmp_path: Path) -> None:
    capped = "contributions = 2\n" + CENTRAL_OF_ALL
    ticks = Ticks(private_experiment_file(tmp_path, guarantee=capped, iterations=8))
    often = np.zeros(600, np.int64)
    with ThreadPoolExecutor(1) as pool:
        maker = ticks.maker(pool)
        for tick in range(16):
            for version, table in ticks.tables(maker, tick):
                whose = ticks.clients(version)
                for (client,) in rows(table, "client_id"):
                    often[whose[client]] += 1
    assert often.max() == 2
    assert (often > 0).sum() > 100


def test_clients_go_on_from_a_tick_as_they_were(tmp_path: Path) -> None:
    ticks = Ticks(private_experiment_file(tmp_path, delay=60))
    with ThreadPoolExecutor(1) as pool:
        maker = ticks.maker(pool)
        whole = [ticks.tables(maker, tick) for tick in range(8)]
        again = ticks.maker(pool)
        first = again.first_needed(5)
        assert first == 3
        again.go_on_from(first)
        made = [ticks.tables(again, tick) for tick in range(first, 8)]
    assert [
        (version, set(rows(table, "document_id", "client_id", "update")))
        for parts in made[2:]
        for version, table in parts
    ] == [
        (version, set(rows(table, "document_id", "client_id", "update")))
        for parts in whole[5:]
        for version, table in parts
    ]


def test_what_cannot_be_simulated_of_a_private_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"Remove \[evaluation\]"):
        experiment_from_toml(private_experiment_file(tmp_path, more="[evaluation]\nticks = 3"))
    file = private_experiment_file(tmp_path)
    text = file.read_text()
    file.write_text(text.replace('{ by = "time", ticks = 2 }', '{ by = "clients", clients = 5 }'))
    with pytest.raises(InvalidSettings, match="the time of a round may not depend on who has sent"):
        experiment_from_toml(file)
    file.write_text(text)
    study = (tmp_path / "study.toml").read_text()
    (tmp_path / "study.toml").write_text(study.replace('model = "frecency-2018"', 'model = "linear-regression"'))
    with pytest.raises(InvalidSettings, match="ranks no pages, but simulated users only rank pages"):
        experiment_from_toml(file)


def test_no_round_takes_seeded_noise_of_a_study_that_is_not_simulated(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", private_study())
    (tmp_path / "landing").mkdir()
    with pytest.raises(FedpingError, match="not declared to be simulated"):
        run_round(
            store,
            tmp_path / "landing",
            "private",
            "main",
            NumpyEngine(),
            RoundOptions(clock=lambda: WHEN, code_version="test", noise=SeededNoise(1)),
        )
    assert store.head("private", "main").iteration == 0


def test_the_command_says_that_nobody_is_protected_and_why_a_line_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = private_experiment_file(tmp_path, rounds=1, iterations=5)
    assert main(["simulate", str(file), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "Reproducible noise protects no one." in said
    assert "line main: version 1. Epsilon 8 of 8 is spent, by 1 round; its guarantee allows no further round." in said
    assert "The line ended there." in said
    assert "contributions" in said
