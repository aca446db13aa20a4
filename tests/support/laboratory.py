"""A small laboratory experiment, as tables and as a file."""

from pathlib import Path
from typing import Any

from fedping.experiments.laboratory.settings import Experiment, experiment_of
from fedping.experiments.laboratory.settings.merging import merged, nested

SMALL = """
rounds = 6
seeds = 2
[model]
name = "logistic-regression"
l2 = 1e-2
[data]
name = "breast-cancer"
standardise = true
validation = 0.1
[partition]
partition = "iid"
clients = 8
[server]
optimizer = { optimizer = "gradient_descent", rate = 1.0 }
[evaluation]
local = true
[[variants]]
name = "gradient"
[[variants]]
name = "local, three"
training = { algorithm = "local", epochs = 2, batch = 16, rate = 0.5 }
sampling = { sampling = "uniform", clients = 3 }
"""


def small_file(folder: Path, more: str = "") -> Path:
    """Write the experiment into a folder; return the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "small.toml"
    file.write_text(SMALL + more)
    return file


def small(**changes: Any) -> Experiment:
    """Return the experiment with one variant and one seed, and settings changed by dotted keys ('__' for '.')."""
    import tomllib

    raw = {key: value for key, value in tomllib.loads(SMALL).items() if key not in ("variants", "seeds")}
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    if "co_op" in changes or "gossip" in changes:
        del raw["server"]
    return experiment_of(merged(raw, nested(dotted)), name="small", folder=Path())
