"""A model of many weights in a block: over HTTP within the limits, through a round, and to clients."""

from pathlib import Path

import msgspec
import numpy as np

from fedping.client_sim.fleet.pings import encoded_lines, encoded_pings
from fedping.model_store.version import Aggregate, Version
from fedping.protocol.landed_table import ModelPings
from fedping.protocol.model import ModelDocument
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.spec import Block, ModelSpec, Step, Uniform, published
from fedping.protocol.study import Study
from fedping.server_jobs.ingest.pages import Documents
from fedping.server_jobs.ingest.settings import Limits
from fedping.server_jobs.optimize import first_state, initial_state, state_to_document, step_arrays
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from tests.support.ingest_app import IngestApp, ingest_app
from tests.support.model_updates import PATH, STUDY, model_study
from tests.support.steps import next_weights
from tests.support.versions import WHEN

M = 20_000


def large_study(m: int = M) -> Study:
    """Return a study of model updates with a block of m weights and an integer block."""
    step = Step(start=0.01, min=0.001, max=0.1)
    blocks = (
        Block(name="W", shape=(m // 100, 100), start=Uniform(seed=1, scale=1), step=step),
        Block(name="n", shape=(1,), step=step, integer=True),
    )
    study = model_study()
    line = msgspec.structs.replace(study.lines[0], spec=ModelSpec(name="large", model="any", blocks=blocks))
    return msgspec.structs.replace(study, lines=(line,))


def pings(k: int, seed: int = 0) -> ModelPings:
    rng = np.random.default_rng(seed)
    return ModelPings(
        document_ids=rng.integers(0, 256, (k, 16), np.uint8),
        client_ids=rng.integers(0, 256, (k, 16), np.uint8),
        arm="treatment",
        version=0,
        updates=rng.normal(size=(k, M + 1)),
        losses=np.ones(k),
        examples=rng.integers(1, 9, k),
    )


def limited(tmp_path: Path, ping_bytes: int, batch_bytes: int = 2**20) -> IngestApp:
    limits = Limits(ping_bytes=ping_bytes, batch_bytes=batch_bytes, decompressed_bytes=2**20)
    return ingest_app(tmp_path, others=[large_study()], limits=limits)


def test_a_ping_beyond_the_limit_is_refused_with_the_option_that_allows_more(tmp_path: Path) -> None:
    ingest = limited(tmp_path, 100_000)
    [(document, body)] = encoded_pings(pings(1))
    answer = ingest.post(f"{PATH}/{document}", body)
    assert answer.status_code == 413
    assert answer.json["error"] == (
        f"the body has {len(body)} bytes, and the maximum is 100000; send less in one request, or ask the operator "
        "for a larger --max-ping-mib"
    )
    ingest.services.rejections.flush()
    [log] = ingest.settings.rejected.glob("*.jsonl")
    assert msgspec.json.decode(log.read_bytes())["detail"] == f"{len(body)} bytes; --max-ping-mib allows 100000"


def test_a_batch_may_always_have_what_a_ping_may(tmp_path: Path) -> None:
    ingest = limited(tmp_path, 400_000, batch_bytes=1000)
    one, two = encoded_lines(pings(2))
    assert ingest.post(PATH, one).json == {"accepted": 1, "rejected": []}
    answer = ingest.post(PATH, b"\n".join([one, two]))
    assert answer.status_code == 413
    assert "--max-batch-mib" in answer.json["error"]


def test_from_pings_to_the_next_version_and_back_to_clients(tmp_path: Path) -> None:
    ingest = limited(tmp_path, 400_000)
    sent = pings(3)
    for document, body in encoded_pings(sent):
        assert len(body) < 13 * M
        assert ingest.post(f"{PATH}/{document}", body).status_code == 200
    ingest.land()
    store, landing = ingest.services.store, ingest.settings.landing
    engine = NumpyEngine()
    result = run_round(store, landing, STUDY, "main", engine, RoundOptions(clock=lambda: WHEN, code_version="test"))
    assert result.status == "published"
    spec = large_study().lines[0].spec
    assert sent.updates is not None
    mean = np.average(sent.updates.astype(np.float64), axis=0, weights=sent.examples)
    version = store.head(STUDY, "main")
    np.testing.assert_allclose(version.weights, spec.start_array + mean, rtol=0, atol=1e-12)
    document = msgspec.json.decode(ingest.client.get(f"/models/{STUDY}/main/latest.json").data, type=ModelDocument)
    assert (document.names, document.spec_digest) == ((), spec.digest)
    assert document.model == published(spec, version.weights)
    assert recompute(store, landing, STUDY, "main", 1, engine).identical


def test_a_public_document_is_that_of_the_version(tmp_path: Path) -> None:
    store = limited(tmp_path, 1000).services.store
    for study in (STUDY, "study"):
        version = store.version(study, "main", 0)
        parts = {name: getattr(version, name) for name in ModelDocument.__struct_fields__ if name != "staged"}
        assert store.public.document(study, "main", 0) == msgspec.json.encode(ModelDocument(**parts))


def test_a_version_that_was_changed_on_disk_is_read_again(tmp_path: Path) -> None:
    ingest = limited(tmp_path, 1000)
    store = ingest.services.store
    first = store.version(STUDY, "main", 0)
    assert store.version(STUDY, "main", 0) is first
    path = ingest.settings.store / STUDY / "main" / "versions" / "0.json"
    changed = msgspec.structs.replace(first, created="2027-01-01T00:00:00.000+00:00")
    path.write_bytes(msgspec.json.encode(changed))
    again = store.version(STUDY, "main", 0)
    assert (again, again.digest) == (changed, msgspec.json.decode(path.read_bytes(), type=Version).digest)
    assert again.digest != first.digest


def test_documents_are_kept_within_their_bytes(tmp_path: Path) -> None:
    store = limited(tmp_path, 1000).services.store
    size = len(store.public.document(STUDY, "main", 0))
    assert len(store.public.document("study", "main", 0)) < size
    kept = Documents(store, most_bytes=size)
    large, small = (kept.document(study, "main", 0) for study in (STUDY, "study"))
    assert kept.document("study", "main", 0) is small
    assert kept.document(STUDY, "main", 0) is not large, "the older one had to go"
    assert kept.document(STUDY, "main", 0) == large


def test_steps_on_arrays_are_those_of_documents_bit_for_bit() -> None:
    line = msgspec.structs.replace(large_study(200).lines[0], pipeline=Pipeline())  # RProp, which has state
    spec = line.spec
    weights, state = spec.start, initial_state(spec, line.pipeline)
    array, arrays = spec.start_array, first_state(line)
    assert state_to_document(arrays) == state
    rng = np.random.default_rng(0)
    for _ in range(3):
        mean = rng.normal(size=spec.m)
        aggregate = Aggregate(pings=1, clients=1, weight=1, mean=tuple(mean.tolist()), m2=(0.0,) * spec.m)
        weights, state = next_weights(line, weights, state, aggregate)
        array, arrays = step_arrays(line, array, arrays, mean)
    assert (tuple(array.tolist()), state_to_document(arrays)) == (weights, state)
