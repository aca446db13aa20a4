"""Rounds of two-server lines wait for the helper's answer, and then have the results of plain private rounds."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedping.helper.folder import make_helper
from fedping.model_store.store import ModelStore
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.privacy import frame_of
from fedping.protocol.sharing.exchange import (
    Answer,
    AnsweredArm,
    Refused,
    Request,
    digest_of_signed,
    is_from,
    read_signed,
    signed,
)
from fedping.server_jobs.privacy.budget import spent
from fedping.server_jobs.privacy.keys import leader_identity
from fedping.server_jobs.privacy.noise import has_its_size
from fedping.server_jobs.round import RoundOptions, RoundResult, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.helper_client import FileHelper, HelperUnavailable
from fedping.server_jobs.round.manifest import list_landed
from fedping.server_jobs.round.private import exact_sums, private_rules
from fedping.server_jobs.round.spark_engine import SparkEngine
from tests.support.private_rounds import PrivatePing, client, land_private
from tests.support.rounds import FIRST_MS, WHEN, id_of, store_with
from tests.support.shared_rounds import (
    CENTRAL,
    KEY,
    NOW,
    ByHand,
    Refusing,
    SharedLine,
    as_plain,
    documents_in,
    plain,
    shared_line,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def round_of(store: ModelStore, landing: Path, helper: Any = None, **more: Any) -> RoundResult:
    given = {"privacy_key": KEY, "helper": helper, "clock": lambda: WHEN, **more}
    engine = given.pop("engine", NumpyEngine())
    return run_round(store, landing, "private", "main", engine, RoundOptions(code_version="test", **given))


def begun(folder: Path, **settings: Any) -> tuple[SharedLine, ModelStore, Path]:
    """Return a line, its store at version 0, and the landing folder with 30 pings of one arm and 20 of the other."""
    line = shared_line(folder, **settings)
    store, landing = store_with(folder / "store", line.study), folder / "landing"
    land_private(landing, line.study, [*line.crowd(30), *line.crowd(20, arm="control")])
    return line, store, landing


def asked_files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "store/private/main/asked").glob("*")}


def messy(line: SharedLine) -> tuple[list[PrivatePing], list[PrivatePing]]:
    """Return pings of a two-server line, and the same pings for a plain private line.

    Some count in neither: pings of clients that send several, of other arms and versions, and truncated ones.
    """
    shares, vectors = [], []
    for arm, n, seed in (("treatment", 70, 1), ("control", 40, 2)):
        made = line.vectors(n, seed)
        sent = line.pings(made, seed=seed, arm=arm)
        shares += sent
        vectors += as_plain(sent, made)
    again = line.vectors(9, 3)
    senders = [ping.client for ping in shares]
    wrongs: tuple[Callable[[int, PrivatePing], PrivatePing], ...] = (
        lambda i, ping: replace(ping, client=senders[i]),
        lambda i, ping: replace(ping, arm="nobody's"),
        lambda i, ping: replace(ping, version=7),
        lambda i, ping: replace(ping, client=client(line.study, "control", 999_000 + i)),
        lambda i, ping: replace(ping, encoding="dense"),
    )
    for number, wrong in enumerate(wrongs):
        sent = line.pings(again, seed=4, first=100 * number)
        shares += [wrong(i, ping) for i, ping in enumerate(sent)]
        vectors += [wrong(i, ping) for i, ping in enumerate(as_plain(sent, again))]
    short = line.pings(again, seed=5)
    shares += [replace(ping, payload=ping.payload[:-1]) for ping in short if ping.payload]
    vectors += [replace(ping, payload=ping.payload[:-1]) for ping in as_plain(short, again) if ping.payload]
    return shares, [each if each.encoding != "shared" else replace(each, encoding="private") for each in vectors]


def plain_sums(folder: Path, line: SharedLine, pings: list[PrivatePing]) -> dict[str, list[int]]:
    study = plain(line)
    land_private(folder, study, pings)
    manifest = list_landed(folder, study, "main", 0)
    sums = exact_sums(folder, manifest, private_rules(study, study.lines[0], 0, "", None), NumpyEngine())
    return {arm.name: sums[number].tolist() for number, arm in enumerate(study.arms)}


@pytest.mark.parametrize("seal", ["x25519", "mlkem768-x25519"])
def test_without_noise_a_round_of_shares_is_the_plain_one_integer_for_integer(tmp_path: Path, seal: Any) -> None:
    line = shared_line(tmp_path, seal=seal)
    shares, vectors = messy(line)
    expected = plain_sums(tmp_path / "plain", line, vectors)
    requests, versions = set(), []
    for name, parts, engine in (("one", 1, NumpyEngine()), ("five", 5, NumpyEngine(2)), ("two", 2, NumpyEngine(16))):
        store, landing = store_with(tmp_path / name / "store", line.study), tmp_path / name / "landing"
        for i in range(parts):
            land_private(landing, line.study, shares[i::parts], at_ms=FIRST_MS + i)
        way = line.way
        assert round_of(store, landing, way, engine=engine).status == "published"
        requests.add(read_signed(way.seen[0], Request).arms)
        versions.append(store.head("private", "main"))
        event = versions[-1].lineage.privacy
        assert event is not None
        assert event.shared is not None
        assert event.released["treatment"] == tuple(expected["treatment"])
        assert event.released["control"][4:] == tuple(expected["control"][4:])
        assert event.released["control"][:4] == (0, 0, 0, 0), "of an arm that does not submit"
        assert (event.sigma, event.epsilon, event.shared.refused) == (0.0, None, 0)
    assert len(requests) == 1, "the same clients in the same order, whoever divides the work"
    assert len({version.weights for version in versions}) == 1
    if seal == "x25519":
        assert len({version.lineage.privacy.shared.answer for version in versions}) == 1  # type: ignore[union-attr]


@pytest.mark.spark
def test_a_round_of_shares_is_the_same_on_spark(tmp_path: Path, spark: "SparkSession") -> None:
    line = shared_line(tmp_path)
    shares, _ = messy(line)
    found = []
    for name, engine in (("numpy", NumpyEngine()), ("spark", SparkEngine(lambda: nullcontext(spark)))):
        store, landing = store_with(tmp_path / name / "store", line.study), tmp_path / name / "landing"
        for i in range(3):
            land_private(landing, line.study, shares[i::3], at_ms=FIRST_MS + i)
        way = line.way
        assert round_of(store, landing, engine=engine).status == "asked"
        assert round_of(store, landing, way, engine=engine).status == "published"
        found.append((way.seen, store.head("private", "main").lineage.privacy))
    assert found[0] == found[1]


def test_a_vector_in_shares_that_nobody_bounds_counts_as_it_is(tmp_path: Path) -> None:
    """Therefore a line's privacy card says that clients are trusted with the model."""
    line, store, landing = begun(tmp_path)
    huge = np.full((1, 7), 2**52, np.int64)
    land_private(landing, line.study, line.pings(huge, seed=9), at_ms=FIRST_MS + 1)
    round_of(store, landing, line.way)
    event = store.head("private", "main").lineage.privacy
    assert event is not None
    assert event.released["treatment"] == tuple((line.vectors(30).sum(axis=0) + 2**52).tolist())


