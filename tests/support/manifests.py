"""The objects of deploy/kubernetes as a cluster receives them, with patches applied."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.images import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"

Object = dict[str, Any]
Key = tuple[str, str]
"""Kind and name of an object."""


def documents(path: Path) -> list[Object]:
    """Return the documents of a YAML file."""
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def objects(folder: Path = KUBERNETES) -> dict[Key, Object]:
    """Return the objects that a kustomization lists, by kind and name."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    found = [each for name in kustomization["resources"] for each in documents(folder / name)]
    assert len({key(each) for each in found}) == len(found), "two objects of one kind have a name"
    return {key(each): each for each in found}


def key(thing: Object) -> Key:
    return thing["kind"], thing["metadata"]["name"]


def with_component(found: dict[Key, Object], folder: Path) -> dict[Key, Object]:
    """Return objects together with a component's own, with its patches applied."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    assert kustomization["kind"] == "Component"
    own = [each for name in kustomization.get("resources", ()) for each in documents(folder / name)]
    assert not [key(each) for each in own if key(each) in found]
    laid = found | {key(each): each for each in own}
    for patch in _patches(kustomization, folder):
        if key(patch) in generated():
            continue
        assert key(patch) in found, f"a patch of what is not there: {key(patch)}"
        laid[key(patch)] = _laid(laid[key(patch)], patch)
    return {name: each for name, each in laid.items() if each is not None}


@cache
def generated() -> set[Key]:
    """Return the keys of objects that kustomizations generate from files, which :func:`objects` omits."""
    kustomizations = [told for path in KUBERNETES.glob("**/kustomization.yaml") for told in documents(path)]
    return {("ConfigMap", each["name"]) for told in kustomizations for each in told.get("configMapGenerator", ())}


def _patches(kustomization: Object, folder: Path) -> Iterator[Object]:
    for each in kustomization["patches"]:
        if "path" in each:
            yield from documents(folder / each["path"])
        else:
            yield yaml.safe_load(each["patch"])


def _laid(under: Any, over: Any) -> Any:
    """Apply a strategic merge patch: mappings by key, lists of named things by name, other lists as a whole.

    Environment, volumes and containers are merged by name, mounts by path, as in Kubernetes. None removes an entry.
    """
    if isinstance(over, dict) and over.get("$patch") == "delete":
        assert under is not None, f"nothing there to remove: {over}"
        return None
    if isinstance(under, dict) and isinstance(over, dict):
        return under | {name: _laid(under.get(name), over[name]) for name in over}
    if isinstance(under, list) and isinstance(over, list):
        for by in ("mountPath", "name"):
            if all(isinstance(each, dict) and by in each for each in [*under, *over]):
                merged = {each[by]: each for each in under}
                merged |= {each[by]: _laid(merged.get(each[by]), each) for each in over}
                return [each for each in merged.values() if each is not None]
    return over


@dataclass(frozen=True)
class Pods:
    """An object that creates pods, and its pod template."""

    name: str
    kind: str
    maker: Object
    labels: dict[str, str]
    spec: Object

    def containers(self) -> list[Object]:
        """Return all containers, including init containers."""
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    def claims(self) -> list[str]:
        """Return the names of the volumes that each pod has for itself."""
        return [each["metadata"]["name"] for each in self.maker["spec"].get("volumeClaimTemplates", ())]


def pods(found: dict[Key, Object]) -> Iterator[Pods]:
    """Yield the objects that create pods."""
    for (kind, name), thing in found.items():
        spec = thing.get("spec", {})
        template = (spec["jobTemplate"]["spec"] if kind == "CronJob" else spec).get("template")
        if template:
            yield Pods(name, kind, thing, template["metadata"]["labels"], template["spec"])


def chosen(selector: Object, among: dict[Key, Object]) -> list[Pods]:
    """Return the pods that match a selector: matchLabels and matchExpressions, or a Service's plain labels."""
    plain = selector if not {"matchLabels", "matchExpressions"} & selector.keys() else selector.get("matchLabels", {})
    wanted = {name: [value] for name, value in plain.items()}
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In"
        wanted[expression["key"]] = expression["values"]
    return [each for each in pods(among) if all(each.labels.get(name) in values for name, values in wanted.items())]


def mebibytes(quantity: str) -> float:
    """Return a Kubernetes quantity of memory in MiB."""
    units = {"Ki": 1 / 1024, "Mi": 1, "Gi": 1024}
    return float(quantity[:-2]) * units[quantity[-2:]]
