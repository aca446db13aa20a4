"""Reads commands' JSON output on frozen stores, landing folders and files: keys, values and exit codes."""

from pathlib import Path
from typing import Any

from fedping.protocol.study import study_from_toml
from tests.golden.reading.common import answers, command

LEFT_OUT = ("age_seconds", "seconds", "age", "sizes")
"""Keys that depend on the clock, and sizes from simulations, which change with SciPy's last bits."""

SENTENCE = 4
"""Minimum number of words of a sentence, whose wording may change; only its presence is compared."""

SHIPPED = ("demo", "firefox_2018", "linear", "private_study")
COUNTS = "0:120,1:60,2:20"
PLANS: dict[str, list[object]] = {
    "effect": ["power", "effect", "--counts", COUNTS, "--change", "5%", "--simulations", "200", "--seed", "3"],
    "effect of users": ["power", "effect", "--counts", COUNTS, "--users", "4000", "--simulations", "200"],
    "upload": ["plan", "upload", "--weights", "64", "--seed", "3"],
    "privacy": ["privacy", "plan", "--clients", "10000", "--rounds", "50", "--epsilon", "4", "--contributions", "2"],
    "noise": ["privacy", "plan", "--clients", "10000", "--rounds", "50", "--noise", "8", "--sampling", "0.1"],
}


def read(folder: Path) -> dict[str, Any]:
    simulated = {"--store": folder / "simulated" / "store", "--landing": folder / "simulated" / "landing"}
    simulated_options = [word for pair in simulated.items() for word in pair]
    store = simulated_options[:2]
    own = ["--store", folder / "store", "--landing", folder / "landing"]
    return {
        "study show": told("study", "show", "small", *store),
        "study history": told("study", "history", "paused", *own[:2]),
        "store history": told("store", "history", "small", "main", *store),
        "store diff": told("store", "diff", "small", "main", 0, 3, *store),
        "store held": told("store", "held", "small", "main", *store),
        "store recompute": [command("store", "recompute", "small", "main", n, *simulated_options)[0] for n in range(4)],
        "landing prune": told("landing", "prune", "small", "--keep", 1, "--dry-run", *simulated_options),
        "landing clients": told("landing", "clients", "tumours", *own),
        "landing evaluation": told("landing", "evaluation", "tumours", *own),
        "landing copy": told("landing", "copy", "small", "--to", folder / "copy", *simulated_options),
        "round of a paused study": told("round", "paused", "main", "--engine", "numpy", *own),
        "round of one that has ended": told("round", "ended", "main", "--engine", "numpy", *own),
        "study health": health(own),
        "privacy card": told("privacy", "card", "hushed", *own[:2]),
        "privacy spent": told("privacy", "spent", "hushed", *own[:2]),
        "plans": {name: told(*words) for name, words in PLANS.items()},
        "shipped": {name: shipped(folder / "shipped", name) for name in SHIPPED},
    }


def told(*words: object) -> Any:
    """Return a command's JSON output, without the wording of sentences."""
    return unworded(answers(*words, without=LEFT_OUT))


def unworded(found: Any) -> Any:
    """Return JSON with empty texts in place of sentences; lists keep their length."""
    if isinstance(found, dict):
        return {key: unworded(value) for key, value in found.items()}
    if isinstance(found, list):
        return [unworded(each) for each in found]
    return "…" if isinstance(found, str) and len(found.split()) >= SENTENCE else found


def health(own: list[object]) -> Any:
    """Return the health of studies untouched for a long time, without durations."""
    code, out, _ = command("study", "health", *own, "--json")
    return {"code": code, "lines": len(out.splitlines())}


def shipped(folder: Path, name: str) -> Any:
    """Return the results of commands on a study, given its file and store."""
    file, store = folder / f"{name}.toml", folder / "store"
    study = study_from_toml(file)
    return {
        "digest": study.digest,
        "as a new study": study_from_toml(file, new=True).digest,
        "check": command("study", "check", file, "--store", store)[0],
        "created again": command("study", "create", file, "--store", store)[0],
        "show": told("study", "show", study.name, "--store", store),
        "change": told("study", "change", file, "--dry-run", "--store", store),
    }