def test_both_servers_add_their_noise_and_the_lineage_has_that_of_both(tmp_path: Path) -> None:
    line, store, landing = begun(tmp_path, central=CENTRAL, m=40)
    assert round_of(store, landing, line.way).status == "published"
    event = store.head("private", "main").lineage.privacy
    assert event is not None
    frame = frame_of(line.study.lines[0].privacy, line.study.lines[0].spec)  # type: ignore[arg-type]
    assert event.sigma == CENTRAL.noise_multiplier * frame.sensitivity * np.sqrt(2)  # type: ignore[operator]
    assert event.noise_multiplier == CENTRAL.noise_multiplier
    exact = {"treatment": line.vectors(30).sum(axis=0), "control": line.vectors(20).sum(axis=0)}
    places = {"treatment": slice(0, 43), "control": slice(40, 43)}
    noise = np.concatenate([(np.array(event.released[a]) - exact[a])[places[a]] for a in exact])
    assert has_its_size(noise, event.sigma), "an honest round fails here twice in a million"
    assert not has_its_size(noise, event.sigma / 4)
    assert recompute(store, landing, "private", "main", 1, NumpyEngine(), KEY).identical
    assert recompute(store, landing, "private", "main", 1, NumpyEngine(), KEY).noise is None
    assert list(landing.rglob("*.parquet")) == []
    assert asked_files(tmp_path) == {"0.answer"}


