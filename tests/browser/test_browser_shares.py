"""Browsers in a two-server line: a real ingest accepts their shares, and the helper's own code opens its half."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from msgspec.structs import replace

from fedping.helper.aggregate import Key, arms_answered
from fedping.model_store import open_store
from fedping.protocol.privacy import METRICS, Central, Privacy, Shared
from fedping.protocol.sharing.exchange import AnsweredArm, Request
from fedping.protocol.sharing.keys import Seal, identity_of, new_private_key, public_key, signing_key
from fedping.protocol.sharing.offer import Offer, Terms, signed_offer
from fedping.protocol.sharing.shares import context_of, layout
from fedping.protocol.sharing.terms import terms_for
from fedping.protocol.study import Arm, Line, Study, public_json, public_study
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.privacy.noise import SystemNoise
from fedping.server_jobs.round.private_sums import Proofs, Shares, asked_arms, shared_sums, summing, votes_of
from tests.browser.pages import Web, serving
from tests.browser.test_browser_ingest import drive
from tests.browser.tools import landed_rows
from tests.conformance.vectors import study_of_pings
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.versions import WHEN

HELPER = signing_key(b"a secret of the tests", "helper")
LEADER = identity_of(signing_key(b"a secret of the tests", "leader"))
D = 22 + len(METRICS)


def study_of_shares(arms: Sequence[str], privacy: Privacy, name: str = "shares") -> Study:
    """Return a study with a two-server line of frecency and arms of equal size."""
    spec = study_of_pings().lines[0].spec
    made = tuple(
        Arm(name=arm, share=1 / len(arms), line="main", submits=arm != "control", applies=True) for arm in arms
    )
    return Study(name=name, pings="private-update", arms=made, lines=(Line(name="main", spec=spec, privacy=privacy),))


def shared(seal: Seal = "x25519", central: Central | None = None, proofs: bool = False) -> Privacy:
    """Return privacy settings with sums of at least two clients, in which every client sends at once."""
    helper = Shared(helper=identity_of(HELPER), min_batch=2, seal=seal, proofs=proofs)
    return Privacy(shared=helper, central=central, loss=(0.0, 1000.0), delay_minutes=0)


@dataclass
class Running:
    """An ingest, a relay that adds the helper's offer to the study, and the helper's keys."""

    study: Study
    server: IngestServer
    web: Web
    terms: Terms
    private: bytes
    landing: Path

    @property
    def offer(self) -> Offer:
        return signed_offer(self.terms, HELPER)

    def publish(self, offer: Offer | None) -> None:
        """Show clients another offer than the published one; None shows no offer."""
        offers = {} if offer is None else {"main": offer}
        self.web.instead[f"/models/{self.study.name}/study.json"] = public_json(public_study(self.study, offers=offers))

    def landed(self) -> dict[str, dict[UUID, bytes]]:
        """Return the landed payloads by arm and document id; all have the length of the layout."""
        rows, size = landed_rows(self.landing), layout(D, self.terms.seal, self.terms.metric).size
        assert {row["update_encoding"] for row in rows.values()} == {"shared"}
        assert {len(row["update"]) for row in rows.values()} == {size}
        found: dict[str, dict[UUID, bytes]] = {}
        for document, row in rows.items():
            found.setdefault(row["study_variation"], {})[UUID(document)] = row["update"]
        return dict(sorted(found.items()))

    def sums(self) -> dict[str, list[int]]:
        """Return the sums of both servers by arm; they reject no client."""
        answered, found = self.answer(self.landed())
        assert {each.refused for each in answered} == {()}
        return found

    def answer(self, landed: dict[str, dict[UUID, bytes]]) -> tuple[tuple[AnsweredArm, ...], dict[str, list[int]]]:
        """Return the helper's answer, and both servers' noisy sums of the arms in which it rejects no client."""
        line, names = self.study.lines[0], list(landed)
        shares: Shares = {}
        for number, payloads in enumerate(landed.values()):
            rows = np.frombuffer(b"".join(payloads.values()), np.uint8).reshape(len(payloads), -1)
            documents = np.frombuffer(b"".join(document.bytes for document in payloads), np.uint8).reshape(-1, 16)
            arms = np.full(len(payloads), number, np.int16)
            shares = shared_sums(line).add(shares, rows, np.ones(len(payloads)), arms, documents)
        proofs, key, of, votes = None, b"", summing(line), votes_of(line)
        if votes is not None:
            key = bytes(range(32))
            proofs = Proofs(key, {arm: context_of(self.study.name, line.name, 0, arm, votes) for arm in names})
        asked, own = asked_arms(line, names, shares, proofs)
        request = Request(study=self.study.name, line="main", version=0, arms=asked, made=WHEN, verify_key=key)
        answered = arms_answered(self.terms, {self.offer.id: Key(self.terms, self.private)}, request, SystemNoise())
        found = {}
        for arm, each in zip(asked, answered, strict=True):
            theirs = np.frombuffer(each.total, "<u8").astype(np.uint64)
            found[arm.arm] = of.ring.centred(of.ring.plus(of.vector(own[arm.arm], arm.clients), theirs)).tolist()
        return answered, found


@contextmanager
def running(folder: Path, study: Study) -> Iterator[Running]:
    """Run the ingest of a study with a helper's offer."""
    [line] = study.lines
    assert line.privacy is not None
    assert line.privacy.shared is not None
    seal = line.privacy.shared.seal
    private = new_private_key(seal)
    terms = terms_for(study, line, LEADER, public_key(seal, private), WHEN)
    store = open_store(folder / "store", create=True)
    store.create_study(study, first_versions(study, created=WHEN, code_version="test"))
    store.studies.publish_offer(study.name, line.name, signed_offer(terms, HELPER))
    with running_ingest(folder / "store", folder / "landing") as server, serving(server.url) as web:
        yield Running(study, server, web, terms, private, folder / "landing")


