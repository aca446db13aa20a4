"""The page on upgrades, typed over a deployment begun by an older wheel: no ping is lost or counted twice.

Clients of both programs send to both hosts throughout, and some repeat their pings to the other host.
`tests/server_jobs/test_version_skew.py` adds kills and even older programs.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import fedping
from fedping.documentation import headings
from fedping.model_store import open_store
from tests.support.environments import built_wheel, installed_wheel, share_packages
from tests.support.older import older_program
from tests.support.typed_pages import DOCS, Command, Terminal, follow, steps

PAGE = (DOCS / "upgrading.md").read_text("utf-8")
BEFORE = "3d425e4fa48c55000404126043ba7b2edb0d284b"
STUDIES = {
    "coffee": """
name = "coffee"
pings = "model-update"
arms = [
  { name = "ranked", share = 0.5, line = "main", applies = true, submits = true },
  { name = "control", share = 0.5, line = "main" },
]
[[lines]]
name = "main"
[lines.pipeline]
optimizer = { optimizer = "rprop" }
min_clients = 10
[lines.spec]
name = "coffee"
model = "logistic-regression"
settings = { features = 2 }
blocks = [
  { name = "coefficients", shape = [2], step = { start = 0.1, min = 1e-6, max = 50.0 } },
  { name = "intercept", shape = [1], step = { start = 0.1, min = 1e-6, max = 50.0 } },
]
""",
    "tumours": """
name = "tumours"
pings = "model-update"
arms = [{ name = "hospitals", share = 1.0, line = "main", applies = true, submits = true }]
[[lines]]
name = "main"
training = { algorithm = "gradient" }
[lines.pipeline]
optimizer = { optimizer = "gradient_descent", rate = 4.0 }
weighting = "examples"
min_clients = 2
[lines.spec]
name = "tumours"
model = "logistic-regression"
settings = { features = 2 }
blocks = [
  { name = "coefficients", shape = [2], step = { start = 0.1, min = 1e-6, max = 50.0 } },
  { name = "intercept", shape = [1], step = { start = 0.1, min = 1e-6, max = 50.0 } },
]
""",
    "votes": """
name = "votes"
pings = "private-update"
arms = [{ name = "all", share = 1.0, line = "main", applies = true, submits = true }]
[[lines]]
name = "main"
[lines.pipeline]
optimizer = { optimizer = "rprop" }
min_clients = 20
[lines.spec]
name = "votes"
model = "linear-regression"
settings = { features = 1, intercept = false }
weights = [{ name = "w0", start = 0, step = { start = 1.0, min = 0.1, max = 3.0 } }]
[lines.privacy.central]
epsilon = 3.0
delta = 1e-6
rounds = 10
population = 1000
[lines.privacy.shared]
helper = "HELPER"
min_batch = 20
""",
}
FIRST = 40
"""Number of pings before the upgrade."""

JOIN = "{program}/bin/fedping join http://127.0.0.1:8080 tumours --data table-0.csv --label label --state state-0 --yes"
BEGUN = """\
```console
$ export FEDPING_STORE=$PWD/store FEDPING_LANDING=$PWD/landing
$ old/bin/fedping helper init
$ sed -i "s/HELPER/$(old/bin/fedping helper identity)/" votes.toml
$ for study in coffee tumours votes; do old/bin/fedping study create $study.toml; done
$ old/bin/fedping ingest --port 8080 --operations-port 8082 --journal journal-a --workers 1 \\
  > a.log 2>&1 & echo $! > a.pid
$ old/bin/fedping ingest --port 8081 --operations-port 8083 --journal journal-b --workers 1 \\
  > b.log 2>&1 & echo $! > b.pid
$ for port in 8080 8081 8082 8083; do until curl -sf http://127.0.0.1:$port/__heartbeat__; do sleep 1; done; done
$ old/bin/fedping privacy key leader.key
$ curl -s http://127.0.0.1:8080/models/votes/study.json > votes.json
$ old/bin/fedping helper join votes.json --leader $(old/bin/fedping privacy identity leader.key) --offer offer.json
$ old/bin/fedping study offer votes main offer.json
$ old/bin/fedping helper serve --port 8084 > helper.log 2>&1 & echo $! > helper.pid
$ old/bin/fedping join http://127.0.0.1:8080 tumours --data table-0.csv --label label --state state-0 --rounds 1 --yes
$ old/bin/fedping join http://127.0.0.1:8081 tumours --data table-1.csv --label label --state state-1 --rounds 1 --yes
$ old/bin/fedping fleet http://127.0.0.1:8081 votes --clients 130
$ old/bin/fedping fleet http://127.0.0.1:8080 coffee --clients 40
$ curl -sf -X POST http://127.0.0.1:8082/__flush__
$ curl -sf -X POST http://127.0.0.1:8083/__flush__
$ old/bin/fedping round tumours --engine numpy
$ old/bin/fedping round coffee --engine numpy
```
"""
"""Commands of the older program that begin the deployment."""


@dataclass
class Crowd:
    """Clients of both programs in turn, which post to one of two hosts; half of them post the same pings to both."""

    terminal: Terminal
    times: int = 0
    answered: int = 0
    documents: int = 0

    def send(self) -> None:
        """Let clients of the next program post to one host, and half of them the same documents to the other."""
        self.times += 1
        for port in ("8080", "8081"):  # a worker may start listening just after the operations port is healthy
            self.terminal.type(f"until curl -sf http://127.0.0.1:{port}/__lbheartbeat__; do sleep 0.2; done")
        program = "old" if self.times % 2 else "new"
        for port, clients in random.Random(self.times).sample([("8080", 30), ("8081", 15)], 2):
            command = f"{program}/bin/fedping fleet http://127.0.0.1:{port} coffee --clients {clients}"
            said = self.terminal.type(f"{command} --seed {self.times} --run {self.times}")
            (sent, accepted) = re.findall(r"^(\d+) pings?: (\d+) accepted", said, re.MULTILINE)[0]
            assert sent == accepted, said
            self.answered += int(accepted)
        self.documents += 30


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the environment of the older program's wheel."""
    folder = tmp_path_factory.mktemp("older")
    return installed_wheel(folder / "built", older_program(BEFORE, folder / "fedping").folder).parents[1]


