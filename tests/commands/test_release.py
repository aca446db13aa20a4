"""`make release`: its checks before the build, and its processing of the built files."""

import gzip
import importlib.util
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from fedping import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def releasing() -> ModuleType:
    """Give the release script as a module."""
    spec = importlib.util.spec_from_file_location("releasing", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_states_the_version_of_the_package(releasing: ModuleType) -> None:
    stated = releasing.stated_versions(ROOT)
    assert set(stated.values()) == {__version__}
    releasing.check_versions(__version__, stated)
    with pytest.raises(releasing.ReleaseError, match=r"the release is 9\.9\.9, but .*CITATION\.cff states"):
        releasing.check_versions("9.9.9", stated)


NOTES = """\
# Changelog

Text.

## Unreleased

## 1.1.0 (2027-01-01)

### Added
- One.

## 1.0.0 (2026-12-01)

- Two.
"""


def test_the_notes_are_the_versions_part_of_the_changelog(releasing: ModuleType) -> None:
    assert releasing.release_notes(NOTES, "1.1.0") == "### Added\n- One.\n"
    assert releasing.release_notes(NOTES, "1.0.0") == "- Two.\n"


@pytest.mark.parametrize(
    ("changelog", "said"),
    [
        (NOTES, "CHANGELOG.md says nothing of 1.2.0; add"),
        (NOTES.replace("## Unreleased\n", "## Unreleased\n\n- Three.\n"), "has changes under 'Unreleased'; move them"),
        (NOTES.replace("1.1.0 (2027-01-01)", "1.2.0 (2027-01-01)").replace("### Added\n- One.\n", ""), "says nothing"),
    ],
)
def test_changes_that_no_version_has_and_versions_without_changes_stop_it(
    releasing: ModuleType, changelog: str, said: str
) -> None:
    with pytest.raises(releasing.ReleaseError, match=re.escape(said)):
        releasing.release_notes(changelog, "1.2.0")


def packed(files: Mapping[str, str], time: int, mode: int) -> bytes:
    """Return a .tar.gz as written by setuptools at some time, for some user."""
    archive = io.BytesIO()
    with (
        gzip.GzipFile("a.tar", "wb", fileobj=archive, mtime=time) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as out,
    ):
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode, member.uname = len(text), time, mode, f"user{time}"
            out.addfile(member, io.BytesIO(text.encode()))
    return archive.getvalue()


def test_an_archive_is_the_same_whoever_packs_it_and_when(releasing: ModuleType) -> None:
    first = packed({"a/b": "text", "a/c": "more"}, 1000, 0o664)
    second = packed({"a/c": "more", "a/b": "text"}, 2000, 0o600)
    assert first != second
    made = releasing.normalised(first, 500)
    assert made == releasing.normalised(second, 500)
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        assert {each.name: (each.mtime, each.mode, each.uname) for each in archive} == {
            "a/b": (500, 0o644, ""),
            "a/c": (500, 0o644, ""),
        }
        read = archive.extractfile("a/b")
        assert read is not None
        assert read.read() == b"text"
    assert made != releasing.normalised(packed({"a/b": "texT", "a/c": "more"}, 1000, 0o664), 500)


def test_files_that_two_builds_do_not_share_are_named(releasing: ModuleType, tmp_path: Path) -> None:
    for folder, text in (("first", "1"), ("second", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same").write_text("x")
        (tmp_path / folder / "other").write_text(text)
    (tmp_path / "second" / "more").write_text("")
    assert releasing.differing(tmp_path / "first", tmp_path / "second") == ["more", "other"]


def test_every_vendored_library_is_in_the_bill_of_materials(releasing: ModuleType) -> None:
    folder = ROOT / "dashboard" / "static" / "vendor"
    listed = releasing.vendored((folder / "README.md").read_text())
    assert {Path(each["properties"][0]["value"]).name for each in listed} == {path.name for path in folder.glob("*.js")}
    assert [each["purl"] for each in listed] == ["pkg:npm/d3@7.9.2", "pkg:npm/%40observablehq/plot@0.6.17"]


def test_constraints_are_the_lock_without_its_hashes(releasing: ModuleType) -> None:
    lock = (ROOT / "requirements.lock").read_text()
    made = releasing.constraints(lock).splitlines()
    assert len(made) == len(re.findall(r"^\S", lock, re.MULTILINE))
    assert all(re.match(r"[\w.\-\[\]]+==[\w.+!]+( ;|\Z)", line) for line in made)


def test_the_statement_names_each_file_by_its_hash_and_the_commit(releasing: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_text("x")
    made = releasing.provenance([tmp_path / "a.whl"], "c0ffee", "1.0.0", "https://example.org/fedping")
    assert json.loads(json.dumps(made)) == made
    digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert made["subject"] == [{"name": "a.whl", "digest": {"sha256": digest}}]
    assert made["predicate"]["buildDefinition"]["resolvedDependencies"] == [
        {"uri": "git+https://example.org/fedping", "digest": {"gitCommit": "c0ffee"}}
    ]


def test_it_ends_with_a_sentence_before_anything_is_built(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / ".ci" / "release.py"), "9.9.9", "--out", str(tmp_path / "out")]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith("the release is 9.9.9, but ")
    assert not (tmp_path / "out").exists()