@pytest.mark.parametrize("proofs", [False, True])
def test_what_browsers_share_adds_up_to_what_they_told(tmp_path: Path, proofs: bool) -> None:
    with running(tmp_path, study_of_shares(["treatment", "control"], shared(proofs=proofs))) as made:
        told = drive(made.web.relay, "shares", clients=12)
        made.server.flush()
        assert all(client["counts"] == {"accepted": 1, "refused": 0, "dropped": 0, "waiting": 0} for client in told)
        sums = made.sums()
    assert len(sums) == 2
    for arm, found in sums.items():
        vectors = [client["sent"][0]["vector"] for client in told if client["arm"] == arm]
        assert found == np.sum(vectors, axis=0).tolist(), arm


def test_a_proof_counts_for_its_own_message_alone(tmp_path: Path) -> None:
    """Of messages with proofs, the helper rejects the one that was changed after leaving the browser."""
    with running(tmp_path, study_of_shares(["treatment"], shared(proofs=True))) as made:
        drive(made.web.relay, "shares", clients=4)
        made.server.flush()
        landed = made.landed()
    payloads = landed["treatment"]
    first, other = sorted(payloads, key=lambda document: document.bytes)[:2]
    told, end = payloads[first], layout(D, "x25519", made.terms.metric).leader + len(made.offer.id)
    for where, changed in (
        ("a bit", _flipped(told, len(made.offer.id))),
        ("the public share", _flipped(told, end - 1)),
        ("another's proof", payloads[other][:end] + told[end:]),
    ):
        [answered] = made.answer({"treatment": {**payloads, first: changed}})[0]
        assert answered.refused == (0,), where


def _flipped(payload: bytes, place: int) -> bytes:
    return payload[:place] + bytes([payload[place] ^ 1]) + payload[place + 1 :]


def test_without_an_offer_that_fits_nothing_is_sent(tmp_path: Path) -> None:
    central = Central(epsilon=1.0, delta=1e-6, rounds=5, population=1000, noise_multiplier=4.0)
    with running(tmp_path, study_of_shares(["treatment"], shared(central=central))) as made:
        quiet = replace(made.terms, sigma=1.0)
        for offer in (None, signed_offer(quiet, HELPER), signed_offer(made.terms, signing_key(b"somebody", "else"))):
            made.publish(offer)
            assert all(client["sent"] == [] for client in drive(made.web.relay, "shares", clients=2))
        assert made.web.posts() == []
        made.publish(made.offer)
        assert all(len(client["sent"]) == 1 for client in drive(made.web.relay, "shares", clients=2))
        made.server.flush()
        assert set(made.sums()) == {"treatment"}


@pytest.fixture(params=["chromium", "firefox"])
def visit(request: pytest.FixtureRequest) -> Callable[[str], object]:
    """Return a function that opens a page in a browser."""
    browser = request.getfixturevalue(request.param)
    return browser.new_page if request.param == "chromium" else browser.page.navigate


PAGE = """<!doctype html>
<meta charset="utf-8">
<script type="module">
  import { Client, memoryStorage } from "/fedping.js";

  const pages = [1, 2, 3, 4].map((i) => ({ visits: [{ time: Date.now() - 9e7 * i, type: 1 }], visitCount: 9 - i }));
  const settings = { ingest: "INGEST", study: "shares" };
  const tell = (step, value) => fetch("/told", { method: "POST", body: JSON.stringify({ step, value }) });
  async function takePart() {
    const client = new Client({ ...settings, storage: memoryStorage() });
    await client.start();
    const { arm, trouble, guarantee } = client;
    const reported = client.report(client.rank(pages), { chosen: 2 });
    await client.deliver();
    client.stop();
    return { arm, trouble, guarantee, counts: client.counts, vector: reported && reported.vector };
  }
  await tell("parts", await Promise.all([takePart(), takePart(), takePart()]));
</script>
"""


@pytest.mark.browser
@pytest.mark.parametrize("proofs", [False, True])
def test_a_real_browser_takes_part_in_a_line_of_shares(
    visit: Callable[[str], object], tmp_path: Path, proofs: bool
) -> None:
    with running(tmp_path, study_of_shares(["treatment"], shared(proofs=proofs))) as made:
        made.web.more["/shares.html"] = PAGE.replace("INGEST", made.web.relay)
        visit(f"{made.web.address}/shares.html")
        parts: list[dict[str, Any]] = made.web.hears("parts")
        made.server.flush()
        assert [part["trouble"] for part in parts] == [None] * 3
        assert all(part["counts"] == {"accepted": 1, "refused": 0, "dropped": 0, "waiting": 0} for part in parts)
        assert made.sums() == {"treatment": np.sum([part["vector"] for part in parts], axis=0).tolist()}
    assert any(identity_of(HELPER)[:16] in sentence for sentence in parts[0]["guarantee"])


@pytest.mark.browser
def test_a_real_browser_says_why_it_takes_no_part_by_ml_kem(visit: Callable[[str], object], tmp_path: Path) -> None:
    with running(tmp_path, study_of_shares(["treatment"], shared("mlkem768-x25519"))) as made:
        made.web.more["/shares.html"] = PAGE.replace("INGEST", made.web.relay)
        visit(f"{made.web.address}/shares.html")
        parts = made.web.hears("parts")
        assert [part["arm"] for part in parts] == [None] * 3
        assert "sealed by 'mlkem768-x25519', which no browser can do yet" in parts[0]["trouble"]
        assert made.web.posts() == []
