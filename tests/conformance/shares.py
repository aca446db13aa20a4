"""The topic `shares` of `docs/conformance/`: the checks, shares and sealing of clients of two-server lines.

HPKE draws a key for each message, and libraries don't accept a given one, so sealing with a given key is implemented
here (RFC 9180, base mode). ML-KEM draws more than a key, so one share sealed with it is kept in a file, and tests
check that it opens.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.protocol.privacy import LARGEST, Central, ClippedFlat, Privacy, Shared
from fedping.protocol.sharing.keys import Seal, identity_of, signing_key
from fedping.protocol.sharing.offer import Offer, Promise, Terms, signed_offer
from fedping.protocol.sharing.shares import Votes, context_of, info_of, layout, leader_shares, mask, proven
from fedping.protocol.sharing.terms import terms_for
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Arm, Line, PublicStudy, Study, public_json, public_study

if TYPE_CHECKING:
    from tests.conformance.draw import Draw

SEALED_ONCE = Path(__file__).parent / "sealed_once.txt"
"""File of a share sealed with ML-KEM, in base64: for :data:`MLKEM_KEY`, with the info of its case."""

HELPER = signing_key(b"conformance", "helper")
LEADER = identity_of(signing_key(b"conformance", "leader"))
MADE = "2026-11-23T09:00:00Z"

X25519_KEY = sha256(b"x25519").digest()
MLKEM_KEY = b"".join(sha256(part).digest() for part in (b"mlkem", b"768", b"with x25519"))

_KEYS: dict[Seal, bytes] = {"x25519": X25519_KEY, "mlkem768-x25519": MLKEM_KEY}
_SUITE = b"HPKE" + bytes.fromhex("002000010001")
_KEM = b"KEM" + bytes.fromhex("0020")


def shares(draw: Draw) -> dict[str, Any]:
    """Return masks, studies with matching and other offers, and payloads for one of them."""
    studies = list(_studies())
    return {
        "masks": [_mask(_bytes(draw, 32), d) for d in (1, 5, 21, 22, 25, 300)],
        "studies": [json.loads(public_json(each)) for each in studies],
        "offers": list(_offers(studies)),
        "payloads": list(_payloads(draw, studies)),
    }


def seal_once(draw: Draw) -> None:
    """Seal the stored share again, if its context has changed; ``draw`` is the one of :func:`shares`."""
    from fedping.protocol.sharing.keys import opener, public_key, sealer

    seal: Seal = "mlkem768-x25519"
    [case] = (each for each in shares(draw)["payloads"] if each["ephemeral"] is None)
    seed, info = bytes.fromhex(case["seed"]), case["info"].encode()
    if opener(seal, MLKEM_KEY)(base64.b64decode(SEALED_ONCE.read_bytes()), info) != seed:
        SEALED_ONCE.write_bytes(base64.encodebytes(sealer(seal, public_key(seal, MLKEM_KEY))(seed, info)))


def offered(study: PublicStudy, /, **otherwise: Any) -> Offer:
    """Return the helper's offer for the first line of a study, with some terms changed."""
    return signed_offer(replace(_terms(study), **otherwise), HELPER)


def sealed_with(ephemeral: bytes, public: bytes, what: bytes, info: bytes) -> bytes:
    """Return HPKE's output for an X25519 public key and an ephemeral private key: encapsulated key ‖ ciphertext."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    own = X25519PrivateKey.from_private_bytes(ephemeral)
    sent = own.public_key().public_bytes_raw()
    agreed = own.exchange(X25519PublicKey.from_public_bytes(public))
    shared = _expand(_KEM, _extract(_KEM, b"", "eae_prk", agreed), "shared_secret", sent + public, 32)
    context = b"\0" + _extract(_SUITE, b"", "psk_id_hash", b"") + _extract(_SUITE, b"", "info_hash", info)
    secret = _extract(_SUITE, shared, "secret", b"")
    key, nonce = _expand(_SUITE, secret, "key", context, 16), _expand(_SUITE, secret, "base_nonce", context, 12)
    return sent + AESGCM(key).encrypt(nonce, what, b"")


def _extract(suite: bytes, salt: bytes, label: str, given: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label.encode() + given, "sha256")


def _expand(suite: bytes, secret: bytes, label: str, info: bytes, size: int) -> bytes:
    """Return the first ``size`` bytes of HKDF's output, at most 32, which are one block."""
    labelled = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label.encode() + info
    return hmac.digest(secret, labelled + b"\1", "sha256")[:size]


