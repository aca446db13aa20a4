"""Shares of single pings: the two add up to the vector, and the sealed one is bound to one ping."""

from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from fedping.client_sim.privacy import Sharer, system_seeds
from fedping.client_sim.privacy.vectors import FARTHEST, unbounded
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import LARGEST, ClippedFlat, Privacy, frame_of
from fedping.protocol.sharing.keys import Seal, opener
from fedping.protocol.sharing.shares import info_of, layout
from fedping.protocol.study import Study
from tests.support.private import CENTRAL, private_study
from tests.support.sharing import Helper, shared, together

D = 7


def study_of(**settings: Any) -> Study:
    return private_study(D - 3, privacy=shared(Privacy(central=CENTRAL), **settings))


def parts(payload: bytes, seal: Seal = "x25519") -> tuple[bytes, bytes, bytes]:
    """Return the offer's id, the leader's share and the sealed one."""
    rows = layout(D, seal).parts(np.frombuffer(payload, np.uint8)[None])
    offer, share, sealed = (part.tobytes() for part in rows)
    return offer, share, sealed


@pytest.mark.parametrize("seal", ["x25519", "mlkem768-x25519"])
def test_both_shares_together_are_the_vector(seal: Seal) -> None:
    study, helper = study_of(seal=seal), Helper()
    sharer = Sharer(study, study.lines[0], offer := helper.offer(study))
    vectors = np.array([[LARGEST, -LARGEST, 0, 1, -1, 64, 2**14], np.arange(D), -np.arange(D)])
    documents, versions = [uuid4() for _ in vectors], [0, 3, 7]
    sent = sharer.payloads(vectors, documents, versions, "control")
    assert sent.encoding == "shared"
    assert set(sent.sizes.tolist()) == {sharer.size} == {layout(D, seal).size}
    for vector, document, version, payload in zip(vectors, documents, versions, sent.column.to_pylist(), strict=True):
        named, share, sealed = parts(payload, seal)
        assert named == offer.id
        info = info_of(study.name, "main", version, "control", document, D, offer.id)
        seed = opener(seal, helper.keys[offer.id])(sealed, info)
        assert seed is not None
        assert together(share, seed).tolist() == vector.tolist()
    assert len(sharer.payloads(vectors[:0], [], [], "control")) == 0


TOLD: dict[str, Any] = {
    "study": "private",
    "line": "main",
    "version": 3,
    "arm": "treatment",
    "document": UUID(int=5),
    "d": D,
    "offer": b"",
}


@pytest.mark.parametrize(
    "otherwise",
    [
        {"study": "private2"},
        {"line": "other"},
        {"version": 4},
        {"arm": "control"},
        {"document": UUID(int=6)},
        {"d": D + 1},
        {"offer": bytes(8)},
        {},
    ],
    ids=lambda otherwise: next(iter(otherwise), "as it is"),
)
def test_a_sealed_share_opens_for_its_own_ping_alone(otherwise: dict[str, Any]) -> None:
    study, helper = study_of(), Helper()
    sharer = Sharer(study, study.lines[0], offer := helper.offer(study))
    _, _, sealed = parts(sharer.payload(np.arange(D), TOLD["document"], 3, "treatment"))
    opened = opener("x25519", helper.keys[offer.id])(sealed, info_of(**TOLD | {"offer": offer.id} | otherwise))
    assert (opened is None) is bool(otherwise)
    helper.offer(study)
    another = list(helper.keys.values())[1]
    assert opener("x25519", another)(sealed, info_of(**TOLD | {"offer": offer.id})) is None


def test_seeds_decide_the_shares_and_sealing_is_new_each_time() -> None:
    study = study_of()
    sharer = Sharer(study, study.lines[0], Helper().offer(study))

    def sent(seeds: Any) -> tuple[bytes, bytes, bytes]:
        [payload] = sharer.payloads(np.arange(D)[None], [TOLD["document"]], [3], "treatment", seeds).column.to_pylist()
        return parts(payload)

    seeds = system_seeds(1)
    one, same, another = sent(lambda _: seeds), sent(lambda _: seeds), sent(system_seeds)
    assert one[1] == same[1] != another[1]
    assert one[2] != same[2]
    assert len(set(system_seeds(1000))) == 1000
    assert {len(seed) for seed in system_seeds(3)} == {32}


