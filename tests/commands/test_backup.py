"""The procedure for backups in `docs/operators.md`, followed command by command."""

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedping.main import main
from fedping.model_store import open_store
from fedping.server_jobs.round import RoundOptions, engine_named, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.ingest_app import landed_ids
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.pings import ping_json
from tests.support.processes import wait_until
from tests.support.rounds import FIRST_MS, WHEN, crowd, land, store_with
from tests.support.versions import small_study

ROOT = Path(__file__).parents[2]
STUDY = "firefox"
GUIDE = (ROOT / "docs/operators.md").read_text()


def blocks(section: str) -> list[str]:
    """Return the blocks of commands in a section of the page, without the indentation of lists."""
    text = GUIDE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^( *)```sh\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [re.sub(f"^{indented}", "", block, flags=re.MULTILINE) for indented, block in found]


def test_pings_of_a_study_that_is_not_there_are_not_said_to_be_copied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_with(tmp_path / "store", small_study())
    said = ["--store", str(tmp_path / "store"), "--landing", str(tmp_path), "--to", str(tmp_path / "copy")]
    assert main(["landing", "copy", "misspelt", *said]) == 1
    assert "has no study 'misspelt'; it has study" in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()
    assert main(["landing", "copy", "study", *said]) == 0


BACKUP, RESTORE, LOOK = blocks("6. Back up and restore")


class Machine:
    """An operator's machine: the page's folders are below a folder, and `fedping` is on the path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ingest: IngestServer | None = None
        self.store, self.landing = root / "srv/fedping/store", root / "srv/fedping/landing"
        for folder in (root / "bin", self.landing, root / "backup"):
            folder.mkdir(parents=True)
        self.install(ROOT)

    def install(self, program: Path) -> None:
        """Let `fedping` be the program of a folder from now on."""
        script = self.root / "bin/fedping"
        command = f'PYTHONPATH="{program}" exec "{sys.executable}" -P -m fedping "$@"'
        script.write_text(f"#!/bin/sh\n{command}\n")
        script.chmod(0o755)

    @contextlib.contextmanager
    def running(self, program: Path = ROOT) -> Iterator[IngestServer]:
        """Run a program's ingest."""
        with running_ingest(self.store, self.landing, "--workers", "1", cwd=program) as self.ingest:
            yield self.ingest
        self.ingest = None

    def type(self, commands: str) -> str:
        """Type a block of the page; every command must succeed."""
        done = self.typed(f"set -e\n{commands}")
        assert done.returncode == 0, commands + done.stdout + done.stderr
        return done.stdout

    def typed(self, commands: str) -> subprocess.CompletedProcess[str]:
        """Type a block of the page unchanged, and return the completed process."""
        for place in ("/srv/", "/backup/"):
            commands = re.sub(rf"(?<=\s){place}", f"{self.root}{place}", commands)
        if self.ingest is not None:
            commands = commands.replace("127.0.0.1:8082", f"127.0.0.1:{self.ingest.operations_port}")
        environment = {
            **os.environ,
            "PATH": f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "FEDPING_STORE": str(self.store),
            "FEDPING_LANDING": str(self.landing),
        }
        return subprocess.run(
            ["sh", "-c", commands], cwd=self.root, env=environment, capture_output=True, encoding="utf-8"
        )

    def rounds(self, count: int, seed: int) -> None:
        """Land pings of the newest version and publish the next, ``count`` times."""
        store = open_store(self.store)
        for n in range(count):
            head = store.head(STUDY, "main").iteration
            pings = crowd(4, seed=seed + n, version=head, first_document=10 * head)
            land(self.landing, pings, study=STUDY, iteration=head, at_ms=FIRST_MS + head)
            run_round(
                store, self.landing, STUDY, "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="t")
            )

    def sent(self, number: int) -> list[str]:
        """Send a number of pings about the newest version; return their document ids once all are answered with 200."""
        assert self.ingest is not None
        head, documents = open_store(self.store).head(STUDY, "main").iteration, []
        for _ in range(number):
            documents.append(str(uuid.uuid4()))
            body = json.dumps({**ping_json(2, model_version=head), "clientId": str(uuid.uuid4())})
            connection = http.client.HTTPConnection("127.0.0.1", self.ingest.port, timeout=240)
            with contextlib.closing(connection):
                connection.request(
                    *("POST", f"/submit/{STUDY}/frecency-update/1/{documents[-1]}", body),
                    {"Content-Type": "application/json"},
                )
                assert connection.getresponse().status == 200
        return documents

    def recomputes(self, number: int) -> None:
        """Check that a version can be recomputed from the pings."""
        with engine_named("numpy") as engine:
            assert recompute(open_store(self.store), self.landing, STUDY, "main", number, engine).identical

    def fetched(self) -> dict[int, bytes]:
        """Return the model documents that clients can fetch, by number."""
        folder = self.store / STUDY / "main/public"
        return {int(path.stem): path.read_bytes() for path in folder.glob("[0-9]*.json")}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("landing_is_lost", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_procedure_restores_a_study_and_publishes_no_number_twice(tmp_path: Path, landing_is_lost: bool) -> None:
    machine = Machine(tmp_path)
    for name in (STUDY, "another"):
        store_with(machine.store, small_study(name))
    with machine.running():
        machine.rounds(3, seed=0)
        machine.type(BACKUP)
        machine.rounds(4, seed=10)
        machine.type(BACKUP)  # once more, in place of the first
        machine.rounds(2, seed=20)
        assert open_store(tmp_path / "backup/fedping/store").studies.names() == ["another", STUDY]
        newest = machine.store / STUDY / "main/versions/9.json"
        whole = newest.read_bytes()
        newest.write_bytes(whole.replace(b'"created":"2', b'"created":"3'))
        ended = machine.typed(BACKUP)
        assert (ended.returncode, "versions/9.json cannot be read" in ended.stderr) == (1, True)
        newest.write_bytes(whole)  # RESTORE finds the earlier backup
    before = machine.fetched()
    assert sorted(before) == list(range(10))

    if landing_is_lost:
        machine.type(
            f"rm -r {machine.store} {machine.landing}; cp -a {tmp_path}/backup/fedping/landing {machine.landing}"
        )
    said = machine.type(RESTORE)
    assert re.search(r"^ +7 ", said, re.MULTILINE)
    assert "published version 1000, which repeats version 7" in said
    machine.rounds(3, seed=30)

    after = machine.fetched()
    assert sorted(after) == [*range(8), *range(1000, 1004)]
    assert all(after[number] == before[number] for number in before.keys() & after.keys())
    latest = json.loads((machine.store / STUDY / "main/public/latest.json").read_bytes())
    assert (latest["iteration"], json.loads(after[1000])["parent"]) == (1003, 7)
    assert "bit-identical" in machine.type(LOOK)
    for number in (1, 7, 1001, 1003):
        machine.recomputes(number)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_procedure_backs_up_every_study_and_keeps_the_last_backup_when_it_fails(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for name in (STUDY, "another"):
        store_with(machine.store, small_study(name))
        land(machine.landing, crowd(4), study=name)
    backup = tmp_path / "backup/fedping"

    def kept() -> dict[str, bytes]:
        return {str(path.relative_to(backup)): path.read_bytes() for path in backup.rglob("*") if path.is_file()}

    with machine.running():
        machine.type(BACKUP)
        first = kept()
        machine.rounds(1, seed=0)
        machine.type(BACKUP)
        good = kept()
        assert open_store(backup / "store").studies.names() == ["another", STUDY]
        assert all(list((backup / "landing").glob(f"study={name}/**/*.parquet")) for name in (STUDY, "another"))
        assert first.keys() < good.keys()
        newest = machine.store / STUDY / "main/versions/1.json"
        newest.write_bytes(newest.read_bytes().replace(b'"created":"2', b'"created":"3'))
        for _ in range(2):
            ended = machine.typed(BACKUP)
            assert ended.returncode == 1
            assert f"{STUDY}/main/versions/1.json cannot be read" in ended.stderr
            assert kept() == good, "what is damaged never takes the place of a good backup"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_backup_that_is_made_while_pings_come_is_restored_on_another_machine(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "one")
    store_with(machine.store, small_study(STUDY))
    over = threading.Event()
    sent: list[str] = []

    def send() -> None:
        while not over.wait(0.02):
            sent.extend(machine.sent(1))

    with machine.running():
        sender = threading.Thread(target=send)
        sender.start()
        try:
            machine.rounds(2, seed=0)
            assert wait_until(lambda: len(sent) > 20)
            answered = list(sent)
            machine.type(BACKUP)
        finally:
            over.set()
            sender.join()
        machine.rounds(1, seed=5)

    other = Machine(tmp_path / "two")
    shutil.copytree(machine.root / "backup/fedping", other.root / "backup/fedping")
    other.landing.rmdir()
    other.type(RESTORE + "cp -a /backup/fedping/landing /srv/fedping/landing\n")
    assert set(answered) <= set(landed_ids(other.landing)), "what was answered before the backup began is in it"
    machine.root.rename(tmp_path / "gone")
    assert "bit-identical" in other.type(LOOK)
    with other.running():
        documents = other.sent(5)
    other.rounds(2, seed=9)
    assert set(documents) <= set(landed_ids(other.landing))
    for number in (2, 1002):
        other.recomputes(number)
    assert open_store(other.store).version(STUDY, "main", 1001).lineage.counts["used"] == 4 + len(documents)
