"""The vectors of docs/conformance agree with the code, the fleet's results and the schemas."""

import asyncio
import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from fedping.client_sim.http import HttpTransport
from fedping.client_sim.models import model_for, page_table, searches_from
from fedping.client_sim.models.reference import loss
from fedping.client_sim.transport import Delivery, Outcome
from fedping.model_store import ModelStore
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.links import SharedVector
from fedping.protocol.privacy import Shared
from fedping.protocol.proofs.field import add
from fedping.protocol.proofs.prio3 import Side, prepare, valid
from fedping.protocol.proofs.sum_vec import SumVec
from fedping.protocol.sharing.keys import opener, sealer
from fedping.protocol.sharing.offer import Offer
from fedping.protocol.sharing.shares import WORDS, Votes, bits_of, context_of, layout, mask, split_public, words_of
from fedping.protocol.sharing.terms import agreed
from fedping.protocol.study import PublicStudy, Study
from tests.browser.tools import BROWSER
from tests.conformance.outcomes import study_of_outcomes
from tests.conformance.vectors import ANSWERS, FOLDER, NOW, TOPICS, drawn_pages, read, text
from tests.support.ingest_app import ingest_app, landed_ids
from tests.support.versions import after

SCHEMAS = FOLDER.parent / "schema"
IN_WORDS = {Delivery.ACCEPTED: "accepted", Delivery.REJECTED: "refused", Delivery.RETRY: "retry"}


@pytest.mark.parametrize("topic", TOPICS)
def test_a_published_file_follows_the_code(topic: str) -> None:
    assert (FOLDER / f"{topic}.json").read_text() == text(topic), "run 'make vectors'"


def test_every_file_is_described_and_read_by_the_browsers_module() -> None:
    described = re.findall(r"^## `(\w+)\.json`", (FOLDER / "README.md").read_text(), re.MULTILINE)
    in_javascript = re.search(r"TOPICS = \[(.*?)\];", (BROWSER / "tests" / "parity.js").read_text(), re.DOTALL)
    assert in_javascript
    assert sorted(described) == sorted(re.findall(r'"(\w+)"', in_javascript[1])) == sorted(TOPICS)
    assert {path.name for path in FOLDER.iterdir()} == {"README.md", *(f"{topic}.json" for topic in TOPICS)}


@pytest.mark.parametrize("name", ["frecency-2018", "linear-15"])
def test_the_vectors_are_those_of_the_fleet(name: str) -> None:
    """The fleet works on arrays: identical bits for frecency, which has whole scores, else equal up to rounding."""
    model, table = model_for(name), page_table(drawn_pages(), NOW)
    for case in (case for case in read("scores")["scores"] if case["model"] == name):
        scores = model.scores(np.array(case["weights"]), table)
        np.testing.assert_allclose(scores, case["scores"], rtol=1e-12, atol=1e-9)
        assert name != "frecency-2018" or scores.tolist() == case["scores"]
    for search in (search for search in read("updates")["searches"] if search["model"] == name):
        weights, one = np.array(search["weights"]), searches_from([search["pages"]], [search["chosen"]])
        update = model.finite_differences(weights, table, one, search["margin"], search["epsilon"])[0]
        np.testing.assert_allclose(update, search["update"], rtol=1e-9, atol=1e-6)
        assert name != "frecency-2018" or update.tolist() == search["update"]
        scores = model.scores(weights, table)[search["pages"]].tolist()
        assert np.isclose(loss(scores, search["chosen"], search["margin"]), search["loss"], rtol=1e-12)


def test_the_schemas_allow_what_is_sent_and_published() -> None:
    pings, model = read("pings"), read("model")
    for case in pings["cases"]:
        _schema("ping").validate(case["ping"])
    _schema("study").validate(pings["study"])
    for study in read("shares")["studies"]:
        _schema("study").validate(study)
    _schema("spec").validate(model["line"]["spec"])
    for case in model["documents"]:
        assert not case["taken"] or _schema("model").is_valid(case["document"]), case["what"]


def test_pings_of_lists_and_outcomes_are_taken(tmp_path: Path) -> None:
    """A real ingest accepts each ping under its document id; a repeated linked outcome lands once."""
    vectors, study = read("outcomes"), study_of_outcomes()
    ingest = ingest_app(tmp_path, others=[study])
    version = version_after(ingest.services.store, study, 12)
    assert version == 12
    _schema("study").validate(vectors["study"])
    path = f"/submit/{study.name}/list-update/1"
    for number, case in enumerate(vectors["lists"]):
        answer = ingest.post(f"{path}/{UUID(int=number + 1)}", json.dumps(case["ping"]).encode())
        assert answer.status_code == 200, answer.json
    sent = [case for case in vectors["later"] if case["ping"] is not None]
    for case in [*sent, *sent]:
        answer = ingest.post(f"/submit/{study.name}/outcome/1/{case['id']}", json.dumps(case["ping"]).encode())
        assert answer.status_code == 200, answer.json
    ingest.land()
    assert len(landed_ids(ingest.settings.landing)) == len(vectors["lists"]) + len(sent)