def test_a_line_waits_for_its_helper_with_one_request_and_is_charged_once(tmp_path: Path) -> None:
    line, store, landing = begun(tmp_path, central=CENTRAL)
    steps: list[str] = []
    first = round_of(store, landing, on_step=steps.append)
    assert (first.status, first.since, first.clients) == ("asked", WHEN, 50)
    where = f"{store.where}/private/main/asked/0.request"
    assert first.sentence == (
        "private/main: version 0 stays; the helper was asked for the sums of 50 clients at 2026-01-01 00:00:00 UTC "
        f"and has not answered: give --helper URL, or send {where} to the helper and pass its answer with --answer "
        "FILE"
    )
    assert steps == ["repaired", "listed", "summed", "asked"]
    request = (tmp_path / "store/private/main/asked/0.request").read_bytes()
    assert is_from(request, Request, leader_identity(KEY))
    land_private(landing, line.study, line.crowd(9, seed=5), at_ms=FIRST_MS + 1)
    again = round_of(store, landing, clock=lambda: "2026-01-02T00:00:00.000+00:00")
    assert (again.status, again.since, again.clients) == ("asked", WHEN, 50)
    assert spent(store, store.head("private", "main")).releases == 0
    way, steps = line.way, []
    assert round_of(store, landing, way, on_step=steps.append).status == "published"
    assert way.seen == [request]
    assert steps == ["repaired", "answered", "aggregated", "drawn", "stepped", "published", "deleted", "forgotten"]
    assert spent(store, store.head("private", "main")).releases == 1
    assert len(documents_in(request)["treatment"]) == 30
    assert list(landing.rglob("*.parquet")) == [], "those that came after the request are of a version that is over"


def test_other_lines_go_on_meanwhile(tmp_path: Path) -> None:
    """A waiting line's round returns at once, and neither its pings nor its request block another line."""
    line, store, landing = begun(tmp_path)
    other = shared_line(tmp_path, name="other", helper=line.helper)
    from fedping.server_jobs.optimize import first_versions

    store.create_study(other.study, first_versions(other.study, created=WHEN, code_version="test"))
    land_private(landing, other.study, [*other.crowd(6), *other.crowd(6, arm="control")])
    assert round_of(store, landing, Refusing("storage")).status == "asked"
    options = RoundOptions(clock=lambda: WHEN, code_version="test", privacy_key=KEY, helper=other.way)
    made = run_round(store, landing, "other", "main", NumpyEngine(), options)
    assert made.status == "published"
    assert round_of(store, landing, line.way).status == "published"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"min_batch": 21}, "20 of at least 21 clients of arm 'control' have sent a usable share"),
        ({"min_clients": 31}, "30 of at least 31 clients have sent a usable share"),
    ],
)
def test_a_round_waits_for_clients_before_it_asks(tmp_path: Path, settings: dict[str, int], told: str) -> None:
    line, store, landing = begun(tmp_path, central=CENTRAL, **settings)
    way = line.way
    result = round_of(store, landing, way)
    assert (result.status, way.seen, asked_files(tmp_path)) == ("waiting", [], set())
    assert result.sentence.startswith(f"private/main: version 0 stays; {told}")
    more = [*line.crowd(1, seed=7), *line.crowd(1, seed=7, arm="control")]
    land_private(landing, line.study, more, at_ms=FIRST_MS + 1)
    assert round_of(store, landing, way).status == "published"


