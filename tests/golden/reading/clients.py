"""Reads clients' state: fleets and institutions continue from it, and post the same pings as before."""

import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.golden.reading.common import command, digest, files
from tests.golden.reading.runs import kernel
from tests.golden.reading.server import Server, serving

FLEETS = ("tuned", "corrected", "mixed", "learned", "hushed")
"""Studies whose clients keep state; the last one's state is the versions that they contributed to."""

INSTITUTIONS = {
    "tumours": ["--rounds", "1"],
    "waiting": ["--rounds", "2"],
    "keeping": ["--rounds", "2"],
    "holding": ["--rounds", "1", "--hold-out", "0.25"],
}
"""Folders of `fedping join`, with the options to continue."""

OF_THE_CLOCK = ("seconds", "time", "ms", "at", "took", "wait", "duration", "per_second")


def fleet_options(study: str, run: int) -> list[object]:
    """Return the options of a fleet."""
    examples = [] if study == "hushed" else ["--examples", "4", "8"]
    return [study, "--clients", "10", "--seed", "3", "--run", run, *examples, "--json"]


def join_options(folder: Path, name: str) -> list[object]:
    """Return the options of an institution in a folder, including the consent to continue without protection."""
    study = "held" if name == "holding" else "kept" if name == "keeping" else "tumours"
    table = ["--data", folder / "rows.csv", "--columns", folder / "columns.toml"]
    return [study, *table, "--state", folder / name, "--every", "0.1s", "--yes", "--json", "--accept-reconstruction"]


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"kernel": kernel("numpy"), "fleets": {}, "institutions": {}}
    for study in FLEETS:
        with serving(folder / "store", newest=2) as server:
            state = folder / f"{study}.sqlite"
            code, out, err = command("fleet", server.url, *fleet_options(study, 8), "--client-state", state)
            assert code == 0, err
            found["fleets"][study] = {
                "told": [untimed(json.loads(line)) for line in out.splitlines()],
                "posted": sorted(map(digest_of_client, server.bodies.values())),
                "pings": posted(server),
                "bytes": {name: digest(body) for name, body in server.bodies.items()} if study != "hushed" else {},
                "kept": kept(state),
            }
    for name, more in INSTITUTIONS.items():
        before = (folder / name / "waiting.json").exists()
        with serving(folder / "store", newest=2) as server:
            code, out, err = command("join", server.url, *join_options(folder, name), *more, "--for", "90s")
            found["institutions"][name] = {
                "waited": before,
                "code": code,
                "told": [untimed(json.loads(line)) for line in out.splitlines()],
                "pings": posted(server),
                "bytes": {key: digest(body) for key, body in server.bodies.items()},
                "sent": [untimed(line) for line in answered(folder / name / "sent.ndjson")],
                "progress": json.loads((folder / name / "progress.json").read_bytes()),
                "files": sorted(files(folder / name)),
            }
    return found


def answered(log: Path) -> list[dict[str, Any]]:
    """Return the lines of a ping log with an answer; earlier programs wrote no others."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if line.get("outcome") != "unanswered"]


def posted(server: Server) -> dict[str, Any]:
    """Return the pings that were posted, by document id, with their updates as numbers."""
    return {name: json.loads(body) for name, body in sorted(server.bodies.items())} if server.bodies else {}


def digest_of_client(body: bytes) -> str:
    """Return a ping's client and arm."""
    ping = json.loads(body)
    return f"{ping['clientId']} {ping['payload']['study_variation']}"


def kept(state: Path) -> dict[str, int]:
    """Return the number of rows that each table of a state file has."""
    database = sqlite3.connect(state)
    try:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: database.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0] for name in sorted(names)}
    finally:
        database.close()


def untimed(found: Any) -> Any:
    """Return JSON without what depends on the clock."""
    if isinstance(found, dict):
        return {key: untimed(value) for key, value in found.items() if not any(part in key for part in OF_THE_CLOCK)}
    return [untimed(each) for each in found] if isinstance(found, list) else found
