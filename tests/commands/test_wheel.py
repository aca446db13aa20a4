"""A wheel contains all data files that the product reads: the globs of pyproject.toml match them all."""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from fedping.documentation import pages
from fedping.server_jobs.ingest.pages import page_files

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
LEFT_OUT = {".py", ".pyc"}


def data_files() -> set[str]:
    """Return the files that the globs match, in packages' folders."""
    found = (
        path.relative_to(ROOT)
        for package, globs in SETUPTOOLS["package-data"].items()
        for glob in globs
        for path in (ROOT / package.replace(".", "/")).glob(glob)
        if path.is_file()
    )
    return {path.as_posix() for path in found if is_package(path.parent)}


def is_package(folder: Path) -> bool:
    find = SETUPTOOLS["packages"]["find"]
    name = ".".join(folder.parts)
    return any(fnmatchcase(name, glob) for glob in find["include"]) and not any(
        fnmatchcase(name, glob) for glob in find["exclude"]
    )


def not_python(room: str) -> set[str]:
    """Return the non-Python files of a package, without hidden files and folders."""
    inside = {path.relative_to(ROOT).as_posix() for path in (ROOT / "fedping" / room).rglob("*") if path.is_file()}
    return {path for path in inside if "/." not in path and Path(path).suffix not in LEFT_OUT}


@pytest.mark.parametrize(
    "room", ["analysis", "client_sim", "commands", "dashboard", "experiments", "model_store", "protocol", "server_jobs"]
)
def test_it_holds_every_file_of_a_room_that_is_no_python(room: str) -> None:
    assert not_python(room) <= data_files()


def test_of_the_browser_it_holds_what_the_demo_page_is_made_of_and_no_more() -> None:
    of_browser = {path.removeprefix("fedping/browser/") for path in data_files() if path.startswith("fedping/browser/")}
    assert of_browser == set(page_files())


def test_it_has_the_docs_what_deploys_it_and_the_example_studies_below_share() -> None:
    wanted = [*(ROOT / "deploy" / "kubernetes").rglob("*.*"), *(ROOT / "docs" / "deploy").iterdir()]
    wanted += [*(ROOT / "experiments").glob("*.toml"), *(ROOT / "experiments").glob("*.csv")]
    wanted += [page.path.resolve() for page in pages()] + [ROOT / "docs" / "index.md"]
    places = {
        f"{folder}/{path.name}": path.relative_to(ROOT).as_posix()
        for folder, globs in SETUPTOOLS["data-files"].items()
        for glob in globs
        for path in ROOT.glob(glob)
        if path.is_file()
    }
    assert {path.relative_to(ROOT).as_posix() for path in wanted} == set(places.values())
    for place, path in places.items():
        assert place.removeprefix("share/fedping/") in (path, path.removeprefix("docs/"))


def test_it_leaves_out_the_scripts_of_the_papers_and_needs_none_of_them() -> None:
    scripts = Path("fedping/experiments/papers/scripts")
    assert (ROOT / scripts).is_dir()
    assert is_package(scripts.parent)
    assert not is_package(scripts)
    files = (path for path in (ROOT / "fedping").rglob("*.py") if not path.is_relative_to(ROOT / scripts))
    for room in (ROOT / "fedping").iterdir():
        files = (*files, *(room.rglob("*.py") if room.is_symlink() else ()))
    importing = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if not path.is_relative_to(ROOT / scripts) and "fedping.experiments.papers.scripts" in path.read_text()
    }
    assert importing == {"fedping/experiments/papers/__main__.py"}  # it forwards to them, where they exist
