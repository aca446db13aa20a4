"""Structured training and its encodings give the same bits in the laboratory and in simulated studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.simulate import experiment_from_toml, simulate
from fedping.protocol.encodings.mask import block_edges, weights_kept
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.links import Mask
from tests.support.encodings import both_ends, spec_of
from tests.support.laboratory import small
from tests.support.small_experiment import contents, experiment_file

LOCAL = {"algorithm": "local", "epochs": 2, "batch": 16, "rate": 0.5, "structured": True}
MODELS: dict[str, Any] = {"network": {"name": "network", "hidden": 5}, "logistic": {"name": "logistic-regression"}}


def last_model(folder: Path, **changes: Any) -> np.ndarray:
    """Return the weights after three rounds."""
    run_experiment(small(rounds=3, training=LOCAL, evaluation__local=False, **changes), folder, jobs=1)
    [found] = folder.glob("**/federated/seed-1/last.npy")
    return np.asarray(np.load(found))


@pytest.mark.parametrize(
    ("model", "link"),
    [
        ("logistic", [{"link": "mask", "keep": 0.4}, {"link": "steps", "size": 0.5}]),
        ("logistic", [{"link": "mask", "keep": 0.4, "draw": "independent"}]),
        ("network", [{"link": "low-rank", "rank": 2, "fixed": "inputs"}]),
    ],
    ids=["mask-steps", "mask-independent", "low-rank"],
)
def test_files_and_memory_come_to_the_same_bits(tmp_path: Path, model: str, link: Any) -> None:
    found = [
        last_model(tmp_path / where, where=where, model=MODELS[model], upload=link) for where in ("memory", "files")
    ]
    np.testing.assert_array_equal(*found)
    assert np.isfinite(found[0]).all()
    assert found[0].any()


@pytest.mark.spark
@pytest.mark.usefixtures("warm_commands")
def test_spark_comes_to_the_same_bits(tmp_path: Path) -> None:
    settings = {"model": MODELS["network"], "upload": [{"link": "low-rank", "rank": 2}]}
    found = [
        last_model(tmp_path / "memory", where="memory", **settings),
        last_model(tmp_path / "spark", where="files", engine="spark", **settings),
    ]
    np.testing.assert_array_equal(*found)


def test_training_within_nothing_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="structured = true"):
        last_model(tmp_path, where="memory")


def simulated(folder: Path, training: str, threads: int = 1) -> pa.Table:
    """Return the pings that a simulated study lands in its first iteration."""
    file = experiment_file(folder, iterations=1, ticks=1)
    study = folder / "study.toml"
    text = f'name = "main"\nupload = [{{ link = "mask", keep = 0.5 }}]\ntraining = {{ {training} }}\n[lines.pipeline]'
    study.write_text(study.read_text().replace('name = "main"\n[lines.pipeline]', text))
    simulate(*experiment_from_toml(file), folder / "out", threads)
    files = landed_files(partition(folder / "out" / "landing", "small", "main", 0))
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files]).sort_by("document_id")


def test_simulated_browsers_train_within_the_masks_that_they_send(tmp_path: Path) -> None:
    step = 'algorithm = "local", steps = 1, rate = 1.0'
    sketched = simulated(tmp_path / "sketched", step)
    within = simulated(tmp_path / "within", f"{step}, structured = true")
    simulated(tmp_path / "threads", f"{step}, structured = true", threads=3)
    assert contents(tmp_path / "within" / "out") == contents(tmp_path / "threads" / "out")
    _, server = both_ends((Mask(keep=0.5),), spec_of(22))
    columns = [table["update"].drop_null().combine_chunks().cast(pa.binary()) for table in (within, sketched)]
    (one, read), (other, _) = (server.decode(column, 22) for column in columns)
    assert read.all()
    assert one.any()
    lengths = np.diff(block_edges(weights_kept(0.5, 22), 22))
    np.testing.assert_allclose(one, other / np.repeat(lengths, lengths), rtol=1e-6)