def test_nothing_landed_waits_too(tmp_path: Path) -> None:
    line = shared_line(tmp_path, central=CENTRAL)
    store = store_with(tmp_path / "store", line.study)
    (tmp_path / "landing").mkdir()
    assert round_of(store, tmp_path / "landing", line.way).sentence.startswith(
        "private/main: version 0 stays; 0 of at least 5 clients of arm 'treatment'"
    )


def test_a_client_whose_share_the_helper_refuses_is_in_neither_sum(tmp_path: Path) -> None:
    line = shared_line(tmp_path)
    store, landing = store_with(tmp_path / "store", line.study), tmp_path / "landing"
    good, bad = [*line.crowd(30), *line.crowd(20, arm="control")], line.crowd(12, seed=8)
    garbage = [replace(p, payload=p.payload[:64] + id_of("x", i) * 5) for i, p in enumerate(bad[:4])]  # type: ignore[index]
    garbage += [replace(p, payload=bytes(8) + p.payload[8:]) for p in bad[4:6]]  # type: ignore[index]
    garbage += [replace(p, payload=bad[0].payload) for p in bad[6:9]]
    garbage += [replace(p, document=id_of("another", i)) for i, p in enumerate(bad[9:])]
    for i in range(2):
        land_private(landing, line.study, [*good, *garbage][i::2], at_ms=FIRST_MS + i)
    result = round_of(store, landing, line.way)
    assert result.status == "published"
    assert "; the helper could not use the shares of 12 clients and left them out" in result.sentence
    event = store.head("private", "main").lineage.privacy
    assert event is not None
    assert event.shared is not None
    assert event.shared.refused == 12
    assert event.released["treatment"] == tuple(line.vectors(30).sum(axis=0).tolist())
    assert recompute(store, landing, "private", "main", 1, NumpyEngine()).identical


def test_documents_that_several_clients_send_count_for_none(tmp_path: Path) -> None:
    """An attacker who copies a ping neither counts twice, nor prevents the answer to the whole request."""
    line, store, landing = begun(tmp_path)
    crowd = line.crowd(30)
    copied = [replace(p, client=client(line.study, "treatment", 900_000 + i)) for i, p in enumerate(crowd[:3])]
    other = [replace(crowd[3], client=client(line.study, "control", 900_009), arm="control")]
    land_private(landing, line.study, [*copied, *other, *copied], at_ms=FIRST_MS + 1)
    way = line.way
    assert round_of(store, landing, way).status == "published"
    assert {arm: len(ids) for arm, ids in documents_in(way.seen[0]).items()} == {"treatment": 26, "control": 20}
    event = store.head("private", "main").lineage.privacy
    assert event is not None
    assert event.released["treatment"] == tuple(line.vectors(30)[4:].sum(axis=0).tolist())
    assert event.released["control"][4:] == tuple(line.vectors(20).sum(axis=0)[4:].tolist())


def test_an_answer_that_leaves_too_few_for_a_step_is_published_all_the_same(tmp_path: Path) -> None:
    """A helper answers once for each version, so otherwise a line without noise would wait forever."""
    line = shared_line(tmp_path, min_clients=12)
    store, landing = store_with(tmp_path / "store", line.study), tmp_path / "landing"
    garbage = [replace(p, payload=bytes(8) + p.payload[8:]) for p in line.crowd(4, seed=2)]  # type: ignore[index]
    land_private(landing, line.study, [*line.crowd(8), *garbage, *line.crowd(9, arm="control")])
    result = round_of(store, landing, line.way)
    assert result.status == "published"
    assert "which repeats version 0: too few for a step, which needs 12" in result.sentence
    assert store.head("private", "main").iteration == 1


