"""`fedping plan upload`: the sizes of encoded updates are the real ones, and the advice follows from them."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedping.client_sim import planning
from fedping.client_sim.learning import model_spec
from fedping.client_sim.planning import CANDIDATES, Cost, UploadPlan, _updates, plan_upload
from fedping.main import main
from fedping.protocol import extensions
from fedping.protocol.link_ends import ClientEnd, Ends, ServerEnd
from fedping.protocol.links import Mask, OwnLink, Steps, name_of
from fedping.protocol.personalization import Vector
from fedping.protocol.settings_file import converted
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Line, study_from_toml
from fedping.protocol.training import LocalSteps, OneGradient
from fedping.protocol.weights import Block, Step
from tests.support.encodings import EXAMPLES, sent_and_read

ROOT = Path(__file__).parents[2]
STEP = Step(start=0.01, min=0.001, max=0.1)


def any_line(m: int, **settings: Any) -> Line:
    spec = ModelSpec(name="any", model="any", blocks=(Block(name="w", shape=(m,), step=STEP),))
    return Line(name="main", spec=spec, **settings)


def by_name(plan: UploadPlan) -> dict[str, Cost]:
    return {cost.name: cost for cost in plan.costs}


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure three lists of links in addition to a line's own."""
    monkeypatch.setattr(planning, "CANDIDATES", CANDIDATES[:3])


@pytest.fixture(scope="module")
def large() -> UploadPlan:
    return plan_upload(any_line(20_000))


def test_every_list_of_links_is_weighed_or_refused_with_a_reason(large: UploadPlan) -> None:
    assert len(large.costs) + len(large.refused) == len(CANDIDATES)
    assert all(large.refused.values())
    assert "low-rank rank = 8" in large.refused


def test_every_encoding_is_weighed_but_those_that_save_nothing_or_belong_to_a_rule() -> None:
    weighed = {name_of(link) for links in CANDIDATES for link in links}
    left_out = {"dense", "rotation", "sign"} | {"top-k", "scaled-signs", "error-feedback"}  # biased, so not comparable
    assert {name_of(link) for link in EXAMPLES} - weighed == left_out


