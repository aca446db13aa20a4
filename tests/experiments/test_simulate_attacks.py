"""Hostile clients of a simulated study: their pings land like all others, and honest pings stay unchanged."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedping.experiments.simulate import Summary, experiment_from_toml, simulate
from fedping.experiments.simulate.people import People
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import landed_files, partition
from tests.support.small_experiment import contents, experiment_file

SHORT: dict[str, Any] = {"iterations": 1, "ticks": 1}


def run(folder: Path, attack: str = "", threads: int = 1) -> Summary:
    file = experiment_file(folder, more=attack, **SHORT)
    return simulate(*experiment_from_toml(file), folder / "out", threads)


def landed(folder: Path) -> pa.Table:
    files = landed_files(partition(folder / "out" / "landing", "small", "main", 0))
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files]).sort_by("document_id")


def test_hostile_clients_alone_send_something_else(tmp_path: Path) -> None:
    clean = run(tmp_path / "clean")
    attacked = run(tmp_path / "attacked", 'attack = { attack = "sign_flip", share = 0.2, scale = 3 }')
    before, after = landed(tmp_path / "clean"), landed(tmp_path / "attacked")
    assert before.drop_columns("update").equals(after.drop_columns("update"))
    people = People(*experiment_from_toml(tmp_path / "attacked" / "experiment.toml"))
    hostile = {one.tobytes() for one in people.ids[people.hostile]}
    columns = (table["update"].to_pylist() for table in (before, after))
    changed = set()
    for client, own, sent in zip(before["client_id"].to_pylist(), *columns, strict=True):
        if own is None or client not in hostile:
            assert own == sent
        else:
            np.testing.assert_array_equal(np.frombuffer(sent, "<f4"), -3 * np.frombuffer(own, "<f4"))
            changed.add(client)
    assert changed
    assert attacked.optimization.hostile_pings > 0 == clean.optimization.hostile_pings


INVENTED = 'attack = { attack = "label_flip", invented = 0.5 }'


def test_invented_ids_search_beside_the_clients_and_threads_change_nothing(tmp_path: Path) -> None:
    clean, attacked = run(tmp_path / "clean"), run(tmp_path / "one", INVENTED)
    run(tmp_path / "three", INVENTED, threads=3)
    assert contents(tmp_path / "one" / "out") == contents(tmp_path / "three" / "out")
    hostile = attacked.optimization.hostile_pings
    assert attacked.optimization.pings - clean.optimization.pings == hostile > 0
    assert attacked.optimization.arms["control"] == clean.optimization.arms["control"]


def test_an_attack_that_a_study_of_pages_cannot_have_is_refused(tmp_path: Path) -> None:
    for attack, told in (("backdoor", "pages"), ("reconstruction", "laboratory")):
        file = experiment_file(tmp_path, more=f'attack = {{ attack = "{attack}" }}', **SHORT)
        with pytest.raises(InvalidSettings, match=told):
            experiment_from_toml(file)