@pytest.mark.parametrize("proofs", [False, True])
def test_a_helper_that_leaves_out_all_clients_but_one_reads_nothing_of_that_one(tmp_path: Path, proofs: bool) -> None:
    """The helper itself decides whose shares it can't use, and the published sum covers the others."""
    line, store, landing = begun(tmp_path, proofs=proofs)
    assert round_of(store, landing).status == "asked"

    def all_but(left: int) -> Callable[[bytes], bytes]:
        arms = read_signed(line.way.answer(line_request(tmp_path), 10**6), Answer).arms
        return of_another(
            line,
            arms=tuple(
                AnsweredArm(arm=arm.arm, total=arm.total, refused=tuple(range(left, n)))
                for arm, n in zip(arms, (30, 20), strict=True)
            ),
        )

    for left in (0, 1, 4):
        with pytest.raises(FedpingError, match=f"uses {left} of 30 clients of arm 'treatment', but a sum needs 5"):
            round_of(store, landing, ByHand(line.helper, spoil=all_but(left)))
        assert store.head("private", "main").iteration == 0
    assert round_of(store, landing, line.way).status == "published"


def of_another(of: SharedLine, **changed: Any) -> Callable[[bytes], bytes]:
    """Return a function that changes an answer, and lets the helper sign it."""
    from msgspec.structs import replace as changed_by

    return lambda data: signed(changed_by(read_signed(data, Answer), **changed), of.helper.key)


def spoilt(line: SharedLine, folder: Path) -> dict[str, tuple[Callable[[bytes], bytes], str]]:
    stranger = make_helper(folder / "stranger")
    whole = read_signed(line.way.answer(line_request(folder), 10**6), Answer)
    arms = whole.arms
    first = arms[0]

    def arm(**changed: Any) -> Any:
        from msgspec.structs import replace as changed_by

        return of_another(line, arms=(changed_by(first, **changed), *arms[1:]))

    return {
        "truncated": (lambda data: data[:-1], "is not signed by the study's helper"),
        "empty": (lambda data: b"", "is not signed by the study's helper"),
        "flipped": (
            lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
            "is not signed by the study's helper",
        ),
        "forged": (lambda data: signed(read_signed(data, Answer), stranger.key), "is not signed by the study's helper"),
        "other version": (
            of_another(line, version=3, request="0" * 64),
            "another request, on version 3 of private/main",
        ),
        "other study": (of_another(line, study="x", request="0" * 64), "another request, on version 0 of x/main"),
        "replayed": (of_another(line, request="0" * 64), "answers another request; no version"),
        "other line": (of_another(line, line="x"), "it names another study, line or version"),
        "no arms": (of_another(line, arms=()), "it has other arms"),
        "arms turned round": (of_another(line, arms=arms[::-1]), "it has other arms"),
        "an arm twice": (of_another(line, arms=(first, first)), "it has other arms"),
        "too short": (arm(total=first.total[8:]), "its sum of arm 'treatment' has 48 bytes instead of 56"),
        "places beyond": (arm(refused=(30,)), "are not positions in the request"),
        "places twice": (arm(refused=(1, 1)), "are not positions in the request"),
        "negative places": (arm(refused=(-1,)), "are not positions in the request"),
        "all places but one": (arm(refused=tuple(range(1, 30))), "it uses 1 of 30 clients of arm 'treatment', but"),
        "too many places": (arm(refused=tuple(range(26))), "but a sum needs 5 or more"),
    }


def line_request(folder: Path) -> bytes:
    return (folder / "store/private/main/asked/0.request").read_bytes()


