"""The demo learns, ends with complete files, and leaves nothing behind when interrupted at any moment."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.experiments.demo import DemoSettings, Progress, run_demo
from fedping.experiments.server_process import ingest_process
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.location import place_of
from tests.support import forked
from tests.support.effort import few_or_all
from tests.support.object_server import SCHEMES, bucket_of
from tests.support.processes import left_over, marked, new_mark, wait_until

ROOT = Path(__file__).parents[2]


def check_whole(out: Path) -> None:
    """Check that every visible file of an interrupted demo is readable, and that no partly written file exists."""
    assert not [p for p in out.rglob("*") if p.name.endswith((".tmp", ".new")) or p.name.startswith(".loss")]
    for path in out.rglob("*.parquet"):
        pq.read_table(path)
    for path in (out / "store").rglob("*.json"):
        json.loads(path.read_bytes())


@pytest.mark.long
@pytest.mark.thorough
def test_the_trained_arm_ends_clearly_below_the_control_arms(tmp_path: Path) -> None:
    """The control arms, with the same users and version 0, don't improve. The seed is fixed."""
    progress = Progress()
    clients, iterations = few_or_all(600, 1200), few_or_all(5, 8)
    settings = DemoSettings(out=tmp_path / "out", clients=clients, iterations=iterations, seed=5, engine="numpy")
    outcome = run_demo(settings, progress)
    last = outcome.iterations[-1].arms
    losses = {name: arm.loss for name, arm in last.items()}
    assert all(loss is not None for loss in losses.values())
    assert losses["treatment"] < few_or_all(6, 4) / 10 * min(losses["control"], losses["control-no-decay"])
    assert [row.iteration for row in outcome.iterations] == list(range(iterations))
    assert outcome.figure.stat().st_size > 10_000
    landed = sum(pq.read_metadata(p).num_rows for p in outcome.landing.rglob("*.parquet"))
    assert landed == sum(row.pings for row in outcome.iterations)
    head = open_store(outcome.store).head("demo", "main")
    assert head.iteration == iterations
    assert open_store(outcome.store).studies.declared("demo").state == "ended"
    check_whole(tmp_path / "out")


