"""The commands of a two-server line's leader: the key, its identity, and rounds with a helper or its files."""

from pathlib import Path

import msgspec
import pytest

from fedping.main import main
from fedping.server_jobs.privacy.keys import leader_identity
from tests.support.helper_server import helper_server
from tests.support.private_rounds import land_private
from tests.support.rounds import store_with
from tests.support.shared_rounds import CENTRAL, KEY, SharedLine, shared_line

ROUND = ["round", "private", "main", "--engine", "numpy", "--privacy-key", "key"]


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedLine:
    monkeypatch.chdir(tmp_path)
    made = shared_line(tmp_path, central=CENTRAL)
    store_with(tmp_path / "store", made.study)
    land_private(tmp_path / "landing", made.study, [*made.crowd(30), *made.crowd(20, arm="control")])
    (tmp_path / "key").write_text(KEY.hex() + "\n")
    (tmp_path / "key").chmod(0o600)
    return made


def test_the_identity_of_a_key_is_what_the_helper_joins_with(
    line: SharedLine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["privacy", "identity", "key"]) == 0
    assert capsys.readouterr().out == leader_identity(KEY) + "\n"
    assert leader_identity(KEY) in line.offer.terms


def test_rounds_ask_the_helper_that_is_given(line: SharedLine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ROUND, "--json"]) == 0
    told = msgspec.json.decode(capsys.readouterr().out)
    assert (told["status"], told["clients"]) == ("asked", 50)
    assert "--answer FILE" in told["missing"]
    with helper_server(line.helper) as server:
        assert main([*ROUND, "--helper", "main=http://127.0.0.1:9"]) == 0
        assert "can't reach the helper at http://127.0.0.1:9" in capsys.readouterr().out
        assert main([*ROUND, "--helper", "http://127.0.0.1:9", "--helper", f"main={server.url}"]) == 0
        assert "published version 1 from about " in capsys.readouterr().out
    assert main(["privacy", "spent"]) == 0
    assert "private" in capsys.readouterr().out
    assert main(["store", "recompute", "private", "main", "1", "--privacy-key", "key"]) == 0
    assert main(["store", "history", "private", "main"]) == 0


def test_an_answer_can_come_as_a_file(line: SharedLine, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(ROUND) == 0
    request = tmp_path / "store/private/main/asked/0.request"
    assert main(["helper", "answer", str(request), "--folder", "helper", "--out", "answer"]) == 0
    assert main(["round", "private", "--engine", "numpy", "--answer", "answer"]) == 2
    assert "--answer needs the argument LINE" in capsys.readouterr().err
    (tmp_path / "cut").write_bytes((tmp_path / "answer").read_bytes()[:-1])
    assert main([*ROUND, "--answer", "cut"]) == 1
    assert "is not signed by the study's helper" in capsys.readouterr().err
    assert main([*ROUND, "--answer", "answer"]) == 0
    assert "published version 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("helpers", "told"),
    [
        (
            ["other=http://helper"],
            ("names line 'other', but the two-server lines of study 'private'"),
        ),
        (["nowhere"], "'nowhere' is not a helper's address"),
        (["http://a", "http://b"], "gives two addresses for all lines"),
        (["main=http://a", "main=http://b"], "gives two addresses for line 'main'"),
    ],
)
def test_a_helper_that_is_none_is_refused_before_anything_is_read(
    line: SharedLine, capsys: pytest.CaptureFixture[str], helpers: list[str], told: str
) -> None:
    assert main([*ROUND, *(f"--helper={each}" for each in helpers)]) == 2
    assert told in capsys.readouterr().err


def test_the_card_says_who_trusts_whom(line: SharedLine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["privacy", "card", "private"]) == 0
    told = capsys.readouterr().out
    assert "at least one of them keeps its data secret" in told
    assert "each of the two servers adds the full noise of the guarantee" in told
    assert "a single client could move the model at will" in told
    assert "and one is encrypted for the helper" in told
    assert "Not covered: collusion of the two servers" in told
    assert "and so is any sum that one of the two servers learns" in told


def test_a_line_without_noise_promises_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store_with(tmp_path / "store", shared_line(tmp_path, min_batch=77).study)
    assert main(["privacy", "card", "private"]) == 0
    assert "no figure: neither of the two servers can read a client's update" in capsys.readouterr().out
    assert main(["privacy", "spent"]) == 0
    assert "none, because the sums" in capsys.readouterr().out
