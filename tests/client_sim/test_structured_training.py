"""Training within the subspace of an upload link: movements, received updates, and fleets' use of the link's keys."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from fedping.client_sim.data import ExampleData, example_data
from fedping.client_sim.fleet import FleetSettings, join_study
from fedping.client_sim.learning import cohort_updates, learner_for, model_spec, updates_of_fleet
from fedping.client_sim.learning.checking import check_training
from fedping.client_sim.upload import projections, sent_updates
from fedping.protocol.draws import child_keys
from fedping.protocol.encodings.mask import block_edges, weights_kept
from fedping.protocol.encodings.payloads import payload_seeds
from fedping.protocol.encodings.rotation import random_sign_matrices
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.link_ends import Factors
from fedping.protocol.links import Float32, LowRank, Mask, Rotation, Steps, Upload
from fedping.protocol.local_optimizers import (
    LocalAdam,
    LocalDescent,
    LocalMomentum,
    LocalOptimizer,
    LocalRMSProp,
    LocalRProp,
)
from fedping.protocol.personalization import FineTune
from fedping.protocol.pipeline import GradientDescent, Krum, MeanOfSigns, Median, Pipeline, Recluster, TrimmedMean
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm, Line, Study
from fedping.protocol.training import LocalSteps, OneGradient, Training
from fedping.protocol.update import Payloads
from fedping.protocol.upload import receiving, sending
from tests.support.encodings import keys_of, spec_of
from tests.support.fleets import PlannedTransport, fleet_study, seen
from tests.support.links import line_with
from tests.support.virtual_time import in_virtual_time

NETWORK = model_spec("network", {"features": 6, "classes": 3, "hidden": 5})
SIZES = [4, 0, 9, 7]
UPLOAD = 3


def fleet(features: int = 6) -> ExampleData:
    rng = np.random.default_rng(1)
    return example_data(rng.standard_normal((sum(SIZES), features)), rng.integers(0, 3, sum(SIZES)), np.array(SIZES))


def trained(
    link: Any, optimizer: LocalOptimizer | None = None, most_bytes: int = 10**9, **steps: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the movements of four clients, one without examples, and the updates that the server reads."""
    training = LocalSteps(**{"rate": 0.1, "structured": True, "optimizer": optimizer or LocalDescent(), **steps})
    line = line_with((link,), spec=NETWORK, training=training)
    links, keys, model = sending(line), keys_of(len(SIZES)), learner_for(NETWORK)
    moved = np.zeros((len(SIZES), NETWORK.m))
    weights, clients = model.start + 0.1, np.arange(len(SIZES))
    within = projections(links, keys, UPLOAD) if training.structured else None
    for block in updates_of_fleet(model, training, weights, fleet(), clients, keys, most_bytes, projections=within):
        moved[block.at] = block.updates
    sent = sent_updates(links, moved, child_keys(keys, UPLOAD))
    assert isinstance(sent, Payloads)
    decoded, ok = receiving(line).decode(sent.column, NETWORK.m)
    assert ok.all()
    return moved, decoded


OPTIMIZERS = [None, LocalMomentum(nesterov=True), LocalRMSProp(), LocalAdam(), LocalRProp()]