@pytest.mark.long
@pytest.mark.parametrize("scheme", [pytest.param(each, marks=[pytest.mark.long] * (each != "s3")) for each in SCHEMES])
def test_the_whole_journey_keeps_its_store_and_its_pings_in_a_bucket(
    scheme: str, tmp_path: Path, object_servers: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    with bucket_of(object_servers(scheme), scheme) as bucket:
        asked = ["demo", "--clients", "500", "--iterations", "2", "--engine", "numpy", "--out", str(tmp_path / "out")]
        assert main([*asked, "--bucket", f"{bucket.url}/demo"]) == 0
        assert f"store and pings to {bucket.url}/demo" in capsys.readouterr().out.replace("\n", "")
        store, landing = (place_of(f"{bucket.url}/demo/{name}") for name in ("store", "landing"))
        assert open_store(store).head("demo", "main").iteration == 2
        for version in ("1", "2"):
            assert (
                main(["store", "recompute", "demo", "main", version, "--store", str(store), "--landing", str(landing)])
                == 0
            )
        assert not list((tmp_path / "out" / "journal").glob("*.closed"))
        asked[asked.index("--out") + 1] = str(tmp_path / "again")
        assert main([*asked, "--bucket", f"{bucket.url}/demo"]) == 2
        assert "Give --bucket another folder" in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.usefixtures("warm_commands")
def test_it_runs_spark_rounds_and_tells_where_everything_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--clients", "500", "--iterations", "2", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "version   1:" in said
    assert str(tmp_path / "out" / "loss.png") in said.replace("\n", "")
    check_whole(tmp_path / "out")


@pytest.mark.long
@pytest.mark.spark
def test_the_command_runs_spark_rounds_and_tells_where_everything_lies(tmp_path: Path) -> None:
    mark = new_mark()
    command = [sys.executable, "-m", "fedping", "demo", "--clients", "500", "--iterations", "2"]
    ran = forked.run(
        [*command, "--out", str(tmp_path / "out")], cwd=ROOT, env={**os.environ, **mark}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "version   1:" in ran.stdout
    assert str(tmp_path / "out" / "loss.png") in ran.stdout
    assert left_over(mark) == []
    check_whole(tmp_path / "out")


@pytest.mark.spark
@pytest.mark.parametrize(
    "moment",
    [
        "ingest starts",
        pytest.param("Spark starts", marks=pytest.mark.long),
        pytest.param("the first version is published", marks=pytest.mark.long),
    ],
)
def test_ctrl_c_leaves_no_process_and_no_half_written_file(tmp_path: Path, moment: str) -> None:
    def reached(mark: dict[str, str]) -> bool:
        if moment == "the first version is published":
            return (tmp_path / "out/store/demo/main/versions/1.json").exists()
        word = {"ingest starts": " ingest ", "Spark starts": "/bin/java -cp"}[moment]
        return any(word in command for command in marked(mark).values())

    check_interrupted(tmp_path / "out", lambda mark: wait_until(lambda: reached(mark), 240))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("after", [0.3, 0.6, 1.0, 1.5, 2.0, 2.5, 3.5, 4.5, 6.0, 8.0, 11.0])
def test_ctrl_c_at_any_moment_leaves_no_process_and_no_half_written_file(tmp_path: Path, after: float) -> None:
    check_interrupted(tmp_path / "out", lambda _: time.sleep(after) or True, before_its_first_word=after < 1)


def check_interrupted(out: Path, when: Callable[[dict[str, str]], bool], before_its_first_word: bool = False) -> None:
    """Interrupt a demo like a terminal, when a function of its processes' mark returns True."""
    mark = new_mark()
    command = [sys.executable, "-m", "fedping", "demo", "--clients", "800", "--iterations", "200"]
    started = forked.Popen(
        [*command, "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, **mark},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    reached = when(mark)
    still_running = started.poll() is None
    os.killpg(started.pid, signal.SIGINT)  # to the whole group, the JVM included
    said, _ = started.communicate(timeout=240)
    assert left_over(mark) == []
    assert reached, said
    assert still_running, said
    assert started.returncode in (130, -signal.SIGINT), said
    assert "Traceback" not in said or before_its_first_word
    check_whole(out)
    if (out / "store" / "demo" / "study.json").exists():
        assert open_store(out / "store").studies.declared("demo").state == "ended"


def test_ingest_dies_with_a_demo_that_is_killed(tmp_path: Path) -> None:
    mark = new_mark()
    code = (
        "import sys, time; from pathlib import Path; from fedping.experiments.server_process import ingest_process\n"
        "from fedping.model_store.store import open_store\n"
        "out = Path(sys.argv[1]); open_store(out / 'store', create=True); (out / 'store').mkdir()\n"
        "with ingest_process(out / 'store', out / 'landing', out / 'log'):\n"
        "    print('up', flush=True); time.sleep(600)\n"
    )
    started = forked.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, **mark},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "up\n"
    started.kill()
    started.wait()
    assert left_over(mark) == []


def test_an_ingest_that_cannot_start_is_told_with_its_own_words(tmp_path: Path) -> None:
    with (
        pytest.raises(FedpingError, match=r"ingest did not start: .*no model store"),
        ingest_process(tmp_path / "none", tmp_path / "landing", tmp_path / "log"),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "absent", "extras"),
    [
        ((), {"matplotlib", "scipy", "pyspark"}, "fedping[analysis]"),
        ((), {"pyspark"}, "fedping[analysis]"),
        (("--engine", "numpy", "--secure"), {"opendp"}, "fedping[privacy]"),
        (
            ("--secure", "--bucket", "s3://bucket/folder"),
            {"matplotlib", "obstore", "opendp"},
            "fedping[analysis,privacy,objects]",
        ),
        (("--engine", "numpy", "--clients", "0"), set(), ""),
    ],
)
def test_all_that_is_not_installed_is_told_before_anything_is_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    absent: set[str],
    extras: str,
) -> None:
    monkeypatch.setattr("fedping.extras.find_spec", lambda name: None if name in absent else object())
    assert main(["demo", "--out", str(tmp_path / "out"), *options]) != 0
    said = capsys.readouterr().err
    assert (f'pip install "{extras}"' in said) is bool(absent), said
    assert not (tmp_path / "out").exists()


def test_too_few_clients_for_a_step_is_said_and_a_used_folder_refused(tmp_path: Path) -> None:
    with pytest.raises(FedpingError, match=r"of at least 200 clients .*more --clients"):
        run_demo(DemoSettings(out=tmp_path / "out", clients=50, iterations=1, engine="numpy"), Progress())
    assert open_store(tmp_path / "out" / "store").studies.declared("demo").state == "ended", (
        "no round of it comes any more"
    )
    with pytest.raises(InvalidSettings, match="not an empty folder"):
        DemoSettings(out=tmp_path / "out")


@pytest.mark.long
def test_with_two_servers_it_learns_and_each_share_alone_is_noise(tmp_path: Path) -> None:
    """The seed is fixed, the shares are not; each p is below 1e-6 once in a million runs."""
    out = tmp_path / "out"
    settings = DemoSettings(out=out, clients=600, iterations=4, seed=5, engine="numpy", secure=True)
    outcome = run_demo(settings, Progress())
    first, last = outcome.iterations[0].arms["treatment"], outcome.iterations[-1].arms["treatment"]
    assert first.loss is not None
    assert last.loss is not None
    assert last.loss < 0.8 * first.loss
    seen = outcome.seen
    assert seen is not None
    assert seen.clients > 100
    assert min(seen.leader_p, seen.helper_p) > 1e-6
    assert set(seen.votes.tolist()) <= {-1, 0, 1}
    assert np.count_nonzero(seen.votes) > 0
    told = [open_store(outcome.store).version("demo", "main", number).lineage.privacy for number in range(1, 5)]
    assert len({event.shared.answer for event in told if event is not None and event.shared is not None}) == 4
    assert not list(outcome.landing.rglob("*.parquet")), "pings of a private line go once they are released"
    check_whole(out)


def test_a_page_that_shows_what_is_sent_is_refused_where_it_is_shared(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="leave out --stay or --secure"):
        DemoSettings(out=tmp_path / "out", page=True, secure=True)


def test_what_two_servers_saw_is_said_to_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    given = ["--clients", "300", "--iterations", "1", "--seed", "5", "--engine", "numpy", "--out", str(out)]
    assert main(["demo", "--secure", *given]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "selected rank" not in said  # a vector doesn't contain it
    assert "a loss above 600 counts as 600, and each server adds noise" in said
    assert "only a p near 0, say below 0.001, would show a pattern" in said
    assert f"helper status --folder {out / 'helper'}" in said
    assert f"pings, kept until their round {out / 'landing'}" in said
