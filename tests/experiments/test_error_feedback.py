"""Error feedback, and other upload links with client state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fedping
from fedping.client_sim.learning.states import Kept, MemoryStates
from fedping.client_sim.upload import closest_scales, first_state, sent_updates
from fedping.experiments.laboratory import resuming
from fedping.experiments.laboratory.one_run import run_unit
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.units import Unit
from fedping.protocol.draws import child_keys, root_key
from fedping.protocol.encodings.top_k import largest
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.links import ErrorFeedback, Levels, LowRank, Mask, Rotation, ScaledSigns, TopK, Upload
from fedping.protocol.spec import Block, ModelSpec
from fedping.protocol.upload import receiving, sending
from tests.experiments.test_laboratory_run import contents
from tests.support.encodings import STEP, spec_of
from tests.support.laboratory import small
from tests.support.links import line_with
from tests.support.registry import registry_of_its_own

FED_BACK = [{"link": "error-feedback"}, {"link": "top-k", "keep": 0.1}]
CHANGES: dict[str, Any] = {
    "rounds": 6,
    "partition": {"partition": "dirichlet", "clients": 6, "alpha": 0.5},
    "server__weighting": "client",
    "evaluation": {"every": 3, "baselines": []},
}


def unit(**changes: Any) -> Unit:
    [setup] = small(**{**CHANGES, **changes}).variants.values()
    return Unit("only", None, setup, 1, None)


def last(folder: Path, **changes: Any) -> np.ndarray:
    of = unit(**changes)
    run_unit(of, folder)
    return np.asarray(np.load(of.folder(folder).path / "last.npy"))


def test_the_largest_weights_are_sent_and_the_first_of_equals() -> None:
    updates = np.array([[1.0, -3.0, 2.0, 3.0], [1.0, 1.0, -1.0, 1.0]])
    assert largest(updates, 2).tolist() == [[False, True, False, True], [True, True, False, False]]


@pytest.mark.parametrize("m", [5, 1000])
def test_payloads_of_top_k_are_those_of_the_reference(m: int) -> None:
    """Positions are bits for 5 weights, and numbers if few of 1,000 are kept; every other payload is rejected."""
    line = line_with((TopK(keep=0.4 if m == 5 else 0.002),), spec=spec_of(m))
    update = np.zeros((1, m))
    update[0, [1, 4]] = [-2.0, 0.5]
    payload = sending(line).encode(update, root_key(1) * np.ones(1, np.uint64))[0].as_py()  # type: ignore[misc]
    head = bytes([0b10010]) if m == 5 else np.array([1, 4], "<u4").tobytes()
    assert payload == head + np.array([-2.0, 0.5], "<f4").tobytes()
    server = receiving(line)
    np.testing.assert_array_equal(server.decode(pa.array([payload]), m)[0], update)
    assert server.lengths(m) == (len(payload), len(payload))
    assert server.trouble(payload, m) is None
    for head in (b"\xff", b"\x03\x00") if m == 5 else (np.array([4, 1], "<u4"), np.array([1, m], "<u4")):
        broken = (bytes(head) + payload[-8:])[-len(payload) :]
        if broken != payload:
            assert not server.decode(pa.array([broken]), m)[1].any()
    nan = payload[:-4] + np.array([np.nan], "<f4").tobytes()
    assert "not finite" in (server.trouble(nan, m) or "")


def test_scaled_signs_are_the_closest_multiples_of_the_signs() -> None:
    """By hand: the scales of [1, -3, 0] and of the block [2, -4] are 2 and 3."""
    spec = ModelSpec(
        name="n", model="any", weights=spec_of(3).weights, blocks=(Block(name="b", shape=(2,), step=STEP),)
    )
    line = line_with((ScaledSigns(),), spec=spec)
    payload = sending(line).encode(np.array([[1.0, -3.0, 0.0, 2.0, -4.0]]), np.ones(1, np.uint64))  # type: ignore[misc]
    assert payload[0].as_py()[:8] == np.array([2, 3], "<f4").tobytes()
    assert len(payload[0].as_py()) == 9
    decoded, ok = receiving(line).decode(payload, 5)
    assert decoded.tolist() == [[2, -2, 0, 3, -3]]
    assert ok.all()
    negative = np.array([-2, 3], "<f4").tobytes() + payload[0].as_py()[8:]
    assert not receiving(line).decode(pa.array([negative]), 5)[1].any()
    assert "negative" in (receiving(line).trouble(negative, 5) or "")


@pytest.mark.parametrize(
    "links",
    [
        (TopK(keep=0.1),),
        (ScaledSigns(),),
        (Mask(keep=0.1),),
        (Levels(bits=1),),
        (Levels(bits=2, rotate=True),),
        (LowRank(rank=1),),
        (Rotation(seed=1), TopK(keep=0.2)),
    ],
    ids=lambda links: " ".join(type(link).__name__ for link in links),
)
def test_all_that_was_wanted_is_sent_or_left(links: Upload) -> None:
    """All updates read by the server plus the residual equal the sum of all updates; the residual is bounded.

    The bound is a contraction's: in 400 rounds of random updates of norm 1, a mask of a tenth without the scale would
    exceed 1e100.
    """
    spec = ModelSpec(name="n", model="any", blocks=(Block(name="b", shape=(8, 6), step=STEP),))
    line = line_with((ErrorFeedback(), *links), spec=spec)
    ends = sending(line)
    random, clients = np.random.default_rng(1), np.arange(3)
    states = MemoryStates(first_state(ends, spec.m))
    wanted = read = np.zeros((3, spec.m))
    assert ends.read is not None
    for round_ in range(400):
        updates = random.normal(size=(3, spec.m)) / np.sqrt(spec.m)
        sent = sent_updates(ends, updates, child_keys(root_key(round_), clients), Kept(states, clients))
        wanted, read = wanted + updates, read + ends.read(sent)
    residual = states.load(clients)["residual"]
    np.testing.assert_allclose(read + residual, wanted, atol=1e-4)
    assert 0 < np.linalg.norm(residual, axis=1).max() < 60


def test_the_scale_is_the_share_that_a_mask_keeps_and_one_for_others() -> None:
    wanted = np.array([[1.0, 2.0, 3.0, 4.0]])
    assert closest_scales(wanted, np.array([[0.0, 8.0, 0.0, 16.0]])).tolist() == [0.25]
    assert closest_scales(wanted, np.array([[0.0, 0.0, 0.0, 4.0000001]])).tolist() == [1.0]
    assert closest_scales(wanted, np.zeros((1, 4))).tolist() == [1.0]


def test_a_run_comes_to_that_of_a_second_implementation(tmp_path: Path) -> None:
    """EF-SGD as in the paper: p = e + u; the largest of p are sent; e = p - sent; the server adds the mean."""
    gradient: dict[str, Any] = {"training": {"algorithm": "gradient"}, "server__optimizer__rate": 0.5}
    found = last(tmp_path, upload=FED_BACK, **gradient)
    problem = prepare(unit(upload=FED_BACK, **gradient).setup, 1, None)
    weights, batch = problem.spec.start_array, problem.train.batch(np.arange(len(problem.train)))
    residual, m = np.zeros((len(problem.train), problem.spec.m)), problem.spec.m
    for _ in range(6):
        wanted = residual - problem.model.gradients(weights, batch)
        sent = np.zeros_like(wanted)
        for row, each in enumerate(wanted):
            kept = np.argsort(-np.abs(each), kind="stable")[: max(1, round(0.1 * m))]
            sent[row, kept] = each[kept]
        residual = wanted - sent
        weights = weights + 0.5 * sent.mean(axis=0)
    np.testing.assert_allclose(found, weights, rtol=1e-5, atol=1e-6)


def test_it_comes_to_the_same_over_files_and_with_compiled_training(tmp_path: Path) -> None:
    whole = last(tmp_path / "memory", upload=FED_BACK)
    np.testing.assert_allclose(last(tmp_path / "files", upload=FED_BACK, where="files"), whole, rtol=1e-6)
    compiled = last(tmp_path / "jax", upload=FED_BACK, engine="jax")
    np.testing.assert_allclose(compiled, whole, rtol=1e-4, atol=1e-5)
    assert not np.allclose(last(tmp_path / "without", upload=FED_BACK[1:]), whole, rtol=1e-3)


def test_a_client_that_is_drawn_twice_sends_the_second_time_what_it_left_the_first(tmp_path: Path) -> None:
    twice = {"sampling": "by_size", "clients": 20}
    np.testing.assert_array_equal(
        last(tmp_path / "a", upload=FED_BACK, sampling=twice), last(tmp_path / "b", upload=FED_BACK, sampling=twice)
    )


def test_a_killed_run_goes_on_with_the_residuals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "MOST_OF_THE_TIME", np.inf)
    of = unit(upload=FED_BACK, training={"algorithm": "scaffold", "steps": 2, "rate": 0.1})
    run_unit(of, tmp_path / "whole")

    def on_round(done: int, rows: object) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_unit(of, tmp_path / "killed", on_round)
    assert (of.folder(tmp_path / "killed").path / "sent.bin").is_file()
    run_unit(of, tmp_path / "killed")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert not list((tmp_path / "killed").rglob("sent.*"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"upload": FED_BACK[::-1]}, "'error-feedback' after a link .* Put it first"),
        ({"upload": FED_BACK[:1]}, "'error-feedback' without a link"),
        ({"upload": [FED_BACK[0], {"link": "signs"}]}, "signs without a size, .* Use the link 'scaled-signs'"),
        (
            {
                "upload": [FED_BACK[0], {"link": "mask", "keep": 0.1}],
                "training": {"algorithm": "local", "steps": 1, "rate": 0.1, "structured": True},
            },
            "train within what the upload link sends",
        ),
        (
            {
                "upload": FED_BACK,
                "privacy": {
                    "central": {"epsilon": 1.0, "delta": 1e-5, "rounds": 6, "population": 6},
                    "contribution": {"by": "norm", "norm": 1.0},
                },
            },
            "a client's contributions would have no bound",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused_with_the_reason(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSettings, match=f"(?s){sentence}"):
        small(**{**CHANGES, **changes})


def test_an_attack_is_refused(tmp_path: Path) -> None:
    of = unit(upload=FED_BACK, attack={"attack": "sign_flip", "clients": 1})
    with pytest.raises(InvalidSettings, match="hostile clients have no place for it"):
        run_unit(of, tmp_path)


def test_a_link_of_ones_own_keeps_something_with_its_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client sends the sum of its updates so far, so the server adds u1, then u1 + u2, and so on."""

    def sums() -> Any:
        def transform(updates: Any, keys: Any, state: Any) -> Any:
            total = state["sum"] + updates
            return total, {"sum": total}

        return fedping.ClientEnd(transform=transform, init_state=lambda m: {"sum": np.zeros(m)}), fedping.ServerEnd()

    def wrong() -> Any:
        client = fedping.ClientEnd(transform=lambda u, keys, state: u, init_state=lambda m: {"sum": np.zeros(m)})
        return client, fedping.ServerEnd()

    registry_of_its_own(monkeypatch)
    fedping.upload_link("sums")(sums)
    fedping.upload_link("wrong")(wrong)
    once = last(tmp_path / "once", rounds=1)
    np.testing.assert_allclose(last(tmp_path / "own", rounds=1, upload=[{"link": "sums"}]), once, rtol=1e-6)
    linear: dict[str, Any] = {"training": {"algorithm": "gradient"}, "rounds": 4, "server__optimizer__rate": 0.1}
    problem = prepare(unit(**linear).setup, 1, None)
    weights, batch = problem.spec.start_array, problem.train.batch(np.arange(len(problem.train)))
    total = np.zeros((len(problem.train), problem.spec.m))
    for _ in range(4):
        total -= problem.model.gradients(weights, batch)
        weights = weights + 0.1 * total.mean(axis=0)
    found = last(tmp_path / "sums", upload=[{"link": "sums"}], **linear)
    np.testing.assert_allclose(found, weights, rtol=1e-5, atol=1e-7)
    with pytest.raises(fedping.FedpingError, match="return the result and the next state"):
        run_unit(unit(upload=[{"link": "wrong"}], rounds=1), tmp_path / "wrong")