def test_a_spoilt_answer_is_refused_with_a_reason_and_nothing_is_lost(tmp_path: Path) -> None:
    line, store, landing = begun(tmp_path, central=CENTRAL)
    assert round_of(store, landing).status == "asked"
    request, kept = line_request(tmp_path), asked_files(tmp_path)
    for name, (spoil, told) in spoilt(line, tmp_path).items():
        with pytest.raises(FedpingError) as caught:
            round_of(store, landing, ByHand(line.helper, spoil=spoil))
        assert told in str(caught.value), name
        assert "no version was published" in str(caught.value), name
        assert (line_request(tmp_path), asked_files(tmp_path)) == (request, kept), name
        (tmp_path / "answer").write_bytes(spoil(line.way.answer(request, 10**6)))
        with pytest.raises(FedpingError, match=r"the helper's answer for line 'main' of study 'private'"):
            round_of(store, landing, FileHelper(tmp_path / "answer"))
    assert spent(store, store.head("private", "main")).releases == 0
    assert round_of(store, landing, line.way).status == "published"


def test_an_answer_of_the_version_before_is_none(tmp_path: Path) -> None:
    line, store, landing = begun(tmp_path, central=CENTRAL)
    round_of(store, landing)
    (tmp_path / "first").write_bytes(line.way.answer(line_request(tmp_path), 10**6))
    assert round_of(store, landing, FileHelper(tmp_path / "first")).status == "published"
    crowd = [*line.crowd(30, version=1), *line.crowd(20, arm="control", version=1)]
    land_private(landing, line.study, crowd, iteration=1)
    with pytest.raises(FedpingError, match="answers another request, on version 0 of private/main; no version was"):
        round_of(store, landing, FileHelper(tmp_path / "first"))
    assert round_of(store, landing, line.way).status == "published"
    assert [store.version("private", "main", n).lineage.privacy.releases for n in (1, 2)] == [1, 2]  # type: ignore[union-attr]
    assert asked_files(tmp_path) == {"0.answer", "1.answer"}


def test_a_wrong_privacy_key_is_refused_by_the_helper_first_and_by_the_lineage_later(tmp_path: Path) -> None:
    line, store, landing = begun(tmp_path)
    with pytest.raises(InvalidSettings, match=r"'fedping privacy identity FILE' prints\. Nothing was read\."):
        round_of(store, landing, privacy_key=None)
    wrong = round_of(store, landing, line.way, privacy_key=bytes(32))
    assert wrong.status == "asked"
    assert "it rejects the request (forged: the request is not signed by the leader" in wrong.sentence
    right = round_of(store, landing, line.way)
    assert right.status == "published", "a request that another key has signed is signed again"
    with pytest.raises(InvalidSettings, match="used another privacy key"):
        round_of(store, landing, line.way, privacy_key=bytes(32))


def test_a_request_that_the_helper_can_no_longer_take_is_put_aside_and_made_again(tmp_path: Path) -> None:
    line, store, landing = begun(tmp_path)
    round_of(store, landing)
    first = line_request(tmp_path)
    late = ByHand(line.helper, NOW + timedelta(days=8))
    result = round_of(store, landing, late)
    assert result.status == "waiting"
    assert "rejects the request (too_old: the request is 8 days old" in result.sentence
    assert "the request is put aside; the next round creates another" in result.sentence
    land_private(landing, line.study, line.crowd(3, seed=5), at_ms=FIRST_MS + 1)
    result = round_of(store, landing, late, clock=lambda: (NOW + timedelta(days=8)).isoformat())
    assert result.status == "published"
    assert late.seen[0] == first
    assert len(documents_in(late.seen[1])["treatment"]) == 33


def test_a_refusal_that_still_lies_about_is_none_of_the_next_request(tmp_path: Path) -> None:
    """Otherwise an hourly job with `--answer` would discard every request before the helper sees it."""
    import msgspec

    line, store, landing = begun(tmp_path)
    round_of(store, landing)
    left = FileHelper(tmp_path / "answer")
    refused, digest = Refused("too_old", "it is 8 days old"), digest_of_signed(line_request(tmp_path))
    refused.sign(digest, line.helper.key)
    left.path.write_bytes(msgspec.json.encode(refused.refusal(digest)))
    later = {"clock": lambda: "2026-01-01T00:01:00.000+00:00"}
    assert round_of(store, landing, left).status == "waiting"
    again = round_of(store, landing, left, **later)
    assert again.status == "asked"
    assert again.sentence.endswith("the rejection of an earlier request; give the helper's answer to the current one")
    left.path.write_bytes(line.way.answer(line_request(tmp_path), 10**6))
    assert round_of(store, landing, left, **later).status == "published"


