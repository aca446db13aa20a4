"""Spark on Kubernetes: its pods from deploy/kubernetes/spark, and rounds in them, in a stand-in for a cluster."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedping.protocol.errors import InvalidSettings
from fedping.server_jobs.spark import pod
from fedping.server_jobs.spark.submit import IN_IMAGE
from tests.server_jobs.commands import Hold, Place, hold, numpy_weights, place, script
from tests.server_jobs.standalone import QUICK_EXECUTORS
from tests.support.images import ROOT, image
from tests.support.kubernetes_api import Cluster, Object, kubernetes
from tests.support.manifests import KUBERNETES, documents, objects, with_component

__all__ = ["hold", "place"]

FOLDER = KUBERNETES / "spark"
PODS = with_component(objects(), FOLDER)
SMALL = QUICK_EXECUTORS | {
    "spark.executor.instances": "1",
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "1g",
}


@contextmanager
def nodes(folder: Path, runs: bool) -> Iterator[Cluster]:
    """Give a cluster whose containers run on this machine."""
    programs = Path(sys.executable).parent
    made = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": os.environ["HOME"], "PYTHONPATH": str(ROOT)}
    with kubernetes(folder, made | {"SPARK_LOCAL_IP": "127.0.0.1"}, runs) as cluster:
        yield cluster


def submitted(cluster: Cluster, mode: str, **more: str) -> tuple[str, ...]:
    """Return the command of docs/cluster.md for a submission from outside, with a small round."""
    conf = {
        "spark.kubernetes.namespace": "my-study",
        "spark.kubernetes.driver.podTemplateFile": str(FOLDER / "driver.yaml"),
        "spark.kubernetes.executor.podTemplateFile": str(FOLDER / "executor.yaml"),
        **SMALL,
        **more,
    }
    options = ["--master", f"k8s://{cluster.url}", "--deploy-mode", mode]
    options += ["--properties-file", str(FOLDER / "spark.properties")]
    return script(*options, *(word for key, value in conf.items() for word in ("--conf", f"{key}={value}")))


def api(cluster: Cluster) -> dict[str, str]:
    """Return the option with which a driver in a pod finds this API, instead of by the name that every cluster has."""
    return {"spark.kubernetes.driver.master": cluster.url}


BY_SCRIPT = {"FEDPING_PYTHON": sys.executable, "FEDPING_SPARK_ARCHIVE": "off", "KUBECONFIG": "/dev/null"}


def container_of(made: Object) -> Object:
    (container,) = made["spec"]["containers"]
    return container


def of_template(name: str) -> Object:
    (template,) = documents(FOLDER / name)
    return template


# --- templates ---


@pytest.mark.parametrize("name", ["driver.yaml", "executor.yaml"])
def test_templates_are_of_confined_pods_with_a_volume_to_every_mount(name: str) -> None:
    spec = of_template(name)["spec"]
    container = container_of(of_template(name))
    of_rounds = PODS["CronJob", "fedping-round"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert spec["securityContext"] == of_rounds["securityContext"]
    assert container["securityContext"] == container_of({"spec": of_rounds})["securityContext"]
    assert spec["automountServiceAccountToken"] is (name == "driver.yaml")
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    for each in volumes.values():
        if claim := each.get("persistentVolumeClaim"):
            assert ("PersistentVolumeClaim", claim["claimName"]) in PODS
    (work,) = (mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "work")
    assert container["workingDir"] == work, "Spark writes there, and the root cannot be written"
    told = image("round")
    for mount in container["volumeMounts"]:
        if mount["name"] in ("store", "landing"):
            assert mount["mountPath"] == told.environment[f"FEDPING_{mount['name'].upper()}"]


def test_the_image_has_the_entry_point_where_submissions_look_for_it() -> None:
    copied = f"COPY server_jobs/spark/entry.py {IN_IMAGE.removeprefix('local://')}\n"
    assert copied in (ROOT / "deploy" / "Dockerfile").read_text()


# --- what a container runs ---


def test_a_driver_is_told_where_it_listens(tmp_path: Path) -> None:
    made = pod.program(["driver", "--class", "X", "a"], {"SPARK_DRIVER_BIND_ADDRESS": "10.1.2.3"}, tmp_path, tmp_path)
    assert made[0] == str(tmp_path / "bin" / "spark-submit")
    assert "spark.driver.bindAddress=10.1.2.3" in made
    assert made[-5:] == ["--deploy-mode", "client", "--class", "X", "a"]


def test_an_executor_gets_its_options_in_their_order(tmp_path: Path) -> None:
    variables = {name: flag.strip("-") for flag, name in pod.EXECUTOR.items()}
    options = {f"SPARK_JAVA_OPT_{i}": f"-D{i}" for i in range(11)}
    made = pod.program(["executor"], variables | options | {"SPARK_EXECUTOR_MEMORY": "2g"}, tmp_path, tmp_path)
    assert made[1:14] == [*(f"-D{i}" for i in range(11)), "-Xms2g", "-Xmx2g"]
    assert made[made.index("--podName") + 1] == "podName"
    for missing in pod.EXECUTOR.values():
        left = {name: value for name, value in variables.items() if name != missing}
        with pytest.raises(InvalidSettings, match=f"{missing} isn't set"):
            pod.program(["executor"], left | {"SPARK_EXECUTOR_MEMORY": "2g"}, tmp_path, tmp_path)


@pytest.mark.parametrize("words", [[], ["round"]])
def test_another_role_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert pod.main(words) == 2
    assert "is not a Spark role on Kubernetes" in capsys.readouterr().err


# --- pods as Spark makes them ---


@pytest.mark.long
@pytest.mark.spark
def test_the_drivers_pod_is_as_the_template_has_it_and_runs_the_command(tmp_path: Path) -> None:
    with nodes(tmp_path / "nodes", runs=False) as cluster:
        words = submitted(cluster, "cluster", **{"spark.kubernetes.submission.waitAppCompletion": "false"})
        made = os.environ | BY_SCRIPT | {"FEDPING_STORE": "s3://bucket/store"}
        ran = subprocess.run([*words, "round", "my-study"], env=made, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        (driver,) = cluster.pods("driver")
    assert driver["spec"]["serviceAccountName"] == "fedping-spark"
    assert driver["spec"]["securityContext"] == of_template("driver.yaml")["spec"]["securityContext"]
    assert driver["metadata"]["labels"].items() >= of_template("driver.yaml")["metadata"]["labels"].items()
    container, template = container_of(driver), container_of(of_template("driver.yaml"))
    assert (container["image"], container["command"]) == ("fedping-round", template["command"])
    assert container["securityContext"] == template["securityContext"]
    assert all(mount in container["volumeMounts"] for mount in template["volumeMounts"])
    assert container["args"][0] == "driver"
    assert container["args"][-4:] == [IN_IMAGE, "FEDPING_STORE=s3://bucket/store", "round", "my-study"]
    told = "".join(each["data"]["spark.properties"] for (kind, _), each in cluster.created.items()
                   if kind == "configmaps" and "spark.properties" in each.get("data", ()))  # fmt: skip
    assert "spark.authenticate=true" in told
    assert ("pods", driver["metadata"]["name"]) in cluster.created


# --- rounds in pods ---


def allowed() -> set[tuple[str, str, str]]:
    """Return the drivers' permissions: API group, resource, verb."""
    rules = PODS["Role", "fedping-spark"]["rules"]
    return {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}


