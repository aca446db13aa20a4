"""Stored counts of a study, as their process would leave them, for the results pages."""

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from fedping.analysis.report import table_notes
from fedping.analysis.verdict import Asked, Verdict, as_document
from fedping.dashboard.results.counts import ASKED, LANDED
from fedping.dashboard.results.landed import Landed
from fedping.dashboard.results.question import key_of
from fedping.experiments.run_process import ENDED, PROCESS, STDERR, STDOUT, Ended, Process

WHEN = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def keep_count(runs: Path, verdict: Verdict, asked: Asked) -> str:
    """Store the count of a verdict below the runs' folder; return its name."""
    name = f"{1:013d}-{key_of(asked)}"
    folder = runs / "results" / verdict.study.name / name
    folder.mkdir(parents=True)
    kept: dict[str, msgspec.Struct] = {
        ASKED: asked,
        LANDED: Landed({}, {}, "1"),
        PROCESS: Process(1, WHEN),
        ENDED: Ended(0, WHEN),
    }
    for file, value in kept.items():
        (folder / file).write_bytes(msgspec.json.encode(value))
    document = as_document(verdict, None, table_notes(verdict))
    (folder / STDOUT).write_text(json.dumps(document, allow_nan=False) + "\n")
    (folder / STDERR).write_text("")
    return name
