"""docs/cluster.md: its settings equal the cluster tests', its commands are accepted, and its archive works."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fedping.server_jobs.spark.settings import properties_of, split_command, value_of
from fedping.server_jobs.spark.shipping import STAGING
from fedping.server_jobs.spark.submit import GOES_ALONG
from tests.server_jobs.commands import Place, hold, numpy_weights, place, script
from tests.server_jobs.standalone import QUICK_EXECUTORS, machines
from tests.server_jobs.test_on_a_cluster import DYNAMIC, LOGGED, RECOVERED, SECRET, SECURED
from tests.support.images import ROOT
from tests.support.manifests import KUBERNETES, objects, with_component

__all__ = ["hold", "place"]

PAGE = (ROOT / "docs" / "cluster.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def submissions() -> Iterator[list[str]]:
    """Yield the words after `spark-submit.sh` in each of the page's commands."""
    for block in blocks("sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(re.sub(r"\s#.*", "", line))
            at = next((i for i, word in enumerate(words) if word.endswith("spark-submit.sh")), None)
            if at is not None:
                yield words[at + 1 :]


def test_the_settings_of_the_page_are_those_that_tests_run_with(tmp_path: Path) -> None:
    found = {}
    for number, block in enumerate(blocks("properties")):
        path = tmp_path / str(number)
        path.write_text(block)
        found |= properties_of(["--properties-file", str(path)], {}, tmp_path)
    assert found.pop("spark.authenticate.secret") == "CHANGE-ME"
    assert {name: found[name] for name in SECURED.keys() - {"spark.authenticate.secret"}}.items() <= SECURED.items()
    assert SECURED["spark.authenticate.secret"] == SECRET
    assert found.keys() - SECURED.keys() == RECOVERED.keys() | DYNAMIC.keys() | LOGGED.keys()
    switches = RECOVERED | DYNAMIC | LOGGED
    assert all(found[name] == switches[name] for name in found.keys() & switches.keys() if switches[name])


def test_options_of_the_page_are_of_spark_submit_and_files_of_this_checkout() -> None:
    ran = subprocess.run([*script()[:1], "--usage-error"], capture_output=True, text=True)
    assert ran.returncode == 0
    for words in submissions():
        options, command = split_command(words)
        assert command or value_of(options, "--kill", "", {}), words
        for name in ("spark.kubernetes.driver.podTemplateFile", "spark.kubernetes.executor.podTemplateFile"):
            path = value_of(options, "", name, {})
            assert path is None or (ROOT / path).is_file()


def test_the_variables_of_the_page_are_those_that_go_along() -> None:
    told = PAGE.partition("with their values here:")[2].partition("No other variable")[0]
    assert re.findall(r"`(FEDPING_\w+)`", told) == list(GOES_ALONG)
    assert f"export {STAGING}=" in PAGE


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_takes_the_kustomization_of_the_page(tmp_path: Path) -> None:
    (text,) = blocks("yaml")
    shutil.copytree(ROOT / "deploy", tmp_path / "fedping" / "deploy")
    (tmp_path / "kustomization.yaml").write_text(text)
    (tmp_path / "spark.properties").write_text("spark.kubernetes.container.image registry.example/fedping-round:1\n")
    environment = {"PATH": "/usr/bin:/bin", "KUBECONFIG": "/dev/null", "HOME": str(tmp_path)}
    command = [str(shutil.which("kubectl")), "kustomize", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    made = list(yaml.safe_load_all(ran.stdout))
    assert len([each for each in made if each["kind"] != "ConfigMap"]) == len(
        with_component(objects(), KUBERNETES / "spark")
    )
    (told,) = (each["data"] for each in made if each["metadata"]["name"].startswith("fedping-spark-"))
    assert "registry.example/fedping-round:1" in told["spark.properties"]
    assert yaml.safe_load(told["executor.yaml"])["kind"] == "Pod"
    (subject,) = next(each for each in made if each["kind"] == "RoleBinding")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "fedping-spark", "namespace": "my-study"}


def packing() -> str:
    (commands,) = (block for block in blocks("sh") if "tar -czf" in block)
    return commands


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.long
def test_executors_compute_with_the_archive_that_the_page_makes(place: Place, tmp_path: Path) -> None:
    expected = numpy_weights(place, tmp_path / "numpy")
    shutil.copytree(ROOT / "deploy", tmp_path / "packed" / "deploy")
    shutil.copy(ROOT / "requirements.lock", tmp_path / "packed")
    commands = packing().replace("python3 ", f"{sys.executable} ")
    ran = subprocess.run(["bash", "-euc", commands], cwd=tmp_path / "packed", capture_output=True, text=True)
    if ran.returncode and "No matching distribution" in ran.stderr:
        pytest.skip("no package index to install from")
    assert ran.returncode == 0, ran.stderr
    options = ["--archives", f"{tmp_path}/packed/environment.tar.gz#environment"]
    options += ["--conf", "spark.pyspark.python=./environment/bin/python"]
    options += [word for key, value in QUICK_EXECUTORS.items() for word in ("--conf", f"{key}={value}")]
    with machines(tmp_path / "cluster") as cluster:
        cluster.start_master()
        cluster.start_worker()
        program = script("--master", cluster.master, *options)
        ran_there = place.start("round", program=program, FEDPING_PYTHON=sys.executable, FEDPING_SPARK_ARCHIVE="off")
        assert ran_there.ended() == 0, ran_there.said()
    assert tuple(place.store.version("study", "main", 1).weights) == expected