def _studies() -> Iterator[PublicStudy]:
    central = Central(epsilon=1.0, delta=1e-6, rounds=5, population=1000, noise_multiplier=4.0)
    shared = Shared(helper=identity_of(HELPER), min_batch=50)
    clipped = ClippedFlat(norm=2.5)
    for name, privacy in (
        ("exact", Privacy(shared=shared, loss=(-1.0, 3.0))),
        ("noisy", Privacy(shared=shared, central=central)),
        ("clipped", Privacy(shared=shared, central=central, contribution=clipped, left_out=("w1",))),
        ("post-quantum", Privacy(shared=replace(shared, seal="mlkem768-x25519"), central=central)),
        ("proven", Privacy(shared=replace(shared, proofs=True), central=central, left_out=("w1",))),
    ):
        weights = tuple(Weight(f"w{i}", 0.0, Step(start=1, min=1, max=1)) for i in range(3))
        spec = ModelSpec(name="spec", model="linear-15", weights=weights)
        lines = tuple(Line(name=line, spec=spec, privacy=privacy) for line in ("main", "other"))
        arms = tuple(
            Arm(name=arm, share=0.2, line=line, submits=submits, applies=True)
            for arm, line, submits in (
                ("treatment", "main", True),
                ("elsewhere", "other", True),
                ("rest", "main", False),
            )
        )
        yield public_study(Study(name=name, pings="private-update", arms=arms, lines=lines))


def _terms(study: PublicStudy) -> Terms:
    from fedping.protocol.sharing.keys import public_key

    line = study.lines[0]
    assert line.privacy is not None
    assert line.privacy.shared is not None
    seal = line.privacy.shared.seal
    return terms_for(study, line, LEADER, public_key(seal, _KEYS[seal]), MADE)


def _offers(studies: list[PublicStudy]) -> Iterator[dict[str, Any]]:
    """Yield offers for the first line of each study, with whether a client seals for them."""

    def case(number: int, what: str, offer: Offer, taken: bool) -> dict[str, Any]:
        told = msgspec.to_builtins(offer)
        return {"study": number, "what": what, "offer": told, "id": offer.id.hex(), "taken": taken}

    for number, study in enumerate(studies):
        yield case(number, "as the study asks", offered(study), True)
    exact, noisy = studies[0], studies[1]
    terms, sigma, good = _terms(noisy), _terms(noisy).sigma, offered(noisy)
    for what, otherwise, taken in (
        ("more noise", {"sigma": sigma * 2}, True),
        ("noise that is another language's", {"sigma": sigma * (1 - 1e-12)}, True),
        ("less noise", {"sigma": sigma * (1 - 1e-6)}, False),
        ("no noise", {"sigma": 0.0}, False),
        ("no promise", {"promise": None}, False),
        ("a larger epsilon", {"promise": _promised(terms, epsilon=2.0)}, False),
        ("a larger delta", {"promise": _promised(terms, delta=1e-5)}, False),
        ("fewer rounds", {"promise": _promised(terms, rounds=4)}, False),
        ("fewer contributions", {"promise": _promised(terms, contributions=1)}, False),
        ("less noise of another vector", {"promise": _promised(terms, noise_multiplier=8.0)}, False),
        ("larger batches", {"min_batch": 51}, True),
        ("smaller batches", {"min_batch": 49}, False),
        ("another order of arms", {"arms": terms.arms[::-1]}, True),
        ("an arm fewer", {"arms": terms.arms[:1]}, False),
        ("an arm of another line", {"arms": (*terms.arms, "elsewhere")}, False),
        ("another study", {"study": "exact"}, False),
        ("another line", {"line": "other"}, False),
        ("another length", {"numbers": 7}, False),
        ("proofs", {"proofs": True, "metric": 28}, False),
        ("a metric without proofs", {"metric": 28}, False),
        ("another seal", {"seal": "mlkem768-x25519", "key": _terms(studies[3]).key}, False),
        ("a key of another kind", {"key": _terms(studies[3]).key}, False),
        ("a key that is too short", {"key": terms.key[:-2]}, False),
        ("a key that nothing can be sealed for", {"key": "00" * 32}, False),
        ("another leader", {"leader": identity_of(signing_key(b"conformance", "another leader"))}, True),
        ("another helper", {"helper": LEADER}, False),
    ):
        yield case(1, what, offered(noisy, **otherwise), taken)
    yield case(0, "noise that nobody asked for", offered(exact, sigma=5.0), True)
    yield case(0, "a promise that nobody asked for", offered(exact, promise=terms.promise), False)
    yield case(4, "no proofs", offered(studies[4], proofs=False, metric=0), False)
    yield case(4, "proofs of other metrics", offered(studies[4], metric=28), False)
    yield case(0, "no word of a metric", _as_signed(offered(exact).terms.replace('"metric":0,', "")), True)
    yield case(1, "signed by somebody else", signed_offer(terms, signing_key(b"conformance", "another")), False)
    yield case(1, "a signature that is changed", replace(good, signature="0" * 128), False)
    yield case(1, "terms that are changed", replace(good, terms=good.terms.replace(MADE, "2026-11-24")), False)
    for what, ours, theirs, taken in (
        ("another format", '"format":1', '"format":2', False),
        ("other spaces", '","', '", "', True),
        ("a name that is not known yet", '"format":1', '"format":1,"more":[1]', True),
        ("no JSON", '"format":1}', '"format":1', False),
    ):
        yield case(1, what, _as_signed(good.terms.replace(ours, theirs)), taken)


