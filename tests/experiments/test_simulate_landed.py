"""The simulation lands the same rows as ingest for the same pings."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from werkzeug.test import Client

from fedping.client_sim.fleet.interactions import Ranking, product_spec
from fedping.client_sim.fleet.pings import interaction_pings
from fedping.client_sim.population.behaviour import Seekers, behave
from fedping.experiments.simulate import experiment_from_toml
from fedping.experiments.simulate.people import People
from fedping.experiments.simulate.ticks import _BEHAVE, _DOCUMENT, _MOMENT, Models, TickMaker, uuid_bytes
from fedping.model_store.store import open_store
from fedping.protocol.arrow import landed_schema
from fedping.protocol.draws import child_keys, uniforms
from fedping.protocol.enrolment import enrol
from fedping.protocol.landing import landed_files
from fedping.protocol.notation import time_at
from fedping.server_jobs.ingest.application import Edge
from fedping.server_jobs.ingest.compactor import Compactor
from fedping.server_jobs.ingest.counters import Counters
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.ingest.worker import services_for
from fedping.server_jobs.optimize import first_versions
from tests.support.small_experiment import experiment_file


def sorted_rows(table: pa.Table) -> list[dict[str, object]]:
    rows = table.drop_columns(["received_at"]).to_pylist()
    return sorted(rows, key=lambda row: row["document_id"])


def test_ingest_lands_the_same_rows(tmp_path: Path) -> None:
    experiment, study = experiment_from_toml(experiment_file(tmp_path / "files"))
    store = open_store(tmp_path / "store", create=True)
    store.create_study(study, first_versions(study, created=time_at(experiment.start_ms), code_version="test"))
    people = People(experiment, study)
    start = np.array(study.lines[0].spec.start)
    models = {"main": Models(np.zeros(1, np.int64), {0: start})}
    means = people.activity.means(20.0, 0.5)
    with ThreadPoolExecutor(2) as pool:
        parts = TickMaker(experiment, study, people, pool).parts(0, 0, means, models)
    simulated = pa.concat_tables([part.table for part in parts])
    assert {part.line for part in parts} == {"main", None}
    assert {part.version for part in parts} == {0, -1}

    settings = IngestSettings(store=tmp_path / "store", landing=tmp_path / "landing", journal=tmp_path / "journal")
    settings.journal.mkdir()
    settings.landing.mkdir()
    services = services_for(settings, "worker-0")
    client = Client(Edge(services))
    searching = people.activity.searching(0, means)
    all_keys = people.activity.search_keys(searching, 0)
    posted = 0
    for position, arm in enumerate(study.arms):
        mine = np.flatnonzero(people.arm[searching.users] == position)
        users, keys = searching.users[mine], all_keys[mine]
        held = (
            np.full(len(users), -1) if arm.line is None else people.activity.held_versions(users, 0, np.zeros(1, int))
        )
        spec = product_spec() if arm.line is None else study.lines[0].spec
        day = uniforms(child_keys(keys, _MOMENT), 1)[:, 0] / 48
        done = behave(
            people.users("frecency-2018"),
            Ranking(spec, start, start if arm.submits else None, arm.decays),
            Seekers(users, child_keys(keys, _BEHAVE), day),
            0,
        )
        ids = [UUID(bytes=bytes(people.ids[user])) for user in users]
        bodies = interaction_pings(ids, arm.name, held.tolist(), done.seen, done.typed)
        for document, body in zip(uuid_bytes(child_keys(keys, _DOCUMENT)), bodies, strict=True):
            path = f"/submit/small/frecency-update/1/{UUID(bytes=bytes(document))}"
            answer = client.post(path, data=body, environ_overrides={"CONTENT_LENGTH": str(len(body))})
            assert answer.status_code == 200, answer.text
            posted += 1
    services.journals.roll()
    while Compactor(settings, Counters(settings.counters)).run_once():
        pass
    files = [file for folder in settings.landing.glob("study=*/line=*/iteration=*") for file in landed_files(folder)]
    landed = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
    assert posted == len(simulated) > 100
    assert simulated.schema.equals(landed_schema())
    assert {part.line or "none" for part in parts} == {file.parent.parent.name.removeprefix("line=") for file in files}
    assert sorted_rows(simulated) == sorted_rows(landed)


def test_everyone_is_in_the_arm_that_enrolment_says(tmp_path: Path) -> None:
    experiment, study = experiment_from_toml(experiment_file(tmp_path))
    people = People(experiment, study)
    for client_id, position in zip(people.ids[:200], people.arm[:200], strict=True):
        one = UUID(bytes=bytes(client_id))
        assert one.version == 4
        arm = enrol(study, str(one))
        assert position == (len(study.arms) if arm is None else study.arms.index(arm))
    assert len(np.unique(people.ids, axis=0)) == experiment.clients
