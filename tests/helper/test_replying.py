"""A version has one answer, a client counts once, and a request is rejected with a reason before anything is stored."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import msgpack
from msgspec.structs import replace

from fedping.helper.enrol import current, join, retire, rotate
from fedping.helper.folder import HelperFolder, back_up, open_folder, restore
from fedping.helper.records import Records, Totals
from fedping.helper.requests import reply
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.sharing.exchange import AskedArm, Refused, Request, is_from, read_signed, signed
from fedping.protocol.sharing.keys import identity_of, signing_key
from fedping.protocol.sharing.offer import Offer, terms_of
from tests.support import forked
from tests.support.helping import (
    CENTRAL,
    HELPER,
    LEADER,
    NOW,
    WHEN,
    Counted,
    Helping,
    answer_in,
    asked,
    clients_of,
    combined,
    joined,
    request_of,
    shared_study,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def helping(tmp_path: Path) -> Helping:
    return joined(tmp_path / "helper")


def reason(helping: Helping, data: bytes, **more: Any) -> str:
    """Return the reason why a request is rejected, after checking that no noise was drawn and nothing stored."""
    noise = Counted()
    before = kept(helping.folder)
    with pytest.raises(Refused) as raised:
        reply(helping.folder, data, more.pop("now", NOW), noise=noise, **more)
    assert not noise.drawn
    assert kept(helping.folder) == before
    assert str(raised.value)[-1:] not in ".!"
    return raised.value.reason


def kept(folder: HelperFolder) -> list[Totals]:
    with folder.records() as records:
        return [records.totals(each.number) for each in records.lines()]


def test_the_answer_is_signed_says_to_what_it_answers_and_adds_up(helping: Helping) -> None:
    arms = [clients_of(helping, 3, arm=arm, first=10 * n) for n, arm in enumerate(("treatment", "control"))]
    data = request_of(helping, *(arm.rows for arm in arms))
    found = reply(helping.folder, data, NOW)
    answer = answer_in(found.data)
    assert is_from(found.data, type(answer), helping.folder.identity)
    assert (answer.study, answer.line, answer.version) == ("private", "main", 3)
    assert found[1:] == ("private", "main", 3, 6, 0, False)
    for arm, (_, shares) in zip(answer.arms, arms, strict=True):
        assert (combined(shares, arm) == 3).all()


def test_the_same_request_gets_the_same_bytes_and_no_second_draw(tmp_path: Path) -> None:
    helping = joined(tmp_path / "helper", central=CENTRAL)
    data = request_of(helping, clients_of(helping).rows)
    noise = Counted()
    first = reply(helping.folder, data, NOW, noise=noise)
    assert noise.drawn == [(helping.terms.sigma, helping.terms.numbers)]
    much_later = NOW + timedelta(days=365)  # a lost answer stays stored
    again = reply(open_folder(tmp_path / "helper"), data, much_later, noise=noise)
    assert (again.data, again.again, len(noise.drawn)) == (first.data, True, 1)


def test_another_request_for_the_version_is_refused_and_another_version_is_answered(helping: Helping) -> None:
    reply(helping.folder, request_of(helping, clients_of(helping).rows), NOW)
    assert reason(helping, request_of(helping, clients_of(helping, 4).rows)) == "answered"
    same_but_later = request_of(helping, clients_of(helping).rows, made="2026-01-01T00:01:00.000+00:00")
    assert reason(helping, same_but_later) == "answered"
    others = clients_of(helping, version=4, first=50)
    assert reply(helping.folder, request_of(helping, others.rows, version=4), NOW).clients == 3


def test_a_document_of_an_answer_is_left_out_for_ever_and_stops_nobody_elses(helping: Helping) -> None:
    reply(helping.folder, request_of(helping, clients_of(helping, 3).rows), NOW)
    for version, first in ((2, 2), (4, 1201)):
        overlapping = clients_of(helping, 1200, version=version, first=first)
        found = reply(helping.folder, request_of(helping, overlapping.rows, version=version), NOW)
        assert (found.clients, found.refused) == (1200, 1)
    with helping.folder.records() as records:
        every = clients_of(helping, 2401).rows.documents
        assert len(records.used(1, [every])) == records.totals(1).documents == 2401, "whatever their places are"
    too_few = clients_of(helping, 4, version=5, first=1)
    assert reason(helping, request_of(helping, too_few.rows, version=5)) == "too_few"
    others = clients_of(helping, 3, version=5, first=5000)
    assert reply(helping.folder, request_of(helping, others.rows, version=5), NOW).refused == 0


@pytest.mark.parametrize(
    ("wanted", "spoil"),
    [
        ("unknown", lambda h: request_of(h, clients_of(h).rows, study="other")),
        ("unknown", lambda h: request_of(h, clients_of(h).rows, line="other")),
        ("forged", lambda h: signed(_request(h), HELPER)),
        ("forged", lambda h: request_of(h, clients_of(h).rows)[:-1] + b"\x02"),
        ("forged", lambda h: b"\0" + request_of(h, clients_of(h).rows)[1:]),
        ("too_few", lambda h: request_of(h, clients_of(h, 1).rows)),
        ("too_old", lambda h: request_of(h, clients_of(h).rows, made="2025-12-01T00:00:00.000+00:00")),
        ("from_the_future", lambda h: request_of(h, clients_of(h).rows, made="2026-01-02T00:00:00.000+00:00")),
        ("unreadable", lambda h: request_of(h, clients_of(h).rows, made="new year")),
        ("unreadable", lambda h: request_of(h, clients_of(h).rows, version=2**63)),
        ("unreadable", lambda h: b""),
        ("unreadable", lambda h: bytes(64) + b"[" * 5000),
        ("unreadable", lambda h: bytes(64) + b"\x91" * 100_000),
        ("other_terms", lambda h: request_of(h, clients_of(h, arm="third").rows)),
        ("repeated", lambda h: request_of(h, clients_of(h).rows, replace(clients_of(h).rows, arm="control"))),
    ],
)  # fmt: skip
def test_what_is_no_request_of_the_lines_leader_is_refused(
    helping: Helping, wanted: str, spoil: Callable[[Helping], bytes]
) -> None:
    data = spoil(helping)
    assert reason(helping, data) == wanted


def _request(helping: Helping) -> Request:
    return Request(study="private", line="main", version=3, arms=(clients_of(helping).rows,), made=WHEN)


def test_a_stranger_has_no_more_read_of_it_than_names_and_the_signature(helping: Helping) -> None:
    """Millions of empty arms would take gigabytes as objects, so they are created only for the leader."""
    import tracemalloc

    arms = [["treatment", b"", b"", b""]] * 200_000
    few = {"study": "private", "line": "main", "version": 3, "arms": arms[:60], "made": WHEN}
    many = few | {"arms": arms}
    stranger = signing_key(b"stranger", "test").sign(b"x")
    assert reason(helping, stranger + msgpack.encode(few)) == "forged"
    data = stranger + msgpack.encode(many)
    tracemalloc.start()
    try:
        assert reason(helping, data) == "unreadable"
        assert tracemalloc.get_traced_memory()[1] < len(data)
    finally:
        tracemalloc.stop()


def test_as_many_versions_are_answered_as_clients_were_promised_rounds(tmp_path: Path) -> None:
    helping = joined(tmp_path / "helper", central=CENTRAL)
    for version in range(CENTRAL.rounds):
        some = clients_of(helping, version=version, first=10 * version)
        reply(helping.folder, request_of(helping, some.rows, version=version), NOW, noise=Counted())
    last = clients_of(helping, version=9, first=900)
    assert reason(helping, request_of(helping, last.rows, version=9)) == "other_terms"


def test_garbage_of_clients_is_left_out_and_their_documents_are_used_all_the_same(helping: Helping) -> None:
    good = clients_of(helping, 4)
    bad = replace(good.rows, sealed=bytes(80) + good.rows.sealed[80:])
    found = reply(helping.folder, request_of(helping, bad), NOW)
    assert (found.clients, found.refused) == (4, 1)
    assert (combined(good.shares, answer_in(found.data).arms[0]) == 3).all()
    again = clients_of(helping, 4, version=4)
    assert reason(helping, request_of(helping, again.rows, version=4)) == "too_few"


def test_after_too_few_could_be_opened_the_same_clients_may_be_asked_for_again(helping: Helping) -> None:
    good = clients_of(helping, 2)
    bad = replace(good.rows, sealed=bytes(80) + good.rows.sealed[80:])
    assert reason(helping, request_of(helping, bad)) == "too_few"
    assert reply(helping.folder, request_of(helping, good.rows), NOW).clients == 2


# --- keys ---


def test_a_new_key_opens_beside_the_old_one_until_that_is_retired(helping: Helping) -> None:
    newer = rotate(helping.folder, "private", "main")
    terms = terms_of(newer, helping.folder.identity)
    assert newer.id != helping.offer.id

    def mixed(version: int, first: int) -> tuple[AskedArm, list[bool]]:
        old = clients_of(helping, 3, version=version, first=first).rows
        new = asked(terms, np.ones((3, terms.numbers), np.int64), version=version, first=first + 3, to=newer).rows
        parts = [
            (arm.documents[16 * i : 16 * i + 16], arm.offers[:8], arm.sealed[80 * i : 80 * i + 80])
            for arm in (old, new)
            for i in range(3)
        ]
        parts.sort()
        joined_ = [b"".join(column) for column in zip(*parts, strict=True)]
        rows = AskedArm(arm="treatment", documents=joined_[0], offers=joined_[1], sealed=joined_[2])
        return rows, [part[1] == newer.id for part in parts]

    rows, _ = mixed(3, 0)
    assert reply(helping.folder, request_of(helping, rows), NOW).refused == 0
    assert helping.folder.key_file(helping.offer.id).exists()
    assert retire(helping.folder, "private", "main") == [helping.offer.id]
    assert retire(helping.folder, "private", "main") == []
    assert not helping.folder.key_file(helping.offer.id).exists()
    rows, is_new = mixed(4, 100)
    found = reply(helping.folder, request_of(helping, rows, version=4), NOW)
    assert answer_in(found.data).arms[0].refused == tuple(place for place, new in enumerate(is_new) if not new)


def test_a_leader_that_was_mistyped_can_be_corrected_until_a_sum_is_told(helping: Helping) -> None:
    folder, someone = helping.folder, signing_key(b"somebody else", "fedping leader v1")
    study = shared_study(folder.identity)
    mistyped, _ = join(folder, study, study.lines[0], identity_of(someone))
    before = Helping(folder, mistyped, terms_of(mistyped, folder.identity))
    assert reason(before, request_of(before, clients_of(before).rows)) == "forged"
    offer, new = join(folder, study, study.lines[0], identity_of(LEADER))
    assert new
    after = Helping(folder, offer, terms_of(offer, folder.identity))
    assert after.terms.leader == identity_of(LEADER)
    assert reason(after, request_of(after, clients_of(before).rows)) == "too_few"  # they have agreed to another leader
    assert reply(folder, request_of(after, clients_of(after).rows), NOW).refused == 0
    with pytest.raises(InvalidSettings, match="which has received sums from this helper"):
        join(folder, study, study.lines[0], identity_of(someone))
    assert join(folder, study, study.lines[0], identity_of(LEADER)) == (offer, False)


# --- copies ---


def test_a_backup_answers_nothing_until_it_is_restored_and_then_no_version_twice(
    helping: Helping, tmp_path: Path
) -> None:
    first = request_of(helping, clients_of(helping).rows)
    known = reply(helping.folder, first, NOW).data
    back_up(helping.folder, tmp_path / "backup")
    second = request_of(helping, clients_of(helping, version=4, first=10).rows, version=4)
    reply(helping.folder, second, NOW)  # it isn't in the backup

    with pytest.raises(FedpingError, match="are a copy"):
        reply(open_folder(tmp_path / "backup"), second, NOW)
    with pytest.raises(FedpingError, match="--from private/main=VERSION"):
        restore(tmp_path / "backup", tmp_path / "again", {})
    assert not (tmp_path / "again").exists()  # so that the command can be repeated as the sentence says
    restored = restore(tmp_path / "backup", tmp_path / "again", {("private", "main"): 5})
    after = Helping(restored, helping.offer, helping.terms)
    assert reply(restored, first, NOW).data == known
    assert reason(after, second) == "answered"
    third = request_of(helping, clients_of(helping, version=5, first=20).rows, version=5)
    assert reply(restored, third, NOW).clients == 3
    for file in [*(tmp_path / "backup").rglob("*.key"), tmp_path / "backup" / "helper.sqlite"]:
        assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700


def test_what_a_backup_has_forgotten_counts_against_the_promised_rounds(tmp_path: Path) -> None:
    helping = joined(tmp_path / "helper", central=CENTRAL)

    def answered(folder: HelperFolder, version: int) -> int:
        some = clients_of(helping, version=version, first=10 * version)
        return reply(folder, request_of(helping, some.rows, version=version), NOW, noise=Counted()).clients

    answered(helping.folder, 0)
    back_up(helping.folder, tmp_path / "backup")
    for version in (1, 2, 3):
        answered(helping.folder, version)
    restored = restore(tmp_path / "backup", tmp_path / "again", {("private", "main"): 4})
    assert CENTRAL.rounds == 5
    assert answered(restored, 4) == 3
    with pytest.raises(Refused, match="is for 5 rounds, and all are answered"):
        answered(restored, 5)


def test_a_folder_copied_by_hand_is_known_for_a_copy(helping: Helping, tmp_path: Path) -> None:
    reply(helping.folder, request_of(helping, clients_of(helping).rows), NOW)
    shutil.copytree(helping.folder.path, tmp_path / "copy")
    with pytest.raises(FedpingError, match="are a copy"):
        open_folder(tmp_path / "copy").records()
    restore(tmp_path / "copy", tmp_path / "again", {("private", "main"): 4})
    helping.folder.path.rename(tmp_path / "moved")  # which is no copy
    with open_folder(tmp_path / "moved").records():
        pass


# --- the disk, and concurrent processes ---


def test_a_full_disk_refuses_in_one_sentence_and_keeps_nothing(
    helping: Helping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own page limit simulates a full disk: the same error from the same write."""
    real = HelperFolder.records

    def full(folder: HelperFolder) -> Records:
        records = real(folder)
        [(pages,)] = records._database.execute("PRAGMA page_count").fetchall()
        records._database.execute(f"PRAGMA max_page_count = {pages}")
        return records

    data = request_of(helping, clients_of(helping, 400).rows)
    with monkeypatch.context() as patch:
        patch.setattr(HelperFolder, "records", full)
        with pytest.raises(Refused, match="no room left, so nothing was answered") as raised:
            reply(helping.folder, data, NOW)
    assert raised.value.reason == "storage"
    assert kept(helping.folder) == [(0, None, 0)]
    assert reply(helping.folder, data, NOW).clients == 400


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounts a small file system")
def test_a_file_system_without_room_refuses_likewise(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        helping = joined(small / "helper")
        data = request_of(helping, clients_of(helping, 3).rows)
        (small / "filler").write_bytes(bytes(4096 * (shutil.disk_usage(small).free // 4096)))
        with pytest.raises(Refused) as raised:
            reply(helping.folder, data, NOW)
        assert raised.value.reason == "storage"
        (small / "filler").unlink()
        assert reply(helping.folder, data, NOW).clients == 3
    finally:
        subprocess.run(["umount", "-l", small], check=True)


@pytest.mark.parametrize("step", ["searched", "signed"])
def test_two_processes_that_answer_the_same_give_the_same(helping: Helping, step: str) -> None:
    """Both find the request unanswered; one writes, before or after the other checks again."""
    data = request_of(helping, clients_of(helping, 3).rows)
    other = request_of(helping, clients_of(helping, 4).rows)

    def between(_: str) -> None:
        nonlocal inner
        if inner is None and _ == step:
            inner = b""
            inner = reply(open_folder(helping.folder.path), data, NOW).data

    inner: bytes | None = None
    outer = reply(helping.folder, data, NOW, on_step=between)
    assert inner == outer.data
    assert outer.again
    assert reason(helping, other) == "answered"


def test_many_at_once_get_one_answer(helping: Helping) -> None:
    requests = [request_of(helping, clients_of(helping, k).rows) for k in (2, 3, 4)] * 3

    def outcome(data: bytes) -> bytes | str:
        try:
            return reply(open_folder(helping.folder.path), data, NOW).data
        except Refused as error:
            return error.reason

    with ThreadPoolExecutor(9) as pool:
        found = list(pool.map(outcome, requests))
    answers = {each for each in found if isinstance(each, bytes)}
    assert len(answers) == 1
    assert {each for each in found if isinstance(each, str)} == {"answered"}
    assert sum(isinstance(each, bytes) for each in found) == 3


MOMENTS = ["read", "summed", "signed", "written", "kept"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_step_a_version_has_one_answer(helping: Helping, tmp_path: Path, moment: str) -> None:
    data = request_of(helping, clients_of(helping, 50).rows)
    (tmp_path / "request").write_bytes(data)
    command = [sys.executable, "-m", "tests.support.killed_helper", moment, helping.folder.path, tmp_path / "request"]
    ended = forked.run(command, cwd=ROOT, capture_output=True, timeout=240)
    assert ended.returncode == -9, ended.stderr
    with helping.folder.records() as records:
        known = records.answered(1, 3)
        assert records.totals(1).documents == (50 if known else 0)
    assert (known is not None) == (moment == "kept")
    other = request_of(helping, clients_of(helping, 49).rows)
    if known is None:
        assert reply(helping.folder, other, NOW).clients == 49
        assert reason(helping, data) == "answered"
    else:
        assert reason(helping, other) == "answered"
        assert reply(helping.folder, data, NOW).data == known.answer


def test_records_that_are_damaged_missing_or_anothers_are_told_in_a_sentence(helping: Helping, tmp_path: Path) -> None:
    file = helping.folder.path / "helper.sqlite"
    whole = file.read_bytes()
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA user_version = 9")
    with pytest.raises(FedpingError, match="format 9"):
        helping.folder.records()
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA user_version = 1")
        database.execute("UPDATE folder SET identity = 'x'")
    with pytest.raises(FedpingError, match="not of the helper"):
        helping.folder.records()
    for part in helping.folder.path.glob("helper.sqlite-*"):
        part.unlink()
    file.write_bytes(b"x" * len(whole))
    with pytest.raises(FedpingError, match="cannot be read"):
        helping.folder.records()
    file.unlink()
    with pytest.raises(FedpingError, match="are missing"):
        helping.folder.records()
    helping.folder.key_file(helping.offer.id).unlink()
    (helping.folder.path / "helper.key").chmod(0o644)
    with pytest.raises(FedpingError, match="chmod 600"):
        open_folder(helping.folder.path)


def test_an_offer_is_kept_as_it_was_signed(helping: Helping) -> None:
    with helping.folder.records() as records:
        [offered] = records.offers(1)
        assert isinstance(offered.offer, Offer)
        assert current([offered]) == helping.offer
    assert read_signed(request_of(helping), Request).study == "private"
    assert is_from(request_of(helping), Request, terms_of(helping.offer, helping.folder.identity).leader)
    assert LEADER is not HELPER
