"""The pages' scripts, in Node.js, measure the age of the server's times by the server's clock."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.browser.tools import node

SCRIPT = Path("dashboard/static/js/clock.js")

ASKED = """
const [, , ahead, answers] = process.argv;
const visitor = Date.UTC(2026, 0, 2, 3, 4, 5);
Date.now = () => visitor;
const date = new Date(visitor + Number(ahead)).toUTCString();
globalThis.fetch = async () => {
  if (answers === "no") throw new TypeError("no answer");
  return { headers: { get: (name) => (answers === "yes" && name === "Date" ? date : null) } };
};
const { now } = await import("./clock.mjs");
await new Promise((resolve) => setTimeout(resolve, 0));
console.log(JSON.stringify(now() - visitor));
"""


@pytest.mark.parametrize(
    ("ahead", "answers", "taken"),
    [
        (26 * 3_600_000, "yes", 26 * 3_600_000),
        (-26 * 3_600_000, "yes", -26 * 3_600_000),
        (2_000, "yes", 0),
        (26 * 3_600_000, "without a date", 0),
        (26 * 3_600_000, "no", 0),
    ],
)
def test_a_visitors_clock_that_is_wrong_is_set_right(tmp_path: Path, ahead: int, answers: str, taken: int) -> None:
    (tmp_path / "clock.mjs").write_text(SCRIPT.read_text())
    (tmp_path / "asked.mjs").write_text(ASKED)
    said = subprocess.run(
        [node(), str(tmp_path / "asked.mjs"), str(ahead), answers], capture_output=True, text=True, check=True
    )
    assert json.loads(said.stdout) == taken
