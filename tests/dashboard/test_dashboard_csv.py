"""Tables as CSV, in Node.js: readers get the shown values, and no cell is a formula for a spreadsheet."""

import csv
import io
import json
import subprocess
from pathlib import Path

from tests.browser.tools import node

SCRIPT = Path("dashboard/static/js/csv.js")

WRITTEN = """
import { readFileSync } from "node:fs";
import { csv } from "./csv.mjs";
process.stdout.write(csv(JSON.parse(readFileSync(0, "utf8"))));
"""


def written(folder: Path, head: list[str], rows: list[list[object]]) -> list[list[str]]:
    """Return the cells of a table's CSV, as a reader parses them."""
    (folder / "csv.mjs").write_text(SCRIPT.read_text())
    (folder / "written.mjs").write_text(WRITTEN)
    given = json.dumps({"head": head, "rows": rows}).encode()
    said = subprocess.run([node(), str(folder / "written.mjs")], input=given, capture_output=True, check=True)
    return list(csv.reader(io.StringIO(said.stdout.decode(), newline="")))


def test_what_is_read_back_is_what_was_shown(tmp_path: Path) -> None:
    rows: list[list[object]] = [['a "quoted", name', -0.25, None], ["two\r\nlines", 1e-7, "-3"], ["Ω å", 12, "+1e5"]]
    assert written(tmp_path, ["name", "x", "y"], rows) == [
        ["name", "x", "y"],
        ['a "quoted", name', "-0.25", ""],
        ["two\r\nlines", "1e-7", "-3"],
        ["Ω å", "12", "+1e5"],
    ]


def test_no_name_becomes_a_formula(tmp_path: Path) -> None:
    names = ['=HYPERLINK("http://evil.example")', "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1"]
    assert written(tmp_path, names, []) == [[f"'{name}" for name in names]]
