"""The Live page's script and the analysis compute the same numbers from the same versions."""

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fedping.analysis.curves import arm_curves
from fedping.analysis.rounds import round_traffic
from fedping.dashboard.live.feed import LineFeed, Lines
from fedping.model_store.decisions import rollback
from fedping.protocol.errors import as_sentence
from tests.browser.tools import node
from tests.support.dashboard import dashboard_settings
from tests.support.versions import small_study
from tests.support.walks import INTERVAL, created_at, following, walked_store

SCRIPT = Path("dashboard/live/static/line.js")

TAKEN = """
import { readFileSync } from "node:fs";
import { Line } from "./line.mjs";
const { changes } = JSON.parse(readFileSync(0, "utf8"));
const line = new Line();
const told = [line.health];
for (const change of changes) {
  line.take(change);
  told.push(line.health);
}
console.log(JSON.stringify({
  loss: Object.fromEntries(line.loss), pings: Object.fromEntries(line.pings), clients: line.clients,
  stable: line.stable, marks: line.marks, times: [...line.times],
  versions: line.rows.map((row) => row.version), newest: line.newestVersion, interval: line.interval, told,
}));
"""


def taken(folder: Path, changes: list[Any]) -> dict[str, Any]:
    """Return the script's state after the changes; ``told`` has the line's state after each."""
    program = node()
    (folder / "line.mjs").write_text(SCRIPT.read_text())
    (folder / "taken.mjs").write_text(TAKEN)
    given = msgspec.json.encode({"changes": changes})
    run = subprocess.run([program, str(folder / "taken.mjs")], input=given, capture_output=True, timeout=240)
    assert run.returncode == 0, run.stderr.decode()
    return json.loads(run.stdout)


def test_the_lines_are_those_of_the_analysis_however_the_rows_come(tmp_path: Path) -> None:
    study = small_study()
    store = walked_store(tmp_path / "store", study, 12)
    rollback(store, "study", "main", 7, created=created_at(13), code_version="test")
    feed = LineFeed("study", "main", Lines(dashboard_settings(tmp_path)))
    whole = msgspec.to_builtins(feed.since(None).data)  # type: ignore[union-attr]
    parts = [{**whole, "rows": whole["rows"][:5]}]
    parts += [{"whole": False, "rows": [row], "complete": True, "now": whole["now"]} for row in whole["rows"][5:]]
    some = taken(tmp_path, parts[:1])
    assert (some["versions"][-1], some["newest"]) == (4, 13), "the newest is named before its row has come"
    found = taken(tmp_path, parts)
    assert found == {**taken(tmp_path, [parts[0], whole]), "told": found["told"]}, "nor do rows come twice"
    assert found["versions"] == store.iterations("study", "main")
    for name, curve in arm_curves(store, "study", "main").items():
        assert found["loss"][name] == [[i, v] for i, v in zip(curve.iterations, curve.loss, strict=True)]
    traffic = round_traffic(store, "study", "main")
    for name, pings in traffic.arms.items():
        assert found["pings"][name] == [[i, n] for i, n in zip(traffic.iterations, pings, strict=True)]
    assert [(mark["x"], mark["words"]) for mark in found["marks"]] == [(13, "rolled back to 7")]
    assert found["marks"][0]["at"] == dict(found["times"])[13]
    assert found["interval"] == INTERVAL.astype("timedelta64[s]").astype(int)


def test_other_settings_and_another_release_leave_a_mark(tmp_path: Path) -> None:
    study = small_study()
    store = walked_store(tmp_path / "store", study, 2)
    head = following(study, store.head("study", "main"), np.random.default_rng(3))
    changed = msgspec.structs.replace(head.lineage, config_digest="another", code_version="9.9")
    store.publish(msgspec.structs.replace(head, lineage=changed))
    whole = msgspec.to_builtins(LineFeed("study", "main", Lines(dashboard_settings(tmp_path))).since(None).data)  # type: ignore[union-attr]
    marks = taken(tmp_path, [whole])["marks"]
    assert [(mark["x"], mark["words"]) for mark in marks] == [(3, "other settings"), (3, "fedping 9.9")]


def test_how_the_line_is_is_shown_as_it_was_judged_once_all_is_there(tmp_path: Path) -> None:
    walked_store(tmp_path / "store", small_study(), 3)
    feed = LineFeed("study", "main", Lines(dashboard_settings(tmp_path)))
    whole = msgspec.to_builtins(feed.since(None).data)  # type: ignore[union-attr]
    changes = [
        {**whole, "complete": False},
        {**whole, "rows": []},
        {"whole": False, "rows": [], "trouble": "there is no model store at x"},
        whole,
    ]
    judged = msgspec.json.decode(msgspec.json.encode(whole["now"]["health"]))
    assert judged["verdict"] == "problem"
    found = taken(tmp_path, changes)["told"]
    assert [one["verdict"] for one in found] == ["reading", "reading", "problem", "problem", "problem"]
    assert found[2] == found[4] == judged
    assert [one["sentence"] for one in found[3]["findings"]] == ["there is no model store at x"]


@pytest.mark.parametrize(
    "text",
    [
        "there is no model store at /srv/x",
        "store/walk/study.json cannot be read",
        "guard.stage is missing",
        "/a/b is gone.",
        "is it?",
    ],
)
def test_an_error_is_a_sentence_as_on_the_server_and_a_path_stays_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "format.mjs").write_text(Path("dashboard/static/js/format.js").read_text())
    program = f"import {{ sentence }} from './format.mjs'; process.stdout.write(sentence({json.dumps(text)}));"
    (tmp_path / "said.mjs").write_text(program)
    run = subprocess.run([node(), str(tmp_path / "said.mjs")], capture_output=True, timeout=240, check=True)
    assert run.stdout.decode() == as_sentence(text)
