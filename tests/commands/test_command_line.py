"""A mistake on the command line gives one sentence and a non-zero exit, without a traceback or partial effects."""

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import fedping
from fedping.commands.round import show
from fedping.main import SUBCOMMANDS, main
from fedping.model_store.store import open_store
from fedping.model_store.version import ArmSummary
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import open_landing
from fedping.server_jobs.round import RoundResult
from tests.support.versions import after, small_study, version_0

ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "experiments" / "demo.toml")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    assert main(["study", "create", DEMO, "--store", str(tmp_path / "store")]) == 0
    (tmp_path / "landing").mkdir()
    return tmp_path / "store"


def test_every_subcommand_has_help_and_no_other_name_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    for name in SUBCOMMANDS:
        assert main([name, "--help"]) == 0
        assert "Usage: fedping" in capsys.readouterr().out
    for word, says in (
        ("rounds", "No such command 'rounds'; did you mean 'round'?"),
        ("anaylze", "did you mean 'analyze'?"),
        (
            "help",
            "No such command 'help'; 'fedping --help' lists the commands, 'fedping COMMAND --help'",
        ),
        ("xyz", "No such command 'xyz'; 'fedping --help' lists the commands."),
    ):
        assert main([word]) == 2
        assert says in capsys.readouterr().err
    assert main(["store", "histroy"]) == 2
    assert "'history'" in capsys.readouterr().err


def test_a_study_of_one_line_needs_no_line(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    place = ["--store", str(store)]
    for words in (["history"], ["show"], ["held"]):
        found = []
        for line in (["main"], []):
            assert main(["store", *words, "demo", *line, *place]) == 0
            found.append(capsys.readouterr().out)
        assert found[0] == found[1] != ""
    landing = ["--landing", str(tmp_path / "landing")]
    assert main(["store", "continue", "demo", "--from", "5", *place, *landing]) == 0
    assert main(["store", "rollback", "demo", "--to", "0", *place, *landing]) == 0
    assert open_store(store).iterations("demo", "main")[-1] == 6
    study = small_study("two")
    half = msgspec.structs.replace(study.arms[0], share=study.arms[0].share / 2)
    lines = (study.lines[0], msgspec.structs.replace(study.lines[0], name="b"))
    arms = (half, *study.arms[1:], msgspec.structs.replace(half, name="b", line="b"))
    both = msgspec.structs.replace(study, lines=lines, arms=arms)
    open_store(store).create_study(
        both, tuple(msgspec.structs.replace(version_0(both), line=line.name) for line in lines)
    )
    assert main(["store", "history", "two", *place]) == 2
    assert "LINE is missing: study 'two' has the lines main, b; give one " in capsys.readouterr().err


def test_without_a_store_an_analyst_is_told_where_to_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDPING_STORE", raising=False)
    assert main(["analyze", "shoes"]) == 1
    said = capsys.readouterr().err
    assert "there is no model store at store; give the store's folder or address with --store or FEDPING_STORE" in said
    assert said.index("FEDPING_STORE") < said.index("study create")
    with pytest.raises(FedpingError, match="with 'path', or make a new one"):
        fedping.open_store(tmp_path / "none")


def test_a_misspelt_study_is_suggested(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "show", "dmeo", "--store", str(store)]) == 1
    assert "has no study 'dmeo'; it has demo; did you mean 'demo'?" in capsys.readouterr().err


def test_a_study_is_created_once_and_creating_again_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert main(["study", "create", DEMO, "--store", str(store)]) == 0
    assert "version 0 of main (22 weights)" in capsys.readouterr().out
    before = sorted((p, p.read_bytes()) for p in store.rglob("*.json"))
    assert main(["study", "create", DEMO, "--store", str(store)]) == 0
    assert "nothing changed" in capsys.readouterr().out
    assert sorted((p, p.read_bytes()) for p in store.rglob("*.json")) == before