def test_an_answer_that_was_lost_is_asked_for_again_though_the_request_was_put_aside(tmp_path: Path) -> None:
    """The helper's answer is lost, and the helper, restored from a backup since, considers the request too old."""
    line, store, landing = begun(tmp_path)
    round_of(store, landing)
    line.way.answer(line_request(tmp_path), 10**6)
    assert round_of(store, landing, Refusing("too_old", line.helper)).status == "waiting"
    land_private(landing, line.study, line.crowd(3, seed=5), at_ms=FIRST_MS + 1)
    assert round_of(store, landing, line.way).status == "published"
    event = store.head("private", "main").lineage.privacy
    assert event is not None
    assert event.released["treatment"] == tuple(line.vectors(30).sum(axis=0).tolist()), "as it was answered at first"
    assert asked_files(tmp_path) == {"0.answer"}


def test_a_version_that_is_answered_to_another_request_is_left_behind_and_counted(tmp_path: Path) -> None:
    from fedping.model_store.decisions import continue_at

    line, store, landing = begun(tmp_path, central=CENTRAL)
    other = store_with(tmp_path / "copy/store", line.study)
    land_private(tmp_path / "copy/landing", line.study, [*line.crowd(25), *line.crowd(20, arm="control")])
    assert round_of(other, tmp_path / "copy/landing", line.way).status == "published"
    with pytest.raises(
        FedpingError, match=r"\(answered: .*'fedping store continue private main --from 2', which counts"
    ):
        round_of(store, landing, line.way)
    continue_at(store, "private", "main", 2, created=WHEN, code_version="test")
    assert spent(store, store.head("private", "main")).releases == 1
    crowd = [*line.crowd(30, version=2), *line.crowd(20, arm="control", version=2)]
    land_private(landing, line.study, crowd, iteration=2)
    assert round_of(store, landing, line.way).status == "published"
    assert spent(store, store.head("private", "main")).releases == 2
    assert asked_files(tmp_path) == {"2.answer"}


@pytest.mark.parametrize("reason", ["unknown", "other_terms", "unreadable", "too_many", "storage"])
def test_what_people_have_to_mend_is_waited_for(tmp_path: Path, reason: str) -> None:
    line, store, landing = begun(tmp_path)
    result = round_of(store, landing, Refusing(reason))
    assert result.status == "asked"
    assert result.sentence.endswith(f"it rejects the request ({reason}: because it likes to)")
    told = store.helper_request("private", "main").told(0)
    assert told is not None
    counts = reason == "too_many"  # its sentence has the number of clients, which pages don't show
    assert told.why == f"it rejects the request ({reason}{'' if counts else ': because it likes to'})"
    assert round_of(store, landing, line.way).status == "published"
    assert store.helper_request("private", "main").told(0) is None


def test_how_many_clients_the_helper_counts_is_for_the_operator_and_not_for_pages(tmp_path: Path) -> None:
    line, store, landing = begun(tmp_path)
    result = round_of(store, landing, Refusing("too_few", line.helper))
    assert "(too_few: because it likes to), so the request is put aside" in result.sentence
    told = store.helper_request("private", "main").told(0)
    assert told is not None
    assert told.why == "it rejects the request (too_few), so the request is put aside; the next round creates another"


class Unreachable:
    def answer(self, request: bytes, most: int) -> bytes:
        raise HelperUnavailable("can't reach the helper at http://helper")


