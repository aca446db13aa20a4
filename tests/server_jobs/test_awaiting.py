"""A round that waits for a number of clients or for a time, whichever is first; and the clients that count."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from fedping.main import main
from fedping.model_store import ModelStore
from fedping.model_store.store import open_store
from fedping.protocol.landing import open_landing
from fedping.protocol.study import Study
from fedping.server_jobs.round.wait_for_clients import ArrivalCounter, Arrivals, Timer, Wait, wait_for_clients
from tests.support import forked
from tests.support.institutions import ARMS, ROOT, STUDY, tumours
from tests.support.model_pings import Said, land
from tests.support.private import private_study
from tests.support.rounds import store_with
from tests.support.versions import after

M = 31


@pytest.fixture
def study() -> Study:
    return replace(tumours(arms=ARMS, min_clients=2), enrolment="hash")


@pytest.fixture
def store(study: Study, tmp_path: Path) -> ModelStore:
    return store_with(tmp_path / "store", study)


@dataclass
class Waiting:
    """A clock that advances only by waiting; planned events happen during the wait."""

    plan: list[Callable[[], None]]
    now: float = 0.0
    told: list[tuple[Arrivals, ...]] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.plan:
            self.plan.pop(0)()

    def until(self, store: ModelStore, landing: Path, wait: Wait) -> tuple[Arrivals, ...]:
        counters = [ArrivalCounter(open_landing(landing), store.study(STUDY), "main", wait.clients)]
        timer = Timer(lambda: self.now, self.sleep)
        return wait_for_clients(store, counters, wait.seconds, timer, self.told.append)


def test_it_ends_once_so_many_clients_have_sent(store: ModelStore, study: Study, tmp_path: Path) -> None:
    some = [Said(client=k, arm="hospitals", document=k) for k in range(3)]
    waiting = Waiting([lambda one=one: land(tmp_path, study, one, m=M) for one in some])  # type: ignore[misc]
    assert waiting.until(store, tmp_path, Wait(3, 3600)) == (Arrivals("main", 3, 3),)
    assert waiting.now == 6.0
    assert [came[0].clients for came in waiting.told] == [0, 1, 2, 3]


def test_it_ends_when_time_is_over(store: ModelStore, study: Study, tmp_path: Path) -> None:
    waiting = Waiting([lambda: land(tmp_path, study, Said(client=1, arm="hospitals"), m=M)])
    assert waiting.until(store, tmp_path, Wait(3, 9.0)) == (Arrivals("main", 1, 3),)
    assert waiting.now == 9.0


def test_without_a_number_it_waits_for_as_many_as_a_round_takes(
    store: ModelStore, study: Study, tmp_path: Path
) -> None:
    land(tmp_path, study, *(Said(client=k, arm="hospitals") for k in range(2)), m=M)
    assert Waiting([]).until(store, tmp_path, Wait(None, 9.0)) == (Arrivals("main", 2, 2),)


def test_who_cannot_be_counted_is_not_waited_for(store: ModelStore, study: Study, tmp_path: Path) -> None:
    land(tmp_path, study, Said(client=1, arm="hospitals"), Said(client=1, arm="hospitals", document=1), m=M)
    land(tmp_path, study, Said(client=2, arm="held-out"), m=M)
    land(tmp_path, study, Said(client=3, arm="held-out", named="hospitals"), m=M)
    land(tmp_path, study, Said(client=4, arm="hospitals", version=1), m=M)
    land(tmp_path, study, Said(client=5, arm="hospitals", document=2))  # no update
    assert Waiting([]).until(store, tmp_path, Wait(9, 0.0)) == (Arrivals("main", 1, 9),)


def test_after_another_round_it_waits_for_clients_of_the_new_version(
    store: ModelStore, study: Study, tmp_path: Path
) -> None:
    land(tmp_path, study, *(Said(client=k, arm="hospitals") for k in range(2)), m=M)
    land(tmp_path, study, Said(client=1, arm="hospitals", version=1), m=M)
    waiting = Waiting([lambda: store.publish(after(store.head(STUDY, "main")))])
    assert waiting.until(store, tmp_path, Wait(3, 4.0)) == (Arrivals("main", 1, 3),)
    assert [came[0].clients for came in waiting.told] == [2, 1]


def places(tmp_path: Path) -> list[str]:
    return ["--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing"), "--engine", "numpy"]


def test_the_command_begins_the_round_when_all_are_in(store: ModelStore, study: Study, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedping", "round", STUDY, "--wait-for", "3", "--wait-at-most", "2h"]
    some = [Said(client=k, arm="hospitals", document=k) for k in range(3)]
    land(tmp_path / "landing", study, *some[:2], m=M)
    running = forked.Popen(
        [*command, *places(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    land(tmp_path / "landing", study, some[2], m=M)
    out, said = running.communicate(timeout=240)
    assert running.returncode == 0, said
    assert "published version 1 from 3 pings of 3 clients" in out


def test_the_command_takes_what_there_is_when_time_is_over(
    store: ModelStore, study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    land(tmp_path / "landing", study, *(Said(client=k, arm="hospitals") for k in range(2)), m=M)
    assert main(["round", STUDY, "--wait-for", "3", "--wait-at-most", "1s", *places(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "stopped waiting: line 'main' has 2 of 3 clients" in said.err
    assert "published version 1 from 2 pings" in said.out
    assert open_store(tmp_path / "store").lines.newest(STUDY, "main") == 1


def test_a_schedule_waits_before_each_round(
    store: ModelStore, study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    land(tmp_path / "landing", study, *(Said(client=k, arm="hospitals") for k in range(3)), m=M)
    wait = ["--wait-for", "3", "--wait-at-most", "2h"]
    assert main(["schedule", STUDY, "--every", "6h", "--now", "--for", "1s", *wait, *places(tmp_path)]) == 0
    assert "published version 1 from 3 pings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["round", STUDY, "--wait-at-most", "soon"], "'soon' is not a time for --wait-at-most"),
        (["round", STUDY, "main", "--release", "--wait-for", "2"], "remove --wait-for"),
        (["schedule", STUDY, "--every", "10m", "--wait-at-most", "10m"], "longer than nine tenths of the interval"),
        (["schedule", "--plan", "x", "--wait-for", "2"], "remove --wait-for"),
    ],
)
def test_waits_that_cannot_be_meant_are_refused(
    store: ModelStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], says: str
) -> None:
    assert main([*command, *(places(tmp_path) if "--release" not in command else places(tmp_path)[:4])]) == 2
    assert says in capsys.readouterr().err


def test_a_private_line_waits_for_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_with(tmp_path / "store", private_study())
    for command in (["round"], ["schedule", "--now", "--for", "1s"]):
        assert main([*command, "private", "--wait-for", "3", *places(tmp_path)]) == 2
        assert "must not depend on the senders" in capsys.readouterr().err