@pytest.fixture
def terminal(tmp_path: Path, older: Path) -> Iterator[Terminal]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    folder = tmp_path / "deployment"
    folder.mkdir()
    (folder / "old").symlink_to(older)
    shutil.copy(built_wheel(tmp_path / "wheel"), folder)
    for name, text in STUDIES.items():
        (folder / f"{name}.toml").write_text(text)
    for number in range(2):
        draw = random.Random(number)
        rows = [(draw.gauss(0, 1), draw.gauss(0, 1)) for _ in range(200)]
        lines = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in rows]
        (folder / f"table-{number}.csv").write_text("\n".join(["a,b,label", *lines]) + "\n")
    opened = Terminal(folder, tuple(f"808{n}" for n in range(5)), PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
    yield opened
    opened.close()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_an_upgrade_by_the_page_and_back_loses_nothing_and_counts_nothing_twice(terminal: Terminal) -> None:
    crowd = Crowd(terminal)
    for _ in follow(BEGUN, terminal):
        pass
    for step, _ in follow(PAGE, terminal):
        if step.text == "python3 -m venv new":
            share_packages(terminal.folder / "new")
        elif re.search("^until .*808[23]|round coffee", step.text):
            crowd.send()
    assert crowd.times > 5, "and each program has sent to each"
    for port in ("8082", "8083"):
        assert '"flushed":true' in terminal.type(f"curl -sf -X POST http://127.0.0.1:{port}/__flush__")
    assert "published version 6" in terminal.type("old/bin/fedping round coffee --engine numpy")

    store, landing = open_store(terminal.folder / "store"), terminal.folder / "landing"
    landed = {version: documents(landing, version) for version in range(6)}
    assert sum(map(len, landed.values())) == FIRST + crowd.answered
    assert len(set().union(*landed.values())) == FIRST + crowd.documents
    for version, found in landed.items():
        lineage = store.version("coffee", "main", version + 1).lineage
        if lineage.origin == "round":
            counts = lineage.counts
            assert counts["duplicate"] == len(found) - len(set(found))
            assert counts["used"] + counts["other_arm"] == len(set(found))
        else:
            assert found == [], "no client has come between the round and what repeats it"
    for program, version in (("old", 2), ("new", 5)):
        assert "is bit-identical" in terminal.type(f"{program}/bin/fedping store recompute coffee main {version}")
    sent = (terminal.folder / "state-0" / "sent.ndjson").read_text().splitlines()
    assert len({json.loads(line)["document_id"] for line in sent}) == 2, "one ping for each version"
    # A downgrade that is impossible says so, and changes nothing.
    folder = terminal.folder / "state-0"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    refused = terminal.type(f"{JOIN.format(program='old')} && exit 1 || true")
    assert "joined.json is damaged" in refused
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    terminal.type('sed \'s/"coffee"/"tea"/\' coffee.toml > tea.toml && new/bin/fedping study create tea.toml')
    assert "later version of fedping" in terminal.type("old/bin/fedping round tea --engine numpy && exit 1 || true")


def documents(landing: Path, version: int) -> list[bytes]:
    """Return the document ids of a version's landed pings, including duplicates."""
    batches = fedping.read_pings(landing, "coffee", line="main", iteration=version, columns=["document_id"])
    return [row["document_id"] for batch in batches for row in batch.to_pylist()]


def test_the_page_has_each_part_in_its_order() -> None:
    """An upgrade begins with the hosts, then rounds; a downgrade first stops rounds."""
    found = [heading.title for heading in headings(PAGE) if heading.level == 2]
    assert found[:4] == ["Before", "Ingest, host by host", "Rounds", "The helper"]
    typed = [step.text for step in steps(PAGE) if isinstance(step, Command)]
    assert [text.split("/")[0] for text in typed if "bin/fedping ingest" in text] == ["new", "new", "old", "old"]
    last = [text for text in typed if "store continue" in text or "bin/fedping round" in text]
    assert any("store continue" in text for text in last[:-1])
