"""Paths and extensions that a description sent to the dashboard may name, and addresses that don't exist."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fedping.dashboard.runs.judging import Judged, Problem, judge
from fedping.protocol import extensions
from tests.support.dashboard import csrf_token, dashboard_client
from tests.support.small_experiment import experiment_file

OF_FILE = 'rounds = 1\n[model]\nname = "linear-regression"\n[data]\nfile = "{file}"\ntarget = "y"\n'
OWN = 'rounds = 1\n[model]\nname = "{model}"\n{settings}\n[data]\nname = "diabetes"\n'
OF_OURS = 'function = "mine_of_the_tests:loss"\nweights = 11'


def said_of(text: str, *data: Path) -> str:
    problem = judge(text, data)
    assert isinstance(problem, Problem)
    return problem.sentence


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return a folder that descriptions may read, with links to the outside, and a folder that they may not read."""
    allowed, secret = tmp_path / "allowed", tmp_path / "secret"
    for folder in (allowed, secret, tmp_path / "allowed-too"):
        folder.mkdir()
        (folder / "rows.csv").write_text("x,y\n1,2\n2,3\n")
    (allowed / "link.csv").symlink_to(secret / "rows.csv")
    (allowed / "out").symlink_to(secret)
    (allowed / "round.csv").symlink_to(allowed / "round.csv")
    return allowed, secret


def test_a_file_below_a_folder_of_the_operator_may_be_named(folders: tuple[Path, Path]) -> None:
    allowed, secret = folders
    text = OF_FILE.format(file=allowed / "rows.csv")
    assert isinstance(judge(text, [secret, allowed]), Judged)
    assert "descriptions may name files below no folder yet" in said_of(text)
    assert "which does not exist" in said_of(OF_FILE.format(file=allowed / "none.csv"), allowed)


@pytest.mark.parametrize(
    "name",
    ["secret/rows.csv", "secret/none.csv", "allowed/link.csv", "allowed/out/rows.csv", "allowed/../secret/rows.csv",
     "allowed-too/rows.csv", "allowed/../none/rows.csv"],
)  # fmt: skip
def test_no_other_file_may_and_whether_it_is_there_is_not_told(
    tmp_path: Path, folders: tuple[Path, Path], name: str
) -> None:
    text = OF_FILE.format(file=tmp_path / name)
    problem = judge(text, [folders[0]])
    assert isinstance(problem, Problem)
    assert problem.path == "data.file"
    assert f"descriptions may name files only below {folders[0]}" in problem.sentence
    of_a_variant = text + '[[variants]]\nname = "a"\nrounds = 2\n'
    assert "may name files only" in said_of(of_a_variant, folders[0])