def _promised(terms: Terms, **otherwise: Any) -> Promise:
    assert terms.promise is not None
    return replace(terms.promise, **otherwise)


def _as_signed(text: str) -> Offer:
    """Return an offer with any text, signed by the helper."""
    from fedping.protocol.sharing.keys import signature
    from fedping.protocol.sharing.offer import SIGNED_AS

    return Offer(terms=text, signature=signature(HELPER, SIGNED_AS, text.encode()).hex())


def _payloads(draw: Draw, studies: list[PublicStudy]) -> Iterator[dict[str, Any]]:
    from fedping.protocol.sharing.keys import public_key

    for number, study in enumerate(studies):
        terms, offer = _terms(study), offered(study)
        for turn in range(1 if terms.seal != "x25519" else 4):
            vector = _votes(draw, terms.metric, turn) if terms.proofs else _numbers(draw, terms.numbers, turn)
            document, version = UUID(draw.uuid()), draw.whole(0, 1000)
            arm, seed, ephemeral = terms.arms[turn % 2], _bytes(draw, 32), _bytes(draw, 32)
            info = info_of(study.name, terms.line, version, arm, document, terms.numbers, offer.id)
            share, own = _split(terms, np.array([vector], np.int64), document, version, arm, seed)
            private = _KEYS[terms.seal]
            if terms.seal == "x25519":
                sealed = sealed_with(ephemeral, public_key(terms.seal, private), own, info)
            else:
                sealed = base64.b64decode(SEALED_ONCE.read_bytes())
            payload = offer.id + share + sealed
            assert len(payload) == layout(terms.numbers, terms.seal, terms.metric).size
            yield {
                "study": number,
                "version": version,
                "arm": arm,
                "document": str(document),
                "vector": vector,
                "seed": seed.hex(),
                "ephemeral": ephemeral.hex() if terms.seal == "x25519" else None,
                "private": private.hex(),
                "info": info.decode(),
                "payload": base64.b64encode(payload).decode(),
            }


def _numbers(draw: Draw, d: int, turn: int) -> list[int]:
    return [LARGEST, -LARGEST, 0, 1, -1, 64] if turn == 0 else [draw.whole(-(2**14), 2**14) for _ in range(d)]


def _votes(draw: Draw, metric: int, turn: int) -> list[int]:
    """Return a vector of signs for three weights, the second left out and so 0."""
    signs = [64 * draw.whole(-1, 1), 0, 64 * draw.whole(-1, 1)]
    loss = (0, metric, draw.whole(1, metric - 1), draw.whole(1, metric - 1))[turn]
    return [*signs, metric, loss, metric * (turn % 2)]


def _split(
    terms: Terms, vector: NDArray[np.int64], document: UUID, version: int, arm: str, seed: bytes
) -> tuple[bytes, bytes]:
    """Return the leader's and the helper's shares of a vector, shape (1, d)."""
    if not terms.proofs:
        return leader_shares(vector, [seed])[0].tobytes(), seed
    votes = Votes(terms.numbers, terms.metric)
    context = context_of(terms.study, terms.line, version, arm, votes)
    leader, [helper] = proven(votes, vector, np.frombuffer(document.bytes, np.uint8)[None], [seed], [context])
    return leader[0].tobytes(), helper


def _mask(seed: bytes, d: int) -> dict[str, Any]:
    return {"seed": seed.hex(), "words": [f"{word:016x}" for word in mask(seed, d).tolist()]}


def _bytes(draw: Draw, size: int) -> bytes:
    return bytes(draw.whole(0, 255) for _ in range(size))
