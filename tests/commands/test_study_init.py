"""`fedping study init`: a consistent folder, invalid study names, and no partly written files."""

import csv
import re
from pathlib import Path

import pytest

from fedping.client_sim.rehearsal.outcomes import check_laws
from fedping.client_sim.rehearsal.settings import read_rehearsal
from fedping.client_sim.rehearsal.users import users_of
from fedping.experiments import first_study
from fedping.experiments.first_study import TEMPLATES, files_of, modules_of, write_first_study
from fedping.main import main
from fedping.protocol.draws import root_key
from fedping.protocol.features import Cross, Equal, Product, of_query
from fedping.protocol.study import Study, study_from_toml

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=TEMPLATES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_first_study("mine", request.param, tmp_path / "mine")
    return tmp_path / "mine"


@pytest.fixture(params=[name for name in TEMPLATES if name != "prediction"])
def ranking(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_first_study("mine", request.param, tmp_path / "mine")
    return tmp_path / "mine"


def study_in(folder: Path) -> Study:
    return study_from_toml(folder / "study.toml", new=True)


def test_the_command_writes_a_folder_and_says_what_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", "init", "coffee"]) == 0
    said = capsys.readouterr()
    assert "coffee: created the study 'coffee' from the template 'shop'" in said.out
    assert "cd coffee and read README.md" in said.out
    assert not said.err
    assert study_in(tmp_path / "coffee").name == "coffee"
    assert "# coffee\n" in (tmp_path / "coffee" / "README.md").read_text()
    assert 'study: "coffee"' in (tmp_path / "coffee" / "ranker.js").read_text()
    assert "<title>coffee:" in (tmp_path / "coffee" / "page.html").read_text()


def test_it_lists_the_templates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "init", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(TEMPLATES)


@pytest.mark.parametrize("name", ["Shop", "2shops", "a b", "../shop", "", "-x", "s" * 64, "shop\n", "läden"])
def test_a_name_that_is_no_study_s_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", "init", "--", name]) == 2
    assert "cannot name a study: use lower-case letters" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_exists_stays_as_it_is(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "mine"
    if kind == "folder":
        there.mkdir()
    else:
        there.write_text("kept")
    assert main(["study", "init", "mine", "--folder", str(there)]) == 2
    assert "mine exists; give another name or --folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_unknown_template_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "init", "mine", "--template", "shops"]) == 2
    assert "unknown template 'shops'; choose one of shop, feed" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["study", "init", "mine", "--folder", str(tmp_path / "file" / "mine")]) == 1
    assert re.search(r"cannot write .*mine: .*; correct the path", capsys.readouterr().err)


def test_an_installation_without_templates_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(first_study, "FOLDER", tmp_path)
    with pytest.raises(Exception, match=r"is not installed .*; install fedping again"):
        files_of("shop", "mine")


def test_a_write_that_ends_halfway_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fail)
        with pytest.raises(Exception, match="No space left"):
            write_first_study("mine", "shop", tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
    write_first_study("mine", "shop", tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# --- what is in the folder ---


def test_its_study_is_one_that_the_check_takes_without_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "check", str(folder / "study.toml")]) == 0
    assert main(["privacy", "card", str(folder / "study.toml")]) == 0
    said = capsys.readouterr()
    assert not said.err
    assert "study 'mine'" in said.out


def test_no_placeholder_is_left(folder: Path) -> None:
    left = [path.name for path in folder.iterdir() if path.is_file() and "{{" in path.read_text()]
    assert not left


def items_in(folder: Path) -> list[dict[str, str]]:
    with (folder / "items.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_its_items_are_twenty(folder: Path) -> None:
    rows = items_in(folder)
    assert len(rows) == len({row["id"] for row in rows}) == 20


def test_its_items_have_every_field_of_the_features(ranking: Path) -> None:
    rows = items_in(ranking)
    for feature in study_in(ranking).lines[0].spec.features:
        if isinstance(feature, Cross) or of_query(feature):
            continue
        field = feature.item if isinstance(feature, Equal | Product) else feature.field or feature.name
        values = {row[field] for row in rows}
        assert len(values) > 1, f"{field} tells no items apart"
        if not getattr(feature, "missing", False):
            assert "" not in values, field


def test_its_fleet_is_one_that_can_be_rehearsed(ranking: Path) -> None:
    study, rehearsal = study_in(ranking), read_rehearsal(ranking / "fleet.toml")
    (line,) = study.lines
    users = users_of(line.spec, rehearsal, root_key(1))
    check_laws(study.name, study.outcomes, rehearsal.outcomes, lists=True)
    assert users is not None
    assert set(rehearsal.outcomes) == {outcome.name for outcome in study.outcomes}


def test_its_queries_have_every_field_that_features_read(ranking: Path) -> None:
    features = study_in(ranking).lines[0].spec.features
    read = {feature.query for feature in features if isinstance(feature, Equal | Product)}
    read |= {feature.field or feature.name for feature in features if of_query(feature)}
    assert (ranking / "queries.csv").read_text().splitlines()[0].split(",") == sorted(read)


def test_version_0_ranks_as_the_product_does(ranking: Path) -> None:
    spec = study_in(ranking).lines[0].spec
    starts = dict(zip(spec.names, spec.start, strict=True))
    ((score, start),) = ((name, start) for name, start in starts.items() if start)
    assert score.endswith("_score")
    assert start == 1
    given = [float(row[score]) for row in items_in(ranking)]
    assert given == sorted(given, reverse=True)


def test_every_import_of_its_scripts_is_in_the_folder(folder: Path) -> None:
    scripts = list(folder.rglob("*.js"))
    assert any(path.name == "ranker.js" and path.parent == folder for path in scripts)
    for path in scripts:
        for line in path.read_text().splitlines():
            imported = re.search(r'^(?:import|export|\}).* from "([^"]+)";', line)
            if imported:
                assert (path.parent / imported[1]).is_file(), f"{path}: {imported[1]}"
    assert not {"about.md", "rehearse.md"} & {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(("template", "entry"), [("shop", "ranker"), ("prediction", "predictor")])
def test_of_the_client_it_has_what_the_page_imports_and_no_more(template: str, entry: str) -> None:
    modules = modules_of(files_of(template, "mine"))
    assert f"fedping/{entry}.js" in modules
    assert len([path for path in modules if path.count("/") == 1]) == 1, "no other entry point"
    assert not any("/demo/" in path or "/tests/" in path or path.endswith("fedping.js") for path in modules)
    assert all(
        data == (ROOT / "browser" / path.removeprefix("fedping/")).read_bytes() for path, data in modules.items()
    )
    assert sum(map(len, modules.values())) < 400_000


def test_its_page_lets_nothing_in_but_its_own_scripts_and_ingest(folder: Path) -> None:
    page = (folder / "page.html").read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split("; ")}
    assert rules["default-src"] == ["'none'"]
    assert rules["script-src"] == rules["style-src"] == ["'self'"]
    assert rules["connect-src"] == ["'self'", "http://127.0.0.1:8080"]
    assert "http://127.0.0.1:8080" in (folder / "ranker.js").read_text()
    assert not re.search(r"\bstyle=|\bon\w+=|<script(?! type=\"module\" src)", page)
