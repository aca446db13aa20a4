"""The institutions' guide, typed as written: three institutions take part, each in a separate process."""

import json
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedping.client_sim.data import load
from fedping.client_sim.joining.columns import read_columns
from fedping.commands.join import join
from fedping.main import main
from tests.support.ingest_server import running_ingest
from tests.support.institutions import accuracy, agreed, joining, tables

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "institutions.md").read_text(encoding="utf-8")
ROUNDS = 3


TRAINING, REST = GUIDE.split("## Scales from everybody's tables")
SCALES, HELD_OUT = REST.split("## Rows that are held out")


def commands(text: str) -> Iterator[list[str]]:
    for block in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield from (shlex.split(line.removesuffix(" &"))[1:] for line in block.splitlines())


def files() -> dict[str, str]:
    return dict(re.findall(r"^```toml\n# file: (\S+)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL))


def run(capfd: pytest.CaptureFixture[str], *words: str | Path) -> str:
    capfd.readouterr()
    code = main(list(map(str, words)))
    said = capfd.readouterr()
    assert code == 0, f"{words}\n{said.out}{said.err}"
    return said.out


def test_three_institutions_train_a_model_by_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tumours.toml", "scales.toml"):
        Path(name).write_text(files()[name], encoding="utf-8")
    create, key, ingest, show, ticket, once, service, round_, history = commands(TRAINING)
    create_scales, tell, round_of_scales, print_scales = commands(SCALES)
    run(capfd, *create)
    run(capfd, *create_scales)
    run(capfd, *key)
    assert ingest == ["ingest", "--port", "8080", "--ticket-keys", "tickets.key"]
    store, landing = tmp_path / "store", tmp_path / "landing"
    with running_ingest(store, landing, "--workers", "1", "--ticket-keys", str(tmp_path / "tickets.key")) as server:
        agreed(Path("raw.toml"), raw=True)
        for number, table in enumerate(tables(tmp_path)):
            typed = {"https://pings.example": server.url, "patients.csv": str(table)}
            run(capfd, *[typed.get(word, word) for word in tell], "--state", f"scales-{number}")
        server.flush()
        assert "published version 1" in run(capfd, *round_of_scales)
        assert print_scales[-2:] == [">", "columns.toml"]
        Path("columns.toml").write_text(run(capfd, *print_scales[:-2]), encoding="utf-8")
        running = []
        for number, table in enumerate(tables(tmp_path)):
            typed = {"https://pings.example": server.url, "patients.csv": str(table), "ticket.txt": f"ticket-{number}"}
            mine = ["--state", str(tmp_path / f"state-{number}")]
            shown = json.loads(run(capfd, *[typed.get(word, word) for word in show], *mine))
            said = run(capfd, *[shown["clientId"] if word == "$CLIENT_ID" else word for word in ticket])
            Path(f"ticket-{number}").write_text(said, encoding="utf-8")
            assert once[-2:] == ["--rounds", "1"]
            assert service[:-2] == once[:-2]
            url, _, *options = [typed.get(word, word) for word in service[1:]]
            options = [str(tmp_path / word) if (tmp_path / word).exists() else word for word in options]
            running.append(joining(url, *options, *mine, "--every", "0.2s"))
        for version in range(ROUNDS):
            rows = [json.loads(process.stdout.readline()) for process in running if process.stdout]
            assert [(row["version"], row["outcome"]) for row in rows] == [(version, "accepted")] * 3
            server.flush()
            assert f"published version {version + 1}" in run(capfd, *round_)
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGTERM)
        for process, number in zip(running, numbers, strict=True):
            process.send_signal(number)
        told = [process.communicate(timeout=60) for process in running]
    losses = [version["lineage"]["arms"]["hospitals"]["loss"] for version in json.loads(run(capfd, *history))[1:]]
    assert losses[-1] < losses[0]  # they have noise
    assert [process.returncode for process in running] == [143, 130, 143], told
    check_scales(Path("columns.toml"))
    assert accuracy(store, 0) < 0.7
    assert accuracy(store, ROUNDS) > 0.93


def test_rows_are_held_out_by_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (arms,) = re.findall(r"^# in tumours.toml\n(.*?)^```$", HELD_OUT, re.MULTILINE | re.DOTALL)
    study = re.sub(r"^arms = .*\n", arms, files()["tumours.toml"], flags=re.MULTILINE)
    Path("tumours.toml").write_text(study.replace('tickets = "required"', ""), encoding="utf-8")
    agreed(Path("columns.toml"))
    run(capfd, "study", "create", "tumours.toml")
    once, round_, evaluation, clients = commands(HELD_OUT)
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as server:
        for version in range(2):
            for number, table in enumerate(tables(tmp_path)):
                typed = {"https://pings.example": server.url, "patients.csv": str(table)}
                run(capfd, *[typed.get(word, word) for word in once], "--state", f"state-{number}", "--every", "0.2s")
            server.flush()
            assert f"published version {version + 1} from 3 pings of 3 clients" in run(capfd, *round_)
    told = [json.loads(line) for line in run(capfd, *evaluation, "--json").splitlines()]
    assert [(one["version"], one["clients"]) for one in told] == [(0, 3), (1, 3)]
    assert told[1]["accuracy"] > 0.8 > told[0]["accuracy"]
    assert all(0.15 < one["examples"] / 569 < 0.25 for one in told)
    assert "tumours/main: 6 clients have sent valid pings" in run(capfd, *clients)


def test_class_weights_are_found_by_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each class is one more feature after the moments; training on a table then uses these weights."""
    monkeypatch.chdir(tmp_path)
    create, tell, round_, print_ = commands(SCALES)
    assert "`features = 62` above" in SCALES
    text = files()["scales.toml"].replace("features = 60", "features = 62").replace("[1, 60]", "[1, 62]")
    Path("scales.toml").write_text(text, encoding="utf-8")
    Path("raw.toml").write_text("counts = true\n" + agreed(Path("raw.toml"), raw=True).read_text(), encoding="utf-8")
    run(capfd, *create)
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as server:
        for number, table in enumerate(tables(tmp_path)):
            typed = {"https://pings.example": server.url, "patients.csv": str(table)}
            run(capfd, *[typed.get(word, word) for word in tell], "--state", f"scales-{number}")
        server.flush()
        run(capfd, *round_)
    Path("columns.toml").write_text(run(capfd, *print_[:-2]), encoding="utf-8")
    check_scales(Path("columns.toml"))
    counts = np.bincount(load("breast-cancer").y)
    found = read_columns(Path("columns.toml")).class_weights
    assert found == pytest.approx((counts.sum() / (2 * counts)).tolist(), rel=1e-5)


def check_scales(path: Path) -> None:
    """Check that scales are those of all rows together, although no table contains them all."""
    everybody, found = load("breast-cancer").x, read_columns(path).features
    assert [each.mean for each in found] == pytest.approx(everybody.mean(axis=0).tolist(), rel=1e-5)
    assert [each.deviation for each in found] == pytest.approx(everybody.std(axis=0).tolist(), rel=1e-3)


def test_the_file_of_columns_in_the_guide_is_one(tmp_path: Path) -> None:
    (tmp_path / "columns.toml").write_text(files()["columns.toml"], encoding="utf-8")
    read = read_columns(tmp_path / "columns.toml")
    assert (read.label, read.width) == ("diagnosis", 3)


def test_the_guide_names_every_option_and_no_other() -> None:
    table = GUIDE.split("| option | meaning |")[1].split("\n\n")[0]
    named = {name for row in table.splitlines() if row for name in re.findall(r"`(--[a-z-]+)`", row.split("|")[1])}
    assert named == {name for option in join.params for name in option.opts if name.startswith("--")}
