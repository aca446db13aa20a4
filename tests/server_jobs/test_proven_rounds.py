"""Rounds of lines whose clients prove their votes: the plain sums, for any content of hostile clients' shares."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from fedping.protocol.proofs.field import P
from fedping.protocol.proofs.prio3 import RAND_BYTES, shard
from fedping.protocol.sharing.exchange import Request, read_signed, signed
from fedping.protocol.sharing.keys import sealer
from fedping.protocol.sharing.offer import terms_of
from fedping.protocol.sharing.shares import Votes, bits_of, context_of, info_of, layout
from fedping.server_jobs.privacy.keys import leader_key
from fedping.server_jobs.round.engine import NumpyEngine
from tests.server_jobs.test_shared_rounds import begun, messy, plain_sums, round_of
from tests.support.private_rounds import PrivatePing, land_private
from tests.support.rounds import FIRST_MS, id_of, store_with
from tests.support.shared_rounds import CENTRAL, KEY, SharedLine, shared_line


def test_a_round_of_proven_votes_is_the_plain_one_integer_for_integer(tmp_path: Path) -> None:
    line = shared_line(tmp_path, proofs=True)
    shares, vectors = messy(line)
    expected = plain_sums(tmp_path / "plain", line, vectors)
    requests = set()
    for name, parts, engine in (("one", 1, NumpyEngine()), ("five", 5, NumpyEngine(2))):
        store, landing, way = store_with(tmp_path / name / "store", line.study), tmp_path / name / "landing", line.way
        for part in range(parts):
            land_private(landing, line.study, shares[part::parts], at_ms=FIRST_MS + part)
        assert round_of(store, landing, way, engine=engine).status == "published"
        event = store.version("private", "main", 1).lineage.privacy
        assert event is not None
        assert event.released["treatment"] == tuple(expected["treatment"])
        assert event.released["control"][4:] == tuple(expected["control"][4:])
        assert event.shared is not None
        assert event.shared.refused == 0
        asked = read_signed(way.seen[0], Request)
        requests.add((asked.verify_key, *(arm.prepared for arm in asked.arms)))
    assert len(requests) == 1, "what a leader shows of a proof it shows under one key"


def hostile(line: SharedLine, bits: NDArray[np.uint64], documents: list[bytes], tamper: str = "") -> list[PrivatePing]:
    """Return pings of clients that share any numbers as bits, with the resulting proof."""
    settings = line.study.lines[0].upload[0]
    votes = Votes(line.study.lines[0].spec.m + 3, settings.metric)  # type: ignore[union-attr]
    context = context_of("private", "main", 0, "treatment", votes)
    nonces = np.frombuffer(b"".join(documents), np.uint8).reshape(-1, 16)
    rand = np.random.default_rng(7).integers(0, 256, (len(documents), RAND_BYTES), np.uint8)
    made = shard(votes.circuit, bits, nonces, rand, context)
    parts = {"leader": made.leader.copy(), "public": made.public.copy(), "helper": made.helper.copy()}
    if tamper in parts:
        parts[tamper][:, 8 * 2] ^= 1
    if tamper == "form":
        parts["leader"][:, :8] = 0xFF  # no element of the field
    terms = terms_of(line.offer, line.helper.identity)
    seal = sealer(terms.seal, bytes.fromhex(terms.key))
    pings = []
    for row, ping in enumerate(line.pings(line.vectors(len(documents), 9), seed=9)):
        document = UUID(bytes=documents[row])
        info = info_of("private", "main", 0, "treatment", document, terms.numbers, line.offer.id)
        payload = b"".join(
            [
                line.offer.id,
                parts["leader"][row].tobytes(),
                parts["public"][row].tobytes(),
                seal(parts["helper"][row].tobytes(), info),
            ]
        )
        assert len(payload) == layout(terms.numbers, terms.seal, terms.metric).size
        pings.append(replace(ping, payload=payload, document=documents[row]))
    return pings


@pytest.mark.parametrize("what", ["2^40", "two", "minus one", "leader", "public", "helper", "form"])
def test_a_client_that_shares_what_is_no_vote_is_left_out_and_all_others_count(tmp_path: Path, what: str) -> None:
    line = shared_line(tmp_path, proofs=True)
    honest = [*line.crowd(30), *line.crowd(20, arm="control")]
    votes = Votes(7, line.study.lines[0].upload[0].metric)  # type: ignore[union-attr]
    bits = bits_of(votes, line.vectors(4, 8)).astype(np.uint64)
    bits[:, 1] = {"2^40": 2**40, "two": 2, "minus one": P - 1}.get(what, bits[:, 1])
    bad = hostile(line, bits, [id_of("hostile", number) for number in range(4)], what)
    store, landing = store_with(tmp_path / "store", line.study), tmp_path / "landing"
    land_private(landing, line.study, honest + bad)
    assert round_of(store, landing, line.way).status == "published"
    event = store.version("private", "main", 1).lineage.privacy
    assert event is not None
    assert event.shared is not None
    assert event.released["treatment"] == tuple(line.vectors(30).sum(axis=0).tolist())
    assert event.shared.refused == (0 if what == "form" else 4), "of a form that no honest client's has the leader sees"


def test_with_noise_and_proofs_a_line_goes_on_round_after_round(tmp_path: Path) -> None:
    line, store, landing = begun(tmp_path, proofs=True, central=CENTRAL)
    for version in (1, 2):
        assert round_of(store, landing, line.way).status == "published"
        event = store.version("private", "main", version).lineage.privacy
        assert event is not None
        assert event.sigma == pytest.approx(2**0.5 * event.noise_multiplier * event.sensitivity)
        pings = [*line.crowd(30, version=version), *line.crowd(20, arm="control", version=version)]
        land_private(landing, line.study, pings, iteration=version)


def test_too_few_clients_with_a_well_formed_share_are_waited_for(tmp_path: Path) -> None:
    line = shared_line(tmp_path, proofs=True, min_batch=20)
    votes = Votes(7, line.study.lines[0].upload[0].metric)  # type: ignore[union-attr]
    bits = bits_of(votes, line.vectors(4, 8)).astype(np.uint64)
    bad = hostile(line, bits, [id_of("hostile", number) for number in range(4)], "form")
    store, landing = store_with(tmp_path / "store", line.study), tmp_path / "landing"
    land_private(landing, line.study, [*line.crowd(18), *bad, *line.crowd(20, arm="control")])
    result = round_of(store, landing, line.way)
    assert result.status == "waiting"
    assert "18 of at least 20 clients of arm 'treatment'" in result.missing


def test_a_helper_that_gets_another_key_for_proofs_answers_nothing_that_counts(tmp_path: Path) -> None:
    """All proofs fail with this key, so too few clients are left."""
    line, store, landing = begun(tmp_path, proofs=True)
    way = line.way
    real = way.answer

    def with_another_key(request: bytes, most: int) -> bytes:
        asked = read_signed(request, Request)
        return real(signed(msgspec.structs.replace(asked, verify_key=bytes(32)), leader_key(KEY)), most)

    way.answer = with_another_key  # type: ignore[method-assign]
    result = round_of(store, landing, way)
    assert result.status == "asked"
    assert "the helper has not signed that it rejects the request (too_few" in result.missing, "of that other request"