def test_a_link_that_leads_out_is_told_as_one_and_what_is_no_file_as_that(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    allowed = folders[0]
    (allowed / "out.csv").symlink_to(folders[1] / "rows.csv")
    os.mkfifo(allowed / "pipe.csv")
    (allowed / "folder.csv").mkdir()
    assert "a link to a place outside, but descriptions may name files only below" in said_of(
        OF_FILE.format(file=allowed / "out.csv"), allowed
    )
    for name in ("pipe.csv", "folder.csv"):
        assert "which is not a file; give one" in said_of(OF_FILE.format(file=allowed / name), allowed)


def test_a_folder_of_original_files_is_bound_as_a_file_is(folders: tuple[Path, Path]) -> None:
    text = 'rounds = 1\n[model]\nname = "logistic-regression"\n[data]\nname = "femnist"\nfolder = "{folder}"\n'
    allowed, secret = folders
    assert isinstance(judge(text.format(folder=allowed), [allowed]), Judged)
    problem = judge(text.format(folder=secret), [allowed])
    assert isinstance(problem, Problem)
    assert problem.path == "data.folder"
    assert "may name files only below" in problem.sentence
    assert "a link" in said_of(text.format(folder=allowed / "out"), allowed)
    assert "which is not a folder; give one" in said_of(text.format(folder=allowed / "rows.csv"), allowed)


@pytest.mark.parametrize("file", ["allowed/round.csv", "allowed/" + "x" * 300, "allowed/a\\u0000b"])
def test_what_can_be_no_file_is_told_in_a_sentence(tmp_path: Path, folders: tuple[Path, Path], file: str) -> None:
    assert "'file' in [data] is" in said_of(OF_FILE.format(file=tmp_path / file), folders[0])


def test_the_file_of_a_study_is_bound_too(tmp_path: Path) -> None:
    file = experiment_file(tmp_path / "files", clients=10, iterations=1, ticks=1)
    text = file.read_text().replace('"study.toml"', f'"{tmp_path}/files/study.toml"')
    assert "'study' is" in said_of(text)
    assert isinstance(judge(text, [tmp_path / "files"]), Judged)
    assert "may name files only below" in said_of(text.replace(f'"{tmp_path}', f'"file://{tmp_path}'), tmp_path / "no")


@pytest.mark.parametrize("model", ["own", "jax"])
@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ('function = "os:abort"\nweights = 11', "function"),
        ('function = "mine_of_the_tests:loss"\nstart = "os:abort"', "start"),
        (f'{OF_OURS}\npredict = "os:abort"', "predict"),
    ],
)
def test_a_function_of_a_module_that_nobody_loaded_is_neither_imported_nor_called(
    model: str, settings: str, setting: str, ours: None
) -> None:
    for text in (OWN.format(model=model, settings=settings), _as_variant(model, settings)):
        problem = judge(text)
        assert isinstance(problem, Problem)
        assert f"'{setting}'" in problem.sentence
        assert "functions of modules that the dashboard was started with" in problem.sentence
        assert problem.path == f"model.{setting}"


def _as_variant(model: str, settings: str) -> str:
    table = ", ".join(["name = " + f'"{model}"', *settings.splitlines()])
    return OWN.format(model="linear-regression", settings="") + f'[[variants]]\nname = "a"\nmodel = {{ {table} }}\n'


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load a module as an extension of the operator."""
    (tmp_path / "mine_of_the_tests.py").write_text(
        "from os import abort\n\ndef loss(weights, x, y):\n    return ((x @ weights - y) ** 2).mean()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(extensions.MODULES, "mine_of_the_tests")
    monkeypatch.setattr(extensions, "_loaded", False)
    monkeypatch.delitem(sys.modules, "mine_of_the_tests", raising=False)


def test_a_function_of_a_module_that_the_operator_has_loaded_may_be_named(ours: None) -> None:
    assert isinstance(judge(OWN.format(model="own", settings=OF_OURS)), Judged)
    imported = OF_OURS + '\npredict = "mine_of_the_tests:abort"'
    assert "only imports" in said_of(OWN.format(model="own", settings=imported))


def test_the_pages_bind_what_is_sent_to_them(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    client = dashboard_client(tmp_path, runs_at_once=0, data=(folders[0],))
    token = {"X-CSRF-Token": csrf_token(client, "/runs/new")}

    def start(name: str) -> int:
        told = {"text": OF_FILE.format(file=tmp_path / name)}
        return client.post("/runs/start", data=told, headers=token).status_code

    assert (start("secret/rows.csv"), start("allowed/rows.csv")) == (400, 302)
    told = client.post("/runs/describe", json={"text": OF_FILE.format(file="/etc/passwd")}, headers=token).get_json()
    assert "may name files only below" in told["problems"][0]["sentence"]


@pytest.mark.parametrize("id", ["x" * 300, "é" * 200, "a%00b", "..%2F..", "."])
def test_an_id_that_no_folder_can_have_is_no_run(tmp_path: Path, id: str) -> None:
    (tmp_path / "store").mkdir()
    client = dashboard_client(tmp_path)
    addresses = [f"/runs/{id}/{page}" for page in ("", "feed", "log", "row", "results", "metrics.csv", "study/live/")]
    addresses += [f"/compare/?of={id}:a", f"/runs/new?like={id}", f"/live/{id}/main/", f"/results/{id}/"]
    for address in addresses:
        assert client.get(address, headers={"Accept": "text/html"}).status_code in (404, 308), address
