"""The JSON output of `study list`, `study check`, `store history` and `store recompute`, and their exit codes."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fedping.main import main
from fedping.model_store.store import ModelStore, open_store
from fedping.model_store.version import Lineage
from fedping.server_jobs.round.new_clients import no_clients, with_more
from tests.support.rounds import crowd, land, store_with
from tests.support.versions import after, small_study, version_0

DEMO = Path(__file__).parents[2] / "experiments" / "demo.toml"


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    opened = open_store(tmp_path / "store", create=True)
    for name in ("second", "first-of-them"):
        study = small_study(name)
        opened.create_study(study, (version_0(study),))
    opened.publish(after(opened.head("second", "main")))
    return opened


def test_the_list_is_of_names_and_on_request_of_states(store: ModelStore, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--store", store.where)
    assert run(capsys, "study", "pause", "second", "--because", "the loss went up", *where)[0] == 0
    assert run(capsys, "study", "list", *where) == (0, "first-of-them\nsecond\n", ""), "scripts take names alone"
    code, out, _ = run(capsys, "study", "list", "--state", *where)
    first, second = out.splitlines()
    assert code == 0
    assert first.split() == ["first-of-them", "running", "main", "at", "version", "0"]
    assert second.startswith("second         paused      main at version 1, since 20")
    assert second.endswith("UTC, because: the loss went up")
    code, out, _ = run(capsys, "study", "list", "--json", *where)
    first, second = map(json.loads, out.splitlines())
    assert (first["study"], first["state"], first["since"], first["versions"]) == (
        "first-of-them",
        "running",
        "",
        {"main": 0},
    )
    assert (second["state"], second["because"], second["versions"]) == ("paused", "the loss went up", {"main": 1})
    assert second["by"]
    assert second["pings"] == "frecency-update"


def test_a_damaged_study_is_listed_beside_the_others(store: ModelStore, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(store.where) / "first-of-them" / "study.json"
    file.write_bytes(file.read_bytes().replace(b"0.6", b"0.5"))
    where = ("--store", store.where)
    code, out, _ = run(capsys, "study", "list", "--state", *where)
    assert code == 1
    assert "first-of-them  unreadable" in out
    assert "second         running     main at version 1" in out
    code, out, _ = run(capsys, "study", "list", "--json", *where)
    assert code == 1
    assert [json.loads(line)["state"] for line in out.splitlines()] == ["unreadable", "running"]
    assert "study.json" in json.loads(out.splitlines()[0])["error"]


def test_an_empty_store_has_an_empty_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store").mkdir()
    for option in ((), ("--state",), ("--json",)):
        assert run(capsys, "study", "list", *option, "--store", tmp_path / "store") == (0, "", "")


def test_a_checked_file_is_the_study_that_would_be_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "study", "check", DEMO, "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["warnings"], found["begins_with"]) == ([], {})
    where = ("--store", tmp_path / "store")
    assert run(capsys, "study", "create", DEMO, *where)[0] == 0
    stored = json.loads(run(capsys, "study", "show", "demo", "--json", *where)[1])
    assert found["study"] == stored
    assert found["digest"] == open_store(tmp_path / "store").study("demo").digest


def test_warnings_and_weights_taken_over_are_in_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--store", tmp_path / "store")
    assert run(capsys, "study", "create", DEMO, *where)[0] == 0
    larger = tmp_path / "larger.toml"
    larger.write_text(DEMO.read_text().replace('name = "demo"', 'name = "larger"', 1))
    code, out, err = run(capsys, "study", "check", larger, "--from", "demo/main", "--json", *where)
    assert code == 0
    assert json.loads(out)["begins_with"] == {
        "main": {"study": "demo", "line": "main", "version": 0, "taken_over": 22, "anew": 0, "moved": 0}
    }
    own = tmp_path / "own.toml"
    own.write_text(
        'name = "own"\npings = "model-update"\n'
        'arms = [{ name = "all", share = 1.0, line = "main", applies = true, submits = true }]\n'
        '[[lines]]\nname = "main"\n[lines.spec]\nname = "own"\nmodel = "our-model"\n'
        'blocks = [{ name = "w", shape = [4], step = { start = 0.1, min = 1e-6, max = 50.0 } }]\n'
    )
    code, out, err = run(capsys, "study", "check", own, "--json")
    assert code == 0
    (warning,) = json.loads(out)["warnings"]
    assert "our-model" in warning
    assert warning in err


def test_a_wrong_file_leaves_nothing_for_a_program_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("name = 3\n")
    code, out, err = run(capsys, "study", "check", wrong, "--json")
    assert (code, out) == (2, "")
    assert str(wrong) in err


def test_the_history_has_numbers_of_clients_and_sketches_on_request(
    store: ModelStore, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(3)
    empty = no_clients(rng.bytes(16))
    ranks = np.ones(len(empty.registers), np.uint8)  # as if about as many clients had been seen as there are registers
    known = with_more(empty, ranks)
    head = store.head("second", "main")
    lineage = Lineage(origin="round", code_version="test", config_digest="config", known=known)
    store.publish(msgspec.structs.replace(after(head), lineage=lineage))
    words = ("store", "history", "second", "main", "--json", "--store", store.where)
    code, out, _ = run(capsys, *words)
    assert code == 0
    rows: list[dict[str, Any]] = json.loads(out)
    assert [row["lineage"]["known"] for row in rows] == [None, None, None]
    assert [row["known_clients"] for row in rows[:2]] == [None, None]
    assert rows[2]["known_clients"] > 1000
    assert len(out) < 3000
    with_sketches = json.loads(run(capsys, *words, "--sketches")[1])
    assert with_sketches[2]["lineage"]["known"] == {"salt": known.salt, "registers": known.registers}
    for row, full in zip(rows, with_sketches, strict=True):
        full["lineage"]["known"] = None
        assert row == full
    code, _, err = run(capsys, *(word for word in words if word != "--json"), "--sketches")
    assert code == 2
    assert "--sketches needs --json" in err


def test_a_recomputation_says_whether_and_where_a_version_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_with(tmp_path / "store", small_study())
    land(tmp_path / "landing", crowd(40), iteration=0)
    where = ("--store", tmp_path / "store", "--landing", tmp_path / "landing")
    assert run(capsys, "round", "study", "--engine", "numpy", *where)[0] == 0
    code, out, _ = run(capsys, "store", "recompute", "study", "main", 1, "--json", *where)
    assert code == 0
    assert json.loads(out) == {
        "study": "study",
        "line": "main",
        "version": 1,
        "engine": "numpy",
        "identical": True,
        "differences": [],
        "noise": None,
        "given": "",
    }
    file = tmp_path / "store/study/main/versions/1.json"
    document = json.loads(file.read_bytes().splitlines()[0])
    document["weights"][0] += 1e-9
    document.pop("seal", None)
    file.write_text(json.dumps(document))
    code, out, _ = run(capsys, "store", "recompute", "study", "main", 1, "--json", *where)
    assert code == 1
    found = json.loads(out)
    assert found["identical"] is False
    assert any("weights" in each for each in found["differences"])
