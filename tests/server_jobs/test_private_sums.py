"""The sums of a private round before noise: each client's bounded vector once, for any pings."""

import hmac
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from fedping.protocol.privacy import METRICS, Central, ClippedByKind, ClippedFlat, Privacy, Signs, frame_of
from fedping.protocol.study import Study
from fedping.server_jobs.privacy.keys import Coins
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.manifest import list_landed
from fedping.server_jobs.round.private import exact_sums, private_rules
from fedping.server_jobs.round.spark_engine import SparkEngine
from tests.support.private import CENTRAL, private_study
from tests.support.private_rounds import PrivatePing, client, land_private, private_crowd
from tests.support.rounds import FIRST_MS, id_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = bytes(range(32))
DIGEST = "d1" * 32
HALF = Privacy(central=Central(epsilon=1, delta=1e-6, rounds=5, population=1000, sampling=0.5, noise_multiplier=1))
CONTRIBUTIONS = [Signs(), ClippedFlat(norm=2.0), ClippedByKind(norms={"coefficient": 3.0})]


def sums_of(landing: Path, study: Study, engine: object = None, key: bytes | None = None) -> dict[int, np.ndarray]:
    manifest = list_landed(landing, study, "main", 0)
    return dict(
        exact_sums(landing, manifest, private_rules(study, study.lines[0], 0, DIGEST, key), engine or NumpyEngine())
    )  # type: ignore[arg-type]


def hostile(study: Study, arms: tuple[str, str] = ("treatment", "control")) -> dict[str, list[PrivatePing]]:
    """Return hostile pings of one client of the first arm, by name."""
    d = study.lines[0].spec.m + len(METRICS)
    me = client(study, arms[0], 77)
    rng = np.random.default_rng(1)

    def of(*numbers: int) -> bytes:
        return np.array((*numbers, *[0] * d)[:d], "<i4").tobytes()

    largest, least = 2**31 - 1, -(2**31)
    random = [rng.integers(-1000, 1000, d).astype("<i4").tobytes() for _ in range(300)]
    return {
        "one": [PrivatePing(me, of(1, -1, 1))],
        "many": [PrivatePing(me, of(1, -1, 1))] * 50,
        "huge": [PrivatePing(me, of(*[largest] * d))],
        "huge and low": [PrivatePing(me, of(*[least] * d))],
        "all zeros": [PrivatePing(me, bytes(4 * d))],
        "as floats": [PrivatePing(me, np.full(d, np.nan, "<f4").tobytes())],
        "infinite": [PrivatePing(me, np.full(d, -np.inf, "<f4").tobytes())],
        "many at random": [PrivatePing(me, each) for each in random],
        "duplicates": [PrivatePing(me, of(9, 9), document=id_of("document", 5))] * 9,
        "late": [PrivatePing(me, of(1, 1), version=v) for v in (-1, 1, 2, 0)],
        "two arms": [PrivatePing(me, of(1, 1), arm) for arm in (*arms, arms[0])],
        "another arm first": [PrivatePing(me, of(1, 1), arm) for arm in reversed(arms)],
        "no update": [PrivatePing(me, None, encoding=None), PrivatePing(me, of(1))],
        "short, long, usable": [PrivatePing(me, x) for x in (b"\0" * 3, bytes(4 * d + 4), of(1, 1))],
        "another encoding": [PrivatePing(me, of(1), encoding="dense"), PrivatePing(me, of(1))],
        "unknown arm": [PrivatePing(me, of(1), arm="nobody's"), PrivatePing(me, of(1))],
    }


@pytest.mark.parametrize("contribution", CONTRIBUTIONS, ids=lambda c: type(c).__name__)
def test_nothing_that_a_client_sends_changes_the_sums_by_more_than_the_bound(
    tmp_path: Path, contribution: object
) -> None:
    study = private_study(privacy=Privacy(central=CENTRAL, contribution=contribution))  # type: ignore[arg-type]
    frame = frame_of(study.lines[0].privacy, study.lines[0].spec)  # type: ignore[arg-type]
    others = [*private_crowd(study, 40), *private_crowd(study, 10, seed=3, arm="control")]
    others += [PrivatePing(client(study, "treatment", 5), b"?")] * 3
    land_private(tmp_path / "without", study, others)
    without = sums_of(tmp_path / "without", study)
    moved = {}
    for name, pings in hostile(study).items():
        for place, order in (("last", [*others, *pings]), ("first", [*pings, *others])):
            folder = tmp_path / name.replace(" ", "") / place
            half = len(order) // 2
            land_private(folder, study, order[:half])
            land_private(folder, study, order[half:], at_ms=FIRST_MS + 1)
            found = sums_of(folder, study)
            change = np.concatenate([found.get(arm, 0) - without.get(arm, 0) for arm in (0, 1)])
            moved[name, place] = float(np.sqrt((change.astype(float) ** 2).sum()))
    assert max(moved.values()) <= frame.sensitivity, moved
    assert moved["one", "last"] > 0
    assert moved["huge", "first"] > 0


def test_a_stranger_who_repeats_anothers_document_does_not_take_its_place(tmp_path: Path) -> None:
    study = private_study()
    honest = private_crowd(study, 1)[0]
    stolen = PrivatePing(client(study, "treatment", 9), honest.payload, document=id_of("document", 1))
    first = PrivatePing(honest.client, honest.payload, document=id_of("document", 1))
    land_private(tmp_path, study, [stolen, first])
    assert sums_of(tmp_path, study)[0][4] == 2 * frame_of(study.lines[0].privacy, study.lines[0].spec).metric  # type: ignore[arg-type]