@pytest.mark.spark
@pytest.mark.long
def test_a_round_with_executors_in_pods_one_of_which_is_killed(place: Place, hold: Hold, tmp_path: Path) -> None:
    expected = numpy_weights(place, tmp_path / "numpy")
    with nodes(tmp_path / "nodes", runs=True) as cluster:
        words = submitted(cluster, "client", **{"spark.pyspark.python": str(hold.program)})
        ran = place.start("round", program=words, **BY_SCRIPT)
        ran.wait_until(hold.begun.exists)
        (first,) = cluster.pods("executor")
        os.killpg(cluster.processes[first["metadata"]["name"]].pid, signal.SIGKILL)
        ran.wait_until(lambda: len(cluster.pods("executor")) > 1)
        hold.release()
        assert ran.ended() == 0, ran.said()
        assert tuple(place.store.version("study", "main", 1).weights) == expected
        assert not [name for kind, name in cluster.objects if kind == "pods"], "the driver takes its executors with it"
        assert cluster.asked <= allowed()
    template = container_of(of_template("executor.yaml"))
    for made in cluster.pods("executor"):
        container = container_of(made)
        assert (container["command"], container["workingDir"]) == (template["command"], template["workingDir"])
        assert all(mount in container["volumeMounts"] for mount in template["volumeMounts"])
        assert made["spec"]["automountServiceAccountToken"] is False
        assert made["metadata"]["labels"]["app.kubernetes.io/component"] == "executor", "as the network policy has it"


@pytest.mark.spark
@pytest.mark.long
def test_a_round_whose_driver_is_in_a_pod_too(place: Place, tmp_path: Path) -> None:
    expected = numpy_weights(place, tmp_path / "numpy")
    with nodes(tmp_path / "nodes", runs=True) as cluster:
        ran = place.start("round", program=submitted(cluster, "cluster", **api(cluster)), **BY_SCRIPT)
        code = ran.ended()
        (driver,) = cluster.pods("driver")
        said = cluster.log_of(driver["metadata"]["name"])
        assert code == 0, ran.said() + said
        assert "study/main: published version 1" in said
        assert tuple(place.store.version("study", "main", 1).weights) == expected
        assert cluster.pods("executor")
        assert {each["spec"]["automountServiceAccountToken"] for each in cluster.pods("executor")} == {False}
        failed = place.start("round", "--time-limit", "0s", program=submitted(cluster, "cluster"), **BY_SCRIPT)
        assert failed.ended() == 2, "the exit code of the command itself"