def test_many_shares_at_once_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of masks held at a time."""
    study, rng = study_of(), np.random.default_rng(1)
    sharer = Sharer(study, study.lines[0], Helper().offer(study))
    vectors, seeds = rng.integers(-(2**14), 2**14, (7, D)), system_seeds(7)
    documents, versions = [uuid4() for _ in vectors], list(range(7))
    found = []
    for at_a_time in (2**24, 3 * 8 * D, 1):
        monkeypatch.setattr("fedping.client_sim.privacy.vectors._BYTES_AT_A_TIME", at_a_time)
        sent = sharer.payloads(vectors, documents, versions, "treatment", lambda _: seeds).column.to_pylist()
        found.append([parts(payload)[1] for payload in sent])
    assert found[0] == found[1] == found[2]
    assert [together(*each).tolist() for each in zip(found[0], seeds, strict=True)] == vectors.tolist()


def test_a_leaders_share_is_uniform_whatever_is_shared() -> None:
    """A chi-squared test of the bytes, with fixed seeds, so that the result never changes."""
    study = study_of()
    sharer = Sharer(study, study.lines[0], Helper().offer(study))
    k = 2000
    seeds = [number.to_bytes(32, "big") for number in range(k)]
    sent = sharer.payloads(np.full((k, D), 64), [uuid4()] * k, [0] * k, "treatment", lambda _: seeds)
    shares = np.frombuffer(b"".join(parts(each)[1] for each in sent.column.to_pylist()), np.uint8).reshape(k, 8 * D)
    assert chisquare(np.bincount(shares.ravel(), minlength=256)).pvalue > 1e-4
    each = [chisquare(np.bincount(column >> 4, minlength=16)).pvalue for column in shares.T]
    assert min(each) > 1e-4 / len(each)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "less noise": ({"sigma": 1.0}, "noise is 1"),
    "another length": ({"numbers": D + 1}, "'numbers' is 8"),
    "another study": ({"study": "else"}, "'study' is 'else'"),
    "smaller batches": ({"min_batch": 2}, "'min_batch' is 2"),
    "a key that is none": ({"key": "00" * 31}, "a key of 31 bytes"),
    "a key for nobody": ({"key": "00" * 32}, "a key of 32 bytes that is none"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_nothing_is_sealed_for_an_offer_that_does_not_fit(what: str) -> None:
    otherwise, why = REFUSED[what]
    study = study_of(min_batch=3)
    with pytest.raises(InvalidSettings, match=why):
        Sharer(study, study.lines[0], Helper().offer(study, **otherwise))


def test_nothing_is_sealed_for_somebody_else() -> None:
    study = study_of()
    with pytest.raises(InvalidSettings, match="is not signed by the helper"):
        Sharer(study, study.lines[0], Helper(secret=b"another").offer(study))
    plain = private_study(D - 3)
    with pytest.raises(InvalidSettings, match="has no helper"):
        Sharer(plain, plain.lines[0], Helper().offer(study))


def test_hostile_clients_keep_to_no_bound() -> None:
    frame = frame_of(Privacy(central=CENTRAL, contribution=ClippedFlat(norm=2.0), left_out=("w1",)), _spec())
    updates = np.array([[4.0, 1.0, -1e300, np.nan], [np.inf, 0.0, -0.0, 1e-9]])
    found: NDArray[np.int64] = unbounded(frame, updates)
    assert found.tolist() == [[2**15, 0, -int(FARTHEST), 0], [int(FARTHEST), 0, 0, 0]]


def _spec() -> Any:
    return private_study(4).lines[0].spec