def test_pings_that_are_gone_stop_the_round_if_the_helper_has_refused_any_of_them(tmp_path: Path) -> None:
    line, store, landing = begun(tmp_path)
    bad = [replace(p, payload=bytes(8) + p.payload[8:]) for p in line.crowd(2, seed=8)]  # type: ignore[index]
    file = land_private(landing, line.study, bad, at_ms=FIRST_MS + 1)
    assert round_of(store, landing, Unreachable()).sentence.endswith(
        "has not answered: can't reach the helper at http://helper"
    )
    file.rename(tmp_path / "away")
    with pytest.raises(FedpingError, match="is missing, but its pings are needed"):
        round_of(store, landing, line.way)
    (tmp_path / "away").rename(file)
    assert round_of(store, landing, line.way).status == "published"


def test_a_damaged_request_is_said_to_be_one(tmp_path: Path) -> None:
    line, store, landing = begun(tmp_path)
    round_of(store, landing)
    path = tmp_path / "store/private/main/asked/0.msgpack"
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(FedpingError, match=r"0\.msgpack, the open request to the helper, is damaged"):
        round_of(store, landing, line.way)
    path.write_bytes(whole)
    (tmp_path / "store/private/main/asked/0.request").unlink()
    assert round_of(store, landing, line.way).status == "published"


def test_a_guarantee_is_over_for_a_line_of_shares_too(tmp_path: Path) -> None:
    from msgspec.structs import replace as changed

    line = shared_line(tmp_path, central=changed(CENTRAL, rounds=2))
    store, landing = store_with(tmp_path / "store", line.study), tmp_path / "landing"
    for version in range(3):
        crowd = [*line.crowd(8, version=version), *line.crowd(8, arm="control", version=version)]
        land_private(landing, line.study, crowd, iteration=version)
        result = round_of(store, landing, line.way)
    assert result.status == "exhausted"
    assert store.head("private", "main").iteration == 2


def test_no_noise_is_drawn_before_the_answer_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedping.server_jobs.privacy.noise import SystemNoise

    line, store, landing = begun(tmp_path, central=CENTRAL)
    drawn: list[float] = []
    real = SystemNoise.integers
    monkeypatch.setattr(SystemNoise, "integers", lambda self, sigma, d: (drawn.append(sigma), real(self, sigma, d))[1])
    for _ in range(3):
        assert round_of(store, landing).status == "asked"
    assert drawn == []
    assert round_of(store, landing, line.way).status == "published"
    frame = frame_of(line.study.lines[0].privacy, line.study.lines[0].spec)  # type: ignore[arg-type]
    sigma = CENTRAL.noise_multiplier * frame.sensitivity  # type: ignore[operator]
    assert drawn == [sigma] * 3, "by the helper once an arm, and once by the leader"


def test_more_clients_than_a_helper_takes_are_said_to_be_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, store, landing = begun(tmp_path)
    monkeypatch.setattr("fedping.server_jobs.round.private_sums.MOST_CLIENTS", 49)
    with pytest.raises(FedpingError, match=r"more than 49 clients of line 'main'.* No request was sent"):
        round_of(store, landing, line.way)
    assert asked_files(tmp_path) == set()


@pytest.mark.parametrize("reason", ["too_few", "too_old", "from_the_future", "repeated", "answered"])
def test_what_gives_a_request_up_the_helper_has_to_sign(tmp_path: Path, reason: str) -> None:
    """With unsigned rejections, an attacker in between could drop answers and have every request discarded."""
    line, store, landing = begun(tmp_path)
    another = make_helper(tmp_path / "another")
    for way in (Refusing(reason), Refusing(reason, another)):
        for _ in range(3):
            result = round_of(store, landing, way)
            assert result.status == "asked"
            assert "the helper has not signed that it rejects the request" in result.sentence
    kept = line_request(tmp_path)
    earlier = Refused(reason, "of another request")  # type: ignore[arg-type]
    earlier.sign("0" * 64, line.helper.key)
    assert not earlier.is_from(line.helper.identity, digest_of_signed(kept))
    assert round_of(store, landing, line.way).status == "published"