def test_bytes_are_those_of_payloads_and_of_the_json_that_holds_them(large: UploadPlan) -> None:
    of = by_name(large)
    assert of["float32"].update_bytes == of["none"].update_bytes == 80_000
    assert of["mask keep = 0.1"].update_bytes == 8 + 4 * 2000
    assert of["signs"].update_bytes == 4000
    assert of["signs"].bits == 1.6
    for name, cost in of.items():
        envelope = cost.posted_bytes - (cost.posted_bytes if name == "none" else -(-cost.update_bytes // 3) * 4)
        assert 0 <= envelope < 300, name


def test_an_error_is_that_of_what_the_server_decodes(large: UploadPlan) -> None:
    of = by_name(large)
    assert of["none"].error == pytest.approx(0, abs=1e-12)
    assert of["mask keep = 0.1"].error == pytest.approx(9, rel=0.1)
    assert of["signs"].error is None, "signs are no estimate of an update"


def test_as_many_times_more_clients_as_planned_make_a_mean_as_exact_as_without_links() -> None:
    """Thesis 4.5, in rounds of 20 clients that agree on a part of their updates: a factor of 1 + error is too small."""
    spec = model_spec("logistic-regression", {"features": 20})
    line = Line(name="main", spec=spec, training=LocalSteps(rate=0.1, epochs=5))
    masked = by_name(plan_upload(line))["mask keep = 0.1"]
    assert masked.error is not None
    assert masked.clients is not None
    assert masked.clients > 1.2 * (1 + masked.error)
    updates, _ = _updates(line, 0)
    drawn = np.random.default_rng(1).integers(0, len(updates), (1000, 20))
    decoded = sent_and_read((Mask(keep=0.1),), updates[drawn.ravel()], spec=spec).reshape(1000, 20, -1)
    of_encoded, of_dense = (
        ((found.mean(axis=1) - updates.mean(axis=0)) ** 2).sum(axis=1).mean() for found in (decoded, updates[drawn])
    )
    assert masked.clients == pytest.approx(of_encoded / of_dense, rel=0.1)


def test_of_many_weights_it_takes_what_has_the_fewest_bytes_for_the_same_error(large: UploadPlan) -> None:
    taken = next(cost for cost in large.costs if cost.upload == large.take)
    exact = [cost for cost in large.costs if "eden" not in cost.name]
    known = [cost.posted_times_clients for cost in exact if cost.posted_times_clients is not None]
    assert taken.posted_times_clients == min(known)
    assert large.take.startswith('[{ link = "')
    assert f"upload = {large.take}" in large.reason


def test_it_says_why_not_eden_where_that_compares_better(large: UploadPlan) -> None:
    eden, taken = by_name(large)["eden"], next(cost for cost in large.costs if cost.upload == large.take)
    assert eden.posted_times_clients is not None
    assert taken.posted_times_clients is not None
    assert eden.posted_times_clients < taken.posted_times_clients
    assert "eden has a smaller error, but is slightly biased" in large.reason


def test_of_22_weights_it_takes_none_and_names_batches() -> None:
    line = study_from_toml(ROOT / "experiments/firefox_2018.toml").lines[0]
    plan = plan_upload(line)
    assert (plan.m, plan.learned, plan.take) == (22, True, "")
    assert "batches" in plan.reason
    dense = by_name(plan)["none"]
    assert dense.batched_bytes < dense.posted_bytes / 2


@pytest.mark.usefixtures("few_candidates")
def test_the_line_s_own_links_come_with_the_others_and_training_within_them_is_left_out() -> None:
    own = (Mask(keep=0.25), Steps(size=3.0))
    assert "mask keep = 0.25, steps size = 3.0" in by_name(plan_upload(any_line(500, upload=own)))
    structured = any_line(500, upload=(Mask(keep=0.25),), training=LocalSteps(rate=0.1, epochs=1, structured=True))
    assert by_name(plan_upload(structured))["mask keep = 0.25"].error == pytest.approx(3, rel=0.2)


@pytest.mark.usefixtures("few_candidates")
def test_a_link_of_your_own_is_told_as_a_file_has_it() -> None:
    plan = plan_upload(any_line(500, upload=(OwnLink(name="nowhere", settings={"by": 2.0}, code="0" * 64),)))
    assert "nowhere by = 2.0" in plan.refused


def half(*, names: tuple[str, ...] = ()) -> Ends:
    def decode(payloads: pa.BinaryArray, m: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = np.frombuffer(b"".join(payloads.to_pylist()), "<f2").reshape(-1, m)
        return numbers.astype(np.float32), np.ones(len(payloads), bool)

    def encode(updates: np.ndarray, keys: np.ndarray) -> pa.BinaryArray:
        return pa.array([row.tobytes() for row in updates.astype("<f2")], pa.binary())

    return ClientEnd(encode=encode), ServerEnd(decode=decode, lengths=lambda m: (2 * m, 2 * m))


@pytest.mark.usefixtures("few_candidates")
def test_a_link_of_somebody_s_own_is_named_as_a_study_s_file_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "_registered", dict(extensions._registered))
    extensions.register("upload_link", "half", half)
    link = converted({"link": "half", "names": ["a", "b"]}, OwnLink, "")
    cost = plan_upload(any_line(500, upload=(link,))).costs[-1]
    assert (cost.name, cost.update_bytes) == ('half names = ["a", "b"]', 1000)
    [read] = tomllib.loads(f"upload = {cost.upload}")["upload"]
    assert converted(read, OwnLink, "") == link


@pytest.mark.usefixtures("few_candidates")
def test_the_same_seed_plans_the_same() -> None:
    assert plan_upload(any_line(300), 7) == plan_upload(any_line(300), 7)
    assert plan_upload(any_line(300), 7) != plan_upload(any_line(300), 8)


def test_a_private_line_is_refused_in_a_sentence() -> None:
    assert main(["plan", "upload", str(ROOT / "experiments/private_study.toml")]) == 2


def test_the_command_prints_a_table_and_for_machines_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "upload", "--weights", "3000"]) == 0
    out = capsys.readouterr().out
    assert "line main: 3,000 weights" in out
    assert "★ " in out
    assert "take upload = [{ link = " in out
    assert "e+" not in out
    assert max(map(len, out.splitlines())) <= 120
    assert main(["plan", "upload", "--weights", "1000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["take"] in [cost["upload"] for cost in found["costs"]]


def test_a_model_spec_alone_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(
        'name = "digits"\nmodel = "other"\n'
        '[[blocks]]\nname = "W"\nshape = [64, 32]\nstep = { start = 0.01, min = 0.001, max = 0.1 }\n'
    )
    assert main(["plan", "upload", str(file), "--json"]) == 0
    found = {cost["name"]: cost for cost in json.loads(capsys.readouterr().out)["costs"]}
    assert found["low-rank rank = 8"]["bits"] < 12


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "give the FILE of a study or of a model spec, or the number of weights with --weights"),
        (["a.toml", "--weights", "3"], "give the FILE"),
        (["nowhere.toml"], "cannot read the study file nowhere.toml"),
        ([str(ROOT / "experiments/compression.toml")], "is an experiment of the laboratory; give the number of its"),
        (
            [str(ROOT / "experiments/firefox_study.toml")],
            f"is an experiment; plan its study, {ROOT / 'experiments/firefox_2018.toml'}",
        ),
    ],
)
def test_what_cannot_be_meant_is_told_in_a_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "upload", *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.usefixtures("few_candidates")
def test_clients_that_send_nothing_are_not_weighed() -> None:
    """About half of the clients with a vector send nothing in their turn; an update of zeros would be the cheapest."""
    spec = model_spec("logistic-regression", {"features": 3})
    training = OneGradient(personal=Vector(rate=1.0))
    plan = plan_upload(Line(name="main", spec=spec, training=training))
    everybody = plan_upload(Line(name="main", spec=spec))
    assert plan.learned
    assert 0.3 * everybody.pings < plan.pings < 0.7 * everybody.pings