@pytest.mark.parametrize("draw", ["blocks", "independent"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_outside_a_mask_never_move_and_those_inside_arrive(draw: Any, optimizer: LocalOptimizer | None) -> None:
    moved, decoded = trained(Mask(keep=0.25, draw=draw), optimizer, epochs=3, batch=2, proximal=0.1)
    kept = weights_kept(0.25, NETWORK.m)
    if draw == "blocks":
        assert ((moved != 0).sum(axis=1) <= kept).all()
    assert (moved[[0, 2, 3]] != 0).sum() > kept
    assert not moved[1].any()
    np.testing.assert_allclose(decoded, moved, rtol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:2])
@pytest.mark.parametrize("fixed", ["outputs", "inputs"])
def test_matrices_move_by_products_of_low_rank_which_arrive(fixed: Any, optimizer: LocalOptimizer | None) -> None:
    moved, decoded = trained(LowRank(rank=2, fixed=fixed), optimizer, epochs=3, batch=2, proximal=0.1)
    assert np.linalg.matrix_rank(moved[2, :30].reshape(6, 5)) == 2
    np.testing.assert_allclose(decoded, moved, rtol=1e-5, atol=1e-6)
    alone, _ = trained(LowRank(rank=2, fixed=fixed), optimizer, most_bytes=1, epochs=3, batch=2, proximal=0.1)
    np.testing.assert_allclose(alone, moved, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_both_factors_are_trained_and_arrive(optimizer: LocalOptimizer | None) -> None:
    link = LowRank(rank=2, fixed="neither")
    moved, decoded = trained(link, optimizer, epochs=3, batch=2)
    assert np.linalg.matrix_rank(moved[2, :30].reshape(6, 5)) == 2
    assert not moved[1].any()
    np.testing.assert_allclose(decoded, moved, rtol=1e-5, atol=1e-5)
    alone, _ = trained(link, optimizer, most_bytes=1, epochs=3, batch=2)
    np.testing.assert_allclose(alone, moved, rtol=1e-9, atol=1e-12)


def test_both_factors_move_as_worked_by_hand() -> None:
    """A second implementation differentiates W + A B by A and by B in a loop over clients and steps."""
    moved, _ = trained(LowRank(rank=2, fixed="neither"), steps=3)
    first, _ = trained(LowRank(rank=2, fixed="outputs"), steps=1)
    one, _ = trained(LowRank(rank=2, fixed="neither"), steps=1)
    np.testing.assert_allclose(one[:, :35], first[:, :35], rtol=1e-6, atol=1e-9)  # as A is zero, B stays at first
    model, keys = learner_for(NETWORK), keys_of(len(SIZES))
    seeds = payload_seeds(child_keys(child_keys(keys, UPLOAD), 0))
    for client in (0, 2, 3):
        batch = fleet().batch(np.array([client]))
        a, b = np.zeros((6, 2)), random_sign_matrices(seeds, 0, 5, 2)[client].T / np.sqrt(2)
        others = np.zeros(NETWORK.m - 30)
        for _ in range(3):
            weights = model.start + 0.1 + np.concatenate([(a @ b).ravel(), others])
            slope = model.gradients(weights, batch)[0]
            by_product = slope[:30].reshape(6, 5)
            a, b, others = a - 0.1 * by_product @ b.T, b - 0.1 * a.T @ by_product, others - 0.1 * slope[30:]
        np.testing.assert_allclose(moved[client], np.concatenate([(a @ b).ravel(), others]), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("link", [Mask(keep=0.25), Mask(keep=0.25, draw="independent"), LowRank(rank=2)])
def test_one_step_within_is_the_sketch_of_one_gradient(link: Any) -> None:
    """Equal except for the factor by which the server multiplies a mask's sketch."""
    _, sketched = trained(link, steps=1, structured=False)
    _, within = trained(link, steps=1)
    if isinstance(link, LowRank):
        np.testing.assert_allclose(within, sketched, rtol=1e-5, atol=1e-6)
        return
    np.testing.assert_allclose(within, sketched / lengths_of(link, NETWORK.m), rtol=1e-6)
    whole, _ = trained(Float32(), steps=1, structured=False)
    kept = within != 0
    np.testing.assert_allclose(within[kept], whole[kept], rtol=1e-6)


def lengths_of(link: Mask, m: int) -> np.ndarray:
    """Return the factor of each weight in a mask, shape (m,)."""
    if link.draw == "independent":
        return np.full(m, 1 / link.keep)
    lengths = np.diff(block_edges(weights_kept(link.keep, m), m))
    return np.repeat(lengths, lengths)


def test_steps_encode_what_is_learned_within_a_mask() -> None:
    training = LocalSteps(rate=0.1, epochs=1, structured=True)
    line = line_with((Mask(keep=0.25), Steps(size=0.01)), spec=NETWORK, training=training)
    links, keys = sending(line), keys_of(1)
    assert links.structured is not None
    own = child_keys(child_keys(keys, UPLOAD), 0)
    within = links.structured.within(own)
    assert not isinstance(within, Factors)
    moved = within(np.random.default_rng(1).normal(size=(1, NETWORK.m)))
    sent = sent_updates(links, moved, child_keys(keys, UPLOAD))
    assert isinstance(sent, Payloads)
    decoded, _ = receiving(line).decode(sent.column, NETWORK.m)
    np.testing.assert_allclose(decoded, moved, atol=np.abs(decoded).max() / 60)
    assert ((decoded != 0) <= (moved != 0)).all()


def with_mask(study: Study, structured: bool) -> Study:
    training, upload = LocalSteps(rate=1.0, steps=1, structured=structured), (Mask(keep=0.4),)
    replaced = (msgspec.structs.replace(line, training=training, upload=upload) for line in study.lines)
    return msgspec.structs.replace(study, lines=tuple(replaced))


def learning_study() -> Study:
    arm = Arm(name="learning", share=1.0, line="main", applies=True, submits=True)
    return Study(name="any", pings="model-update", arms=(arm,), lines=(Line(name="main", spec=NETWORK),))


def pings_of(study: Study) -> dict[Any, dict[str, Any]]:
    """Return a fleet's pings of one iteration, by document."""
    transport = PlannedTransport(study)

    async def go() -> None:
        await (await join_study(transport, study.name, FleetSettings(clients=40, seed=1))).run_iteration()

    in_virtual_time(go())
    return {one.document_id: seen([one.body])[0].payload for one in transport.sent}


@pytest.mark.parametrize("study", [fleet_study(), learning_study()], ids=["browsers", "examples"])
def test_a_fleet_trains_within_the_masks_that_it_sends(study: Study) -> None:
    """One step within the mask equals the sketch of one step, except for the factor: the masks are the same."""
    within, sketched = pings_of(with_mask(study, True)), pings_of(with_mask(study, False))
    lines = {arm.name: line for line in with_mask(study, True).lines for arm in study.arms if arm.line == line.name}
    assert within.keys() == sketched.keys()
    moved = 0
    for document, ping in within.items():
        if ping["update"] is None:
            continue
        line = lines[ping["study_variation"] if "study_variation" in ping else ping["arm"]]
        m = line.spec.m
        payloads = [base64.b64decode(each["update"]["payload"]) for each in (ping, sketched[document])]
        [one, other], ok = receiving(line).decode(pa.array(payloads, pa.binary()), m)
        assert ok.all()
        np.testing.assert_allclose(one, other / lengths_of(Mask(keep=0.4), m), rtol=1e-6)
        moved += int((one != 0).sum())
    assert moved


STRUCTURED = LocalSteps(rate=0.1, epochs=1, structured=True)


@pytest.mark.parametrize(
    ("upload", "training", "said"),
    [
        ((), STRUCTURED, "structured = true, which trains within what the line's upload link sends"),
        ((Steps(size=1.0),), STRUCTURED, "to the link 'mask' or 'low-rank' alone"),
        (
            (LowRank(rank=2),),
            msgspec.structs.replace(STRUCTURED, optimizer=LocalAdam()),
            "with a different rate for each weight, whose steps the link 'low-rank' can't send",
        ),
        (
            (LowRank(rank=2),),
            msgspec.structs.replace(STRUCTURED, optimizer=LocalRMSProp()),
            "or the link 'mask'",
        ),
        (
            (LowRank(rank=2),),
            msgspec.structs.replace(STRUCTURED, optimizer=LocalRProp()),
            "with a different rate for each weight",
        ),
        (
            (LowRank(rank=2, fixed="neither"),),
            msgspec.structs.replace(STRUCTURED, proximal=0.1),
            "'proximal', which would pull at the factors",
        ),
        (
            (LowRank(rank=2, fixed="neither"),),
            msgspec.structs.replace(STRUCTURED, personal=FineTune(rate=0.1, steps=1)),
            "train both factors of a low rank have no further weights",
        ),
    ],
)
def test_lines_that_cannot_be_trained_within_are_refused(upload: Upload, training: Training, said: str) -> None:
    line = line_with(upload, spec=NETWORK, training=training)
    for end in (sending, receiving):
        with pytest.raises(InvalidSettings, match=said):
            end(line)


def test_trainings_that_are_not_within_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="'structured' and 'sign'"):
        LocalSteps(rate=0.1, epochs=1, structured=True, sign=True)
    with pytest.raises(InvalidSettings, match="'structured' and keep = true"):
        LocalSteps(rate=0.1, epochs=1, structured=True, optimizer=LocalMomentum(keep=True))
    with pytest.raises(InvalidSettings, match=r"its own update rule, as k-means does. .*'structured'"):
        check_training(learner_for(model_spec("k-means", {"features": 2, "clusters": 3})), STRUCTURED)
    model = learner_for(NETWORK)
    with pytest.raises(FedpingError, match="what an upload link sends, and there is none"):
        cohort_updates(model, STRUCTURED, model.start, fleet().batch(np.arange(4)), keys_of(4))


@pytest.mark.parametrize(
    ("upload", "aggregate", "said"),
    [
        ((Mask(keep=0.1),), MeanOfSigns(zero="up"), "counts zeros as upward votes, and the upload link 'mask'"),
        ((Mask(keep=0.1), Steps(size=1.0)), Median(), 'by = "median" }, which compares the clients'),
        ((Mask(keep=0.1),), TrimmedMean(), 'by = "trimmed_mean"'),
        ((Mask(keep=0.1),), Krum(), 'by = "krum"'),
        ((Mask(keep=0.1),), Recluster(), "the upload link 'mask' is inexact"),
        ((Rotation(), Float32()), Recluster(), "the upload link 'rotation' is inexact"),
        ((Steps(size=1.0),), Recluster(), "the upload link 'steps' is inexact"),
    ],
)
def test_aggregations_that_a_link_would_mislead_are_refused(upload: Upload, aggregate: Any, said: str) -> None:
    spec = ModelSpec(
        name="k-means", model="k-means", settings={"clusters": 3, "features": 10}, weights=spec_of(30).weights
    )
    pipeline = Pipeline(aggregate=aggregate, optimizer=GradientDescent())
    line = line_with(upload, pipeline, spec, LocalSteps(rate=1.0, epochs=1))
    with pytest.raises(InvalidSettings, match=said):
        receiving(line)


def test_aggregations_that_are_not_misled_are_not_refused() -> None:
    for aggregate in (MeanOfSigns(), MeanOfSigns(zero="abstain")):
        receiving(line_with((Mask(keep=0.5),), Pipeline(aggregate=aggregate)))
    for upload in ((), (Float32(),)):
        pipeline = Pipeline(aggregate=Recluster(), optimizer=GradientDescent())
        spec = ModelSpec(
            name="k-means", model="k-means", settings={"clusters": 1, "features": 2}, weights=spec_of(2).weights
        )
        receiving(line_with(upload, pipeline, spec, LocalSteps(rate=1.0, epochs=1)))
    receiving(line_with((Mask(keep=0.5),), training=OneGradient()))