@pytest.mark.parametrize("file", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda p: p.name)
def test_every_study_file_that_we_ship_is_valid(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "[[arms]]" not in file.read_text():
        pytest.skip("an experiment, not a study")
    assert main(["study", "check", str(file)]) == 0
    assert "line main: " in capsys.readouterr().out


def test_what_a_store_holds_can_be_read(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["study", "list", "--store", str(store)]) == 0
    assert main(["study", "show", "demo", "--store", str(store)]) == 0
    shown = capsys.readouterr().out
    assert "arm treatment" in shown
    for safe in (  # what the file does not say, and a new study gets
        "pings of another arm are rejected",
        "a loss is accepted from 0 to 1e+15",
        "a loss is clipped to 0 to 1,000,000",
        "longer, in the weights' first steps, than 0.1 times the 0.5 quantile",
        "a weight changes only if more than 0.015 of the votes could have moved it",
        "held until an operator decides",
    ):
        assert safe in shown
    assert main(["study", "arm", "demo", "00000000-0000-4000-8000-000000000000", "--store", str(store)]) == 0
    found = capsys.readouterr().out.strip()
    assert found in {"treatment", "control", "control-no-decay"}
    for written in ("{00000000-0000-4000-8000-00000000ABCD}", "0000000000004000800000000000abcd"):
        assert main(["study", "arm", "demo", written, "--store", str(store)]) == 0
    assert len(set(capsys.readouterr().out.split())) == 1, "ingest knows an id however it is written"
    assert main(["store", "show", "demo", "main", "--store", str(store)]) == 0
    assert json.loads(capsys.readouterr().out)["iteration"] == 0
    assert main(["store", "history", "demo", "main", "--json", "--store", str(store)]) == 0
    assert [row["iteration"] for row in json.loads(capsys.readouterr().out)] == [0]


def test_history_difference_rollback_and_recomputation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, where = small_study(), ["--store", str(tmp_path)]
    opened = open_store(tmp_path, create=True)
    opened.create_study(study, (version_0(study),))
    opened.publish(after(opened.head("study", "main"), change=2.0))
    assert main(["store", "diff", "study", "main", "0", *where]) == 0
    assert "(+2)" in capsys.readouterr().out
    assert main(["store", "rollback", "study", "main", "--to", "0", *where]) == 0
    assert "published version 2, which repeats version 0" in capsys.readouterr().out
    assert main(["store", "diff", "study", "main", "0", *where]) == 0
    assert "have the same weights" in capsys.readouterr().out
    assert main(["store", "recompute", "study", "main", "2", *where]) == 0
    assert "bit-identical" in capsys.readouterr().out


def test_nothing_is_rolled_back_in_an_older_copy_of_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, landing = small_study(), tmp_path / "landing"
    opened = open_store(tmp_path / "store", create=True)
    opened.create_study(study, (version_0(study),))
    opened.publish(after(opened.head("study", "main"), change=2.0))
    roll_back = ["store", "rollback", "study", "main", "--to", "0", "--store", str(tmp_path / "store")]
    open_landing(landing).record_published(opened.where, "study", "main", 3)
    assert main([*roll_back, "--landing", str(landing)]) == 1
    assert "the store is an older copy" in capsys.readouterr().err
    assert opened.head("study", "main").iteration == 1
    open_landing(landing).record_published(opened.where, "study", "main", 1)
    assert main([*roll_back, "--landing", str(landing)]) == 0
    assert open_landing(landing).read_published(opened.where, "study", "main") == 2
    assert main([*roll_back, "--landing", str(tmp_path / "elsewhere")]) == 0
    assert "correct --landing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["study", "create", "none.toml"], 2, "cannot read the study file none.toml"),
        (["study", "show", "demo", "--store", "{none}"], 1, "no model store at"),
        (["study", "show", "other", "--store", "{store}"], 1, "no study 'other'; it has demo"),
        (["store", "show", "demo", "other", "--store", "{store}"], 2, "no line 'other'; it has main"),
        (["store", "show", "demo", "main", "9", "--store", "{store}"], 1, "no version 9"),
        (["store", "rollback", "demo", "main", "--to", "0", "--store", "{store}"], 2, "Nothing to roll back"),
        (["store", "diff", "demo", "main", "x", "--store", "{store}"], 2, "not a valid integer"),
        (["round", "other", "--store", "{store}", "--landing", "{landing}"], 1, "no study 'other'"),
        (["round", "demo", "other", "--store", "{store}", "--landing", "{landing}"], 2, "no line 'other'"),
        (["round", "demo", "--store", "{none}", "--landing", "{landing}"], 1, "no model store at"),
        (["round", "demo", "--store", "{store}", "--landing", "{none}"], 1, "no landing folder exists at"),
        (["schedule", "demo", "--every", "soon", "--store", "{store}", "--landing", "{landing}"], 2, "soon"),
        (["ingest", "--store", "{none}", "--landing", "{landing}"], 1, "no model store at"),
        (["ingest", "--store", "{store}", "--landing", "{landing}", "--workers", "0"], 2, "workers"),
        (["demo", "--clients", "0"], 2, "clients"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    capsys.readouterr()
    places = {"store": store, "landing": tmp_path / "landing", "none": tmp_path / "nowhere"}
    before = sorted((p, p.read_bytes()) for p in store.rglob("*.json"))
    assert main([word.format(**places) for word in arguments]) == code
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said
    assert sorted((p, p.read_bytes()) for p in store.rglob("*.json")) == before


def test_a_damaged_store_is_told_by_file(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = store / "demo" / "main" / "versions" / "0.json"
    document.write_bytes(b"{")
    assert main(["round", "demo", "--store", str(store), "--landing", str(tmp_path / "landing")]) == 1
    assert "versions/0.json cannot be read" in capsys.readouterr().err


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUBCOMMANDS, "schema", ("fedping.commands.schema", "not_there", ""))
    with pytest.raises(AttributeError):
        main(["schema", "ping"])


def test_the_exit_code_reaches_the_shell() -> None:
    ran = subprocess.run([sys.executable, "-m", "fedping", "study", "show", "x", "--store", "/nowhere"], cwd=ROOT)
    assert ran.returncode == 1


SIGNALLED_WHILE_IMPORTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "{module}":
            os.kill(os.getpid(), signal.{number})

sys.meta_path.insert(0, Finder())
sys.argv = ["fedping", "{command}", "x"]
from fedping.__main__ import run
run()
"""


@pytest.mark.parametrize(
    ("module", "command", "number", "code", "word"),
    [
        ("click", "schedule", "SIGINT", 130, "interrupted"),
        ("click", "analyze", "SIGINT", 130, "interrupted"),
        ("fedping.server_jobs.schedule", "schedule", "SIGINT", 130, "interrupted"),
        ("fedping.commands.schedule", "schedule", "SIGTERM", -signal.SIGTERM, "terminated"),
        ("fedping.server_jobs.shutdown", "round", "SIGTERM", -signal.SIGTERM, "terminated"),
        ("fedping.commands.ingest", "ingest", "SIGTERM", -signal.SIGTERM, "terminated"),
    ],
)
def test_a_signal_that_comes_before_the_command_has_begun_is_told_in_a_word(
    module: str, command: str, number: str, code: int, word: str
) -> None:
    script = SIGNALLED_WHILE_IMPORTING.format(module=module, number=number, command=command)
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr.lstrip()) == (code, f"fedping: {word}\n")


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"set -o pipefail; {sys.executable} -m fedping schema ping | true"
    ran = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode in (0, 1)  # click ends with 1 where the pipe is closed before it has written
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(("number", "told"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_a_full_disk_is_told_in_a_sentence(
    number: int, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(**_: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(sys.modules["fedping.main"].cli, "main", full)
    if not told:
        with pytest.raises(OSError, match="no"):
            main(["simulate"])
        return
    assert main(["simulate"]) == 1
    assert capsys.readouterr().err == "fedping: the disk is full; free some space, then run the same command again\n"


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EROFS, 1), (errno.EACCES, 1), (errno.ENOSPC, 1), (errno.ESTALE, 75), (errno.ETIMEDOUT, 75)],
)
def test_a_disk_that_may_answer_later_ends_with_75_and_one_that_a_person_must_mend_with_1(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(**_: object) -> None:
        raise OSError(number, "no", "/srv/store/study.json")

    monkeypatch.setattr(sys.modules["fedping.main"].cli, "main", away)
    assert main(["simulate"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert "/srv/store/study.json" in line


@pytest.mark.parametrize(("loss", "shown"), [(0.4321987, "0.4322"), (-7.25, "−7.2500"), (6.02e23, "6.0200e+23")])
def test_a_round_shows_losses_of_any_size_in_a_few_digits(
    loss: float, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = {"treatment": ArmSummary(pings=5, examples=5, loss=loss, rank_selected=None)}
    show(RoundResult(status="held", study="s", line="l", iteration=1, min_clients=1, arms=arms), False)
    assert capsys.readouterr().out.split()[-2:] == ["loss", shown]
