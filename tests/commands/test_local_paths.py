"""An object store's address in place of a local path: one sentence, exit code 2, and no folder of that name."""

from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.experiments.laboratory.settings import experiment_from_toml as laboratory_from_toml
from fedping.experiments.simulate.settings import experiment_from_toml as study_experiment_from_toml
from fedping.main import SUBCOMMANDS, cli, main
from fedping.options import AnyPlace, LocalPath
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.location import local_path, without_secrets
from tests.support.ingest_app import STUDY, make_store

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
ADDRESSES = ["s3://bucket/x", "s3a://bucket/x", "gs://b/x", "abfss://c@a.dfs.core.windows.net/x", "hdfs://head:8020/x"]
ADDRESSES += ["s3a:/bucket/x", "dbfs:/mnt/x", "S3://B", "file://other/x", "http://127.0.0.1/x", "x-y.z+1://"]


@pytest.mark.parametrize("said", ADDRESSES)
def test_an_address_is_refused_in_one_sentence(said: str) -> None:
    with pytest.raises(InvalidSettings, match="a path on this machine") as refused:
        local_path(said)
    assert f"'{without_secrets(said)}'" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("s3://me:hidden@bucket/x", "s3://…bucket/x"),
        ("https://hidden@host", "https://…host"),
        ("https://me:a/hidden@host/x", "https://…host/x"),
        ("https://host/x?key=hidden", "https://host/x?…"),
        ("s3a://bucket/x", "s3a://bucket/x"),
        ("me@here/x?", "me@here/x?"),
    ],
)
def test_a_password_in_an_address_is_not_repeated(said: str, told: str) -> None:
    assert without_secrets(said) == told


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ("store", "store"),
        ("/srv/x", "/srv/x"),
        ("./a:b", "a:b"),
        ("runs:variant", "runs:variant"),
        ("/srv/s3://x", "/srv/s3:/x"),
        ("C:/x", "C:/x"),
        (".", "."),
        ("file:///srv/a%20b", "/srv/a b"),
        ("file:/srv/x", "/srv/x"),
        ("FILE://localhost/srv/x", "/srv/x"),
    ],
)
def test_a_path_is_one_and_so_is_a_file_url(said: str, path: str) -> None:
    assert local_path(said) == Path(path)


@given(st.text(st.characters(exclude_characters=":\0", exclude_categories=["Cs"]), min_size=1))
def test_whatever_has_no_colon_is_a_path(said: str) -> None:
    assert local_path(said) == Path(said)


@pytest.mark.parametrize(
    "command",
    [
        "ingest --store {x}",
        "ingest --landing {x}",
        "ingest --journal {x}",
        "ingest --runs {x}",
        "ingest --dashboard 1 --token-file {x}",
        "dashboard --store {x}",
        "dashboard --runs {x}",
        "round s --store {x}",
        "round s --landing {x}",
        "schedule s --landing {x}",
        "study create {x}",
        "study show s --store {x}",
        "store history s main --store {x}",
        "simulate {x}",
        "simulate e.toml --out {x}",
        "sweep e.toml --out {x}",
        "power train {x}",
        "power train e.toml --out {x}",
        "analyze s --figures {x}",
        "analyze s --html {x}",
        "analyze s --landing {x}",
        "demo --out {x}",
        "compare {x} {x}",
        "fleet http://127.0.0.1:9 s --profile {x}",
        "fleet http://127.0.0.1:9 s --replay {x}",
    ],
)
def test_no_command_takes_one_or_makes_a_folder_of_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command.format(x="s3a://bucket/x").split()) == 2
    told = capsys.readouterr().err
    assert "'s3a://bucket/x' isn't a path on this machine" in told
    assert "Traceback" not in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--store", "--landing", "--journal"])
def test_an_empty_path_is_not_the_current_folder(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ingest", option, ""]) == 2
    said = capsys.readouterr().err
    assert f"Invalid value for '{option}'" in said
    assert "the path is empty. Set its variable" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("variable", ["FEDPING_STORE", "FEDPING_LANDING", "FEDPING_RUNS"])
def test_no_variable_takes_one(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "s3a://bucket/x")
    assert main(["ingest"]) == 2
    assert "a path on this machine" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_no_key_of_a_file_takes_one(tmp_path: Path) -> None:
    def changed(shipped: str, old: str, new: str) -> Path:
        text = (EXPERIMENTS / shipped).read_text()
        assert old in text
        file = tmp_path / shipped
        file.write_text(text.replace(old, new))
        return file

    file = changed("demo_study.toml", 'study = "demo.toml"', 'study = "s3a://bucket/study.toml"')
    with pytest.raises(InvalidSettings, match="a path on this machine"):
        study_experiment_from_toml(file)
    table = 'file = "s3a://bucket/x.parquet"\ntarget = "y"'
    with pytest.raises(InvalidSettings, match="a path on this machine"):
        laboratory_from_toml(changed("breast_cancer.toml", '[data]\nname = "breast-cancer"', f"[data]\n{table}"))


def test_a_file_url_works_where_a_path_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path / "a store")
    url = (tmp_path / "a store").as_uri()
    assert "%20" in url
    assert main(["study", "show", STUDY, "--store", url]) == 0
    assert STUDY in capsys.readouterr().out


def test_every_option_and_argument_that_is_a_path_is_checked() -> None:
    """`click.Path` alone accepts any address as a name."""

    def commands(command: click.Command, context: click.Context) -> list[click.Command]:
        if not isinstance(command, click.Group):
            return [command]
        named = [command.get_command(context, name) for name in command.list_commands(context)]
        return [each for sub in named if sub is not None for each in commands(sub, context)]

    every = commands(cli, click.Context(cli))
    assert len(every) >= len(SUBCOMMANDS)
    paths = [(c.name, p.name, type(p.type)) for c in every for p in c.params if isinstance(p.type, click.Path)]
    assert len(paths) > 20
    assert {kind for _, _, kind in paths} == {LocalPath, AnyPlace}