def version_after(store: ModelStore, study: Study, number: int) -> int:
    """Publish versions of the study's line up to a number, so that clients may name it."""
    while (head := store.head(study.name, "main")).iteration < number:
        store.publish(after(head))
    return head.iteration


def test_offers_and_shares_are_those_of_fedpings_clients_and_helpers() -> None:
    """HPKE's own draws can't be fixed, so sealed shares are compared after opening."""
    vectors = read("shares")
    studies = [msgspec.convert(study, PublicStudy) for study in vectors["studies"]]
    for case in vectors["offers"]:
        study, offer = studies[case["study"]], msgspec.convert(case["offer"], Offer)
        assert _is_taken(study, offer) is case["taken"], case["what"]
        assert offer.id.hex() == case["id"]
    for case in vectors["payloads"]:
        study = studies[case["study"]]
        shared, metric = _shared(study), _metric(study)
        payload = np.frombuffer(base64.b64decode(case["payload"]), np.uint8)[None]
        where, own, sealed = layout(len(case["vector"]), shared.seal, metric).parts(payload)
        opened = opener(shared.seal, bytes.fromhex(case["private"]))(sealed.tobytes(), case["info"].encode())
        assert opened is not None
        if shared.proofs:
            _check_proven(study.name, case, own, np.frombuffer(opened, np.uint8)[None], metric)
        else:
            assert opened.hex() == case["seed"]
            found = WORDS.plus(words_of(own)[0], mask(opened, len(case["vector"])))
            assert WORDS.centred(found).tolist() == case["vector"]
        first = next(offer for offer in vectors["offers"] if offer["study"] == case["study"])
        assert where.tobytes().hex() == first["id"]


def _check_proven(
    study: str, case: dict[str, Any], leader: NDArray[np.uint8], helper: NDArray[np.uint8], metric: int
) -> None:
    """Check that both servers accept the proof of a case, and that its bits equal its vector's."""
    votes = Votes(len(case["vector"]), metric)
    own, public = split_public(votes, leader)
    document = np.frombuffer(UUID(case["document"]).bytes, np.uint8)[None]
    context = context_of(study, "main", case["version"], case["arm"], votes)
    bits = bits_of(votes, np.array([case["vector"]], np.int64)).tolist()
    assert _opened_together(votes.circuit, document, public, own, helper, context) == bits


def _opened_together(
    circuit: SumVec,
    nonce: NDArray[np.uint8],
    public: NDArray[np.uint8],
    leader: NDArray[np.uint8],
    helper: NDArray[np.uint8],
    context: bytes,
) -> list[list[int]]:
    """Return the bits that were proven to both servers."""
    own = prepare(circuit, Side.LEADER, bytes(32), nonce, public, leader, context)
    other = prepare(circuit, Side.HELPER, bytes(32), nonce, public, helper, context)
    assert valid(circuit, public, own.shown, other.shown).all()
    bits: list[list[int]] = add(own.out_shares, other.out_shares).tolist()
    return bits


def test_servers_take_the_proofs() -> None:
    for case in read("proofs")["cases"]:
        nonce, public, leader, helper = (
            np.frombuffer(bytes.fromhex(case[name]), np.uint8)[None] for name in ("nonce", "public", "leader", "helper")
        )
        circuit, context = SumVec.shortest(len(case["bits"])), case["context"].encode()
        assert _opened_together(circuit, nonce, public, leader, helper, context) == [case["bits"]]


def _is_taken(study: PublicStudy, offer: Offer) -> bool:
    try:
        terms = agreed(offer, study, study.lines[0])
        sealer(terms.seal, bytes.fromhex(terms.key))
    except InvalidSettings:
        return False
    return True


def _shared(study: PublicStudy) -> Shared:
    privacy = study.lines[0].privacy
    assert privacy is not None
    assert privacy.shared is not None
    return privacy.shared


def _metric(study: PublicStudy) -> int:
    """Return the largest number of a metric in a proof."""
    [link] = study.lines[0].upload
    assert isinstance(link, SharedVector)
    return link.metric


def test_an_answer_means_to_the_fleet_what_it_means_everywhere() -> None:
    """A real server gives the answer that the document id names."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answering)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        outcomes = asyncio.run(_outcomes(f"http://127.0.0.1:{server.server_address[1]}"))
    finally:
        server.shutdown()
        server.server_close()
    told = [(IN_WORDS[outcome.delivery], outcome.retry_after) for outcome in outcomes]
    assert told == [(delivery, seconds) for _, _, delivery, seconds in ANSWERS]


class _Answering(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status, retry_after, _, _ = ANSWERS[UUID(Path(self.path).name).int]
        self.send_response(status)
        if retry_after is not None:
            self.send_header("Retry-After", retry_after)
        if status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


async def _outcomes(address: str) -> list[Outcome]:
    transport = HttpTransport(address)
    try:
        return [await transport.submit("pings", UUID(int=number), b"{}") for number in range(len(ANSWERS))]
    finally:
        await transport.close()


def _schema(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text()))