def test_one_ping_of_a_client_counts_whatever_file_it_came_in(tmp_path: Path) -> None:
    study = private_study()
    one, other = private_crowd(study, 2)
    mine, least = id_of("document", 3), id_of("document", 2)
    pings = [
        PrivatePing(one.client, one.payload, document=min(mine, least)),
        PrivatePing(one.client, other.payload, document=max(mine, least)),
    ]
    land_private(tmp_path / "alone", study, [pings[0], other])
    land_private(tmp_path / "both", study, [*pings, other])
    for name, order in (("early", pings), ("late", pings[::-1])):
        for at, ping in enumerate(order):
            land_private(tmp_path / name, study, [ping], at_ms=FIRST_MS + at)
        land_private(tmp_path / name, study, [other], at_ms=FIRST_MS + 9)
    alone, *others = (sums_of(tmp_path / name, study)[0] for name in ("alone", "both", "early", "late"))
    assert all(np.array_equal(alone, each) for each in others)


def test_sums_have_the_same_bits_however_the_work_is_divided(tmp_path: Path) -> None:
    study = private_study(privacy=HALF)
    everybody = [*private_crowd(study, 300), *private_crowd(study, 80, seed=2, arm="control")]
    everybody += [ping for pings in hostile(study).values() for ping in pings]
    land_private(tmp_path, study, everybody)
    for key in (None, KEY):
        expected = sums_of(tmp_path, study, key=key)
        assert {arm: each.dtype for arm, each in expected.items()} == {0: np.int64, 1: np.int64}
        for threads in (2, 16):
            again = sums_of(tmp_path, study, NumpyEngine(threads), key)
            assert all(np.array_equal(again[arm], expected[arm]) for arm in (0, 1))


def test_sums_are_of_clients_not_of_files(tmp_path: Path) -> None:
    study = private_study(privacy=HALF)
    crowd = [*private_crowd(study, 300), *private_crowd(study, 80, seed=2, arm="control")]
    land_private(tmp_path / "one", study, crowd)
    for i in range(7):
        land_private(tmp_path / "seven", study, crowd[i::7], at_ms=FIRST_MS + i)
    one, seven = (sums_of(tmp_path / name, study, key=KEY) for name in ("one", "seven"))
    assert all(np.array_equal(one[arm], seven[arm]) for arm in (0, 1))


def test_the_coin_leaves_clients_out_by_the_key(tmp_path: Path) -> None:
    privacy = Privacy(
        central=Central(epsilon=1, delta=1e-6, rounds=5, population=1000, sampling=0.25, noise_multiplier=1)
    )
    study = private_study(privacy=privacy)
    crowd = private_crowd(study, 400)
    land_private(tmp_path, study, crowd)
    metric = frame_of(privacy, study.lines[0].spec).metric
    counted = sums_of(tmp_path, study, key=KEY)[0][4] // metric
    coins = Coins("private", "main", 0, DIGEST, 0.25, KEY)
    ids = np.frombuffer(b"".join(ping.client for ping in crowd), "<u8").reshape(-1, 2)
    assert counted == coins.counting(ids).sum()
    assert sums_of(tmp_path, study, key=bytes(32))[0][4] // metric != counted
    assert 60 < counted < 140


def test_the_coin_is_aes_256_of_the_id_by_its_first_eight_bytes() -> None:
    ids = [bytes([i]) * 16 for i in range(200)]
    clients = np.frombuffer(b"".join(ids), "<u8").reshape(-1, 2)
    own = hmac.digest(KEY, f"study|main|7|{DIGEST}".encode(), "sha256")

    def drawn(client: bytes) -> int:  # counter mode begins with the block of its nonce encrypted
        zeros = Cipher(AES256(own), CTR(client)).encryptor().update(bytes(16))
        return int.from_bytes(zeros[:8], "big")

    for share in (1e-9, 0.3, 1 - 2**-53):
        expected = [drawn(client) < share * 2**64 for client in ids]
        assert Coins("study", "main", 7, DIGEST, share, KEY).counting(clients).tolist() == expected
    assert Coins("study", "main", 7, DIGEST, 0.5, KEY).counting(clients[:0]).tolist() == []


def test_coins_are_independent_between_versions_stores_and_keys() -> None:
    ids = np.random.default_rng(3).integers(0, 2**64, (20_000, 2), np.uint64)
    one = Coins("study", "main", 7, DIGEST, 0.2, KEY).counting(ids)
    assert abs(one.mean() - 0.2) < 5 * np.sqrt(0.16 / 20_000)
    for other in (
        Coins("study", "main", 8, DIGEST, 0.2, KEY),
        Coins("study", "main", 7, "0" * 64, 0.2, KEY),
        Coins("study", "other", 7, DIGEST, 0.2, KEY),
        Coins("another", "main", 7, DIGEST, 0.2, KEY),
        Coins("study", "main", 7, DIGEST, 0.2, bytes(32)),
    ):
        both = (one & other.counting(ids)).mean()
        assert abs(both - 0.04) < 5 * np.sqrt(0.04 * 0.96 / 20_000)


@pytest.mark.spark
def test_sums_have_the_same_bits_on_spark(tmp_path: Path, spark: "SparkSession") -> None:
    study = private_study(privacy=HALF)
    everybody = [*private_crowd(study, 200), *private_crowd(study, 60, seed=2, arm="control")]
    everybody += [ping for pings in hostile(study).values() for ping in pings]
    for i in range(3):
        land_private(tmp_path, study, everybody[i::3], at_ms=FIRST_MS + i)
    found = sums_of(tmp_path, study, SparkEngine(lambda: nullcontext(spark)), KEY)
    expected = sums_of(tmp_path, study, key=KEY)
    assert {arm: each.tolist() for arm, each in found.items()} == {arm: each.tolist() for arm, each in expected.items()}
