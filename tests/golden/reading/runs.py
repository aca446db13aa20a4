"""Reads laboratory runs and simulated studies: killed runs resume, with the same results as at the time.

Results of linear algebra are equal to the bit only with the same routines and processor; with others, numbers are
compared within a tolerance, and ``bytes`` not at all.
"""

import contextlib
import importlib
import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from threadpoolctl import threadpool_info

from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings import experiment_from_toml
from fedping.experiments.simulate import experiment_from_toml as simulation_from_toml
from fedping.experiments.simulate import simulate
from fedping.model_store import open_store
from fedping.server_jobs.round import recompute
from fedping.server_jobs.round.engine import NumpyEngine
from tests.golden.reading.common import answers, files

OVER = ("training.rate=0.125,0.25", "sampling.clients=3,5")
SIMULATED = {"simulated": "small", "hushed": "hushed"}
RUN_AGAIN = {"sweep"}
"""Folders whose finished runs are run again, because their AUC was computed from bins and other runs are unfinished."""

OF_THE_CLOCK = ("seconds", "begun", "version")


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"kernel": kernel()}
    for place in sorted(path for path in folder.iterdir()):
        name = place.name
        found[name] = simulated(place, SIMULATED[name]) if name in SIMULATED else laboratory(place)
    finished = folder / "variants" / "out"
    found["compare"] = answers("compare", f"{finished}:gradient", f"{finished}:local, three")
    return found


def kernel(*packages: str) -> list[str]:
    """Return the routines of linear algebra, the processor, and the versions of packages."""
    blas = {f"{each['internal_api']} {each.get('architecture', '')}" for each in threadpool_info()}
    simd: Any = np.show_config(mode="dicts")
    versions = {f"{package} {version(package)}" for package in packages}
    return sorted({*versions, *blas, *simd.get("SIMD Extensions", {}).get("found", [])})


def laboratory(place: Path) -> dict[str, Any]:
    """Run the rest of an experiment, and return its results."""
    out = place / "out"
    with own_modules(place):
        over = OVER if place.name == "sweep" else ()
        experiment = experiment_from_toml(place / "experiment.toml", (), over)
        begun = sorted(path.parent.relative_to(out).as_posix() for path in out.rglob("run.json"))
        before = {name: files(out / name) for name in begun}
        summary = run_experiment(experiment, out, jobs=1)
    for name, contents in before.items() if place.name not in RUN_AGAIN else ():
        assert files(out / name) == contents, f"{place.name}: {name} was finished, and is not as it was"
    return {
        "digest": summary.digest,
        "finished before": begun,
        "summary": plain(json.loads((out / "summary.json").read_bytes())),
        "runs": {path.parent.relative_to(out).as_posix(): run(path.parent) for path in sorted(out.rglob("run.json"))},
        "bytes": files(out, "run.json", "summary.json", "report.html", "experiment.json", "units.json"),
    }


def run(folder: Path) -> dict[str, Any]:
    """Return the results of one run."""
    found = {"run": plain(json.loads((folder / "run.json").read_bytes()))}
    for name in ("last", "best"):
        if (folder / f"{name}.npy").exists():
            found[name] = np.load(folder / f"{name}.npy", allow_pickle=False).tolist()
    rows = pq.read_table(folder / "metrics.parquet").to_pylist()
    found["metrics"] = {" ".join(str(row.pop(key)) for key in ("round", "split", "metric")): row for row in rows}
    return found


def simulated(place: Path, study: str) -> dict[str, Any]:
    """Run the rest of a simulated study, and return its results."""
    simulate(*simulation_from_toml(place / "experiment.toml"), place / "out", threads=1)
    store = open_store(place / "out" / "store")
    versions = [store.version(study, "main", number) for number in store.iterations(study, "main")]
    again = [
        recompute(store, place / "out" / "landing", study, "main", each.iteration, NumpyEngine()) for each in versions
    ]
    return {
        "weights": [list(version.weights) for version in versions],
        "counts": [version.lineage.counts for version in versions],
        "identical": [each.identical for each in again],
        "summary": plain(json.loads((place / "out" / "summary.json").read_bytes())),
        "bytes": {**files(place / "out" / "landing"), "versions": [version.digest for version in versions]},
    }


def plain(found: Any) -> Any:
    """Return JSON without what depends on the clock or the version of fedping; notes are counted, not compared."""
    if isinstance(found, dict):
        told = {key: plain(value) for key, value in found.items() if key not in OF_THE_CLOCK}
        return {key: len(value) if key == "notes" and value else value for key, value in told.items()}
    return [plain(each) for each in found] if isinstance(found, list) else found


@contextlib.contextmanager
def own_modules(folder: Path) -> Iterator[None]:
    """Let a user's modules be imported from a folder."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
        sys.path.remove(str(folder))
        for name in ("golden_loss", "golden_scale"):
            sys.modules.pop(name, None)
