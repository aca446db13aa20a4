"""Shares sent over HTTP by the page's client count in a round whose helper is asked over HTTP."""

import base64
import hashlib
import json
import secrets
import struct
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PublicKey, Suite

from fedping.experiments.server_process import helper_process
from fedping.main import main
from tests.conformance.test_reader import private_id, private_vector, proven_shares, share_mask, takes_offer
from tests.support.ingest_app import landed_ids
from tests.support.ingest_server import running_ingest
from tests.support.rounds import store_with
from tests.support.shared_rounds import KEY, shared_line

UPDATE = [1.5, -2.0, 0.0, 1.0]


@pytest.mark.parametrize(("seal", "proofs"), [("x25519", True), ("mlkem768-x25519", False)])
def test_a_client_of_the_page_counts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], seal: Any, proofs: bool
) -> None:
    line = shared_line(tmp_path, seal=seal, proofs=proofs, delay_minutes=0.0)
    store = store_with(tmp_path / "store", line.study)
    store.studies.publish_offer(line.study.name, "main", line.offer)
    (tmp_path / "leader.key").write_text(KEY.hex() + "\n")
    (tmp_path / "leader.key").chmod(0o600)
    with running_ingest(tmp_path / "store", tmp_path / "landing") as ingest:
        study = ingest.ask(f"/models/{line.study.name}/study.json")
        for arm in study["arms"]:
            for k in range(6):
                post(ingest.url, study, arm, damaged=k == 0)
        assert ingest.operator_asks("/__flush__", "POST")["flushed"]
    assert len(landed_ids(tmp_path / "landing")) == 6 * len(study["arms"])
    capfd.readouterr()
    where = ["--store", f"{tmp_path}/store", "--landing", f"{tmp_path}/landing", "--engine", "numpy"]
    with helper_process(line.helper.path, tmp_path / "log") as helper:
        words = ["round", line.study.name, "main", *where, "--privacy-key", f"{tmp_path}/leader.key"]
        assert main([*words, "--helper", helper.address, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["status"], told["clients"], told["privacy"]["refused"]) == ("published", 5, len(study["arms"]))
    assert {arm["pings"] for arm in told["arms"].values()} == {5}
    greatest = study["lines"][0]["privacy"]["loss"][1]
    assert [arm["loss"] for arm in told["arms"].values()] == pytest.approx([greatest] * len(study["arms"]))


def post(url: str, study: dict[str, Any], arm: dict[str, Any], *, damaged: bool) -> None:
    line = study["lines"][0]
    assert takes_offer(study, line["offer"])
    document, seed = str(uuid4()), secrets.token_bytes(32)
    weights, update = line["spec"]["weights"], UPDATE if arm["submits"] else [0.0] * len(UPDATE)
    vector = private_vector(
        {"privacy": line["privacy"], "weights": weights, "update": update, "loss": 1e9, "top": 1, "seed": ""}
    )
    d, offer = len(vector), hashlib.sha256(line["offer"]["terms"].encode()).digest()[:8]
    place = f"{study['name']}|main|0|{arm['name']}"
    if line["privacy"]["shared"]["proofs"]:
        share, sealed = proven_shares({"vector": vector, "seed": seed.hex(), "document": document}, f"{place}|{d}")
    else:
        words = zip(vector, share_mask(seed.hex(), d), strict=True)
        share, sealed = struct.pack(f"<{d}Q", *((number - word) % 2**64 for number, word in words)), seed
    closed = seal_for(line["offer"], sealed, f"fedping share v1|{place}|{document}|{d}|{offer.hex()}".encode())
    payload = bytearray(offer + share + closed)
    payload[-1] ^= damaged
    case = {"study": study, "secret": secrets.token_hex(32), "line": "main", "version": 0, "arm": arm["name"]}
    ping = {
        "clientId": private_id(case),
        "type": "private-update",
        "payload": {
            "model_version": 0,
            "study_variation": arm["name"],
            "update": {"encoding": "shared", "payload": base64.b64encode(payload).decode()},
        },
    }
    where = f"{url}/submit/{study['name']}/private-update/1/{document}"
    sent = Request(where, json.dumps(ping).encode(), {"Content-Type": "application/json"})
    with urlopen(sent) as answer:
        assert answer.status == 200


def seal_for(offer: dict[str, str], data: bytes, info: bytes) -> bytes:
    key = bytes.fromhex(json.loads(offer["terms"])["key"])
    classical = X25519PublicKey.from_public_bytes(key[-32:])
    if len(key) == 32:
        return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM).encrypt(data, classical, info=info)
    both = MLKEM768X25519PublicKey(MLKEM768PublicKey.from_public_bytes(key[:-32]), classical)
    return Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM).encrypt(data, both, info=info)
