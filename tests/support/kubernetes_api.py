"""A stand-in for a Kubernetes cluster of one node: its API over HTTP, with pods as processes of this machine.

It stores the objects it receives, notifies watchers, and records requests by verb and resource, in the terms of a
Role. It runs the command of a pod's first container with the pod's arguments, environment and mounted ConfigMaps;
images, limits, other volumes and isolation are not implemented. Names of services lead to this machine.
"""

import contextlib
import itertools
import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedping.server_jobs.spark.shipping import ENTRY

ENTRY_IN_IMAGE = "/opt/fedping/entry.py"

Object = dict[str, Any]

PATH = re.compile(r"/apis?(?:/(?P<group>[\w.]+))?/v\w+/namespaces/(?P<ns>[\w-]+)/(?P<kind>\w+)(?:/(?P<name>[^/]+))?")


@dataclass
class Cluster:
    """The cluster's objects, the requests so far, and the running pods."""

    folder: Path
    environment: dict[str, str]
    """Environment of all containers, as if from their image."""
    runs: bool = True
    """Whether pods run; otherwise they stay pending, as on a full cluster."""
    url: str = ""
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    created: dict[tuple[str, str], Object] = field(default_factory=dict)
    """Every object as it was sent, including deleted ones."""
    asked: set[tuple[str, str, str]] = field(default_factory=set)
    """The API group, resource and verb of each request."""
    watchers: list[tuple[str, str, "queue.Queue[Object | None]"]] = field(default_factory=list)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def pods(self, role: str) -> list[Object]:
        """Return all pods of a role (driver or executor), as they were sent."""
        named = [each for (kind, _), each in self.created.items() if kind == "pods"]
        return [each for each in named if each["metadata"]["labels"].get("spark-role") == role]

    def log_of(self, name: str) -> str:
        """Return the output of a pod."""
        return (self.folder / name / "log").read_text(errors="replace")

    # --- objects ---

    def put(self, kind: str, thing: Object, event: str) -> Object:
        """Store an object, and notify watchers of its kind."""
        with self.lock:
            thing["metadata"]["resourceVersion"] = str(next(self.versions))
            name = thing["metadata"]["name"]
            if event == "DELETED":
                self.objects.pop((kind, name), None)
            else:
                self.objects[kind, name] = thing
            sent = json.loads(json.dumps(thing))
            for watched, labels, events in self.watchers:
                if watched == kind and matches(sent, labels):
                    events.put({"type": event, "object": sent})
            return sent

    def create(self, kind: str, namespace: str, thing: Object) -> Object:
        meta = thing.setdefault("metadata", {})
        meta.setdefault("labels", {})
        meta.setdefault("name", f"{meta.get('generateName', '')}{uuid.uuid4().hex[:5]}")
        self.created[kind, meta["name"]] = json.loads(json.dumps(thing))
        meta |= {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z"}
        if kind == "pods":
            thing["status"] = {"phase": "Pending"}
        made = self.put(kind, thing, "ADDED")
        if kind == "pods" and self.runs:
            threading.Thread(target=self.run, args=(thing,), daemon=True).start()
        return made

    def delete(self, kind: str, name: str) -> None:
        with self.lock:
            thing = self.objects.get((kind, name))
            if thing is not None:
                self.put(kind, thing, "DELETED")
        if process := self.processes.get(name):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    # --- pods ---

    def run(self, pod: Object) -> None:
        """Run a pod as a node does, and report its end."""
        name, folder = pod["metadata"]["name"], self.folder / pod["metadata"]["name"]
        container = pod["spec"]["containers"][0]
        places = self.mounted(pod, container, folder)
        values = {each["name"]: self.value(each, pod) for each in container.get("env", ())}
        words = [*container.get("command", ()), *container.get("args", ())]
        words = words[words.index("--") + 1 :] if words[0].endswith("tini") else words  # this machine has no tini
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                [self.here(word, places) for word in words],
                env=self.environment | {key: self.here(value, places) for key, value in values.items()},
                cwd=self.here(container.get("workingDir", str(folder)), places),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[name] = process
        state = {"name": container["name"], "ready": True, "restartCount": 0, "image": container.get("image", "")}
        running = {"containerStatuses": [state | {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}
        self.tell(pod, {"phase": "Running", "podIP": "127.0.0.1", **running})
        code = process.wait()
        ended = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed"}
        state = state | {"ready": False, "state": {"terminated": ended}}
        self.tell(pod, {"phase": "Failed" if code else "Succeeded", "podIP": "127.0.0.1", "containerStatuses": [state]})

    def tell(self, pod: Object, status: Object) -> None:
        with self.lock:
            pod["status"] = status
            if ("pods", pod["metadata"]["name"]) in self.objects:
                self.put("pods", pod, "MODIFIED")

    def mounted(self, pod: Object, container: Object, folder: Path) -> dict[str, str]:
        """Create the mounts of a container below a folder of this machine; return the target of each path."""
        volumes = {each["name"]: each for each in pod["spec"].get("volumes", ())}
        places = {}
        for mount in container.get("volumeMounts", ()):
            volume = volumes.get(mount["name"], {})
            if "configMap" in volume or "emptyDir" in volume:
                target = folder / mount["name"]
                target.mkdir(parents=True, exist_ok=True)
                places[mount["mountPath"]] = str(target)
        for mount in container.get("volumeMounts", ()):
            if found := volumes.get(mount["name"], {}).get("configMap"):
                while ("configmaps", found["name"]) not in self.objects:  # a node retries until it exists
                    time.sleep(0.1)
                data = self.objects["configmaps", found["name"]].get("data") or {}
                names = {each["key"]: each["path"] for each in found.get("items", ())}
                for key, text in data.items():
                    Path(places[mount["mountPath"]], names.get(key, key)).write_text(self.here(text, places))
        folder.mkdir(parents=True, exist_ok=True)
        return places

    def here(self, text: str, places: dict[str, str]) -> str:
        """Return a text with the cluster's paths and addresses replaced by this machine's."""
        for path, place in places.items():
            if path != "/tmp":
                text = text.replace(path, place)
        for address in (
            "https://kubernetes.default.svc",
            "https\\://kubernetes.default.svc",
        ):  # as in a properties file
            text = text.replace(address, self.url)
        text = text.replace(f"local://{ENTRY_IN_IMAGE}", f"local://{ENTRY}")
        return re.sub(r"[a-z0-9-]+-driver-svc(\.[a-z0-9-]+)*\.svc", "127.0.0.1", text)

    def value(self, variable: Object, pod: Object) -> str:
        if "value" in variable:
            return str(variable["value"])
        path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        known = {"status.podIP": "127.0.0.1", "metadata.name": pod["metadata"]["name"]}
        return known.get(path, pod["metadata"].get("namespace", ""))

    def stop(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for _, _, events in self.watchers:
            events.put(None)


def matches(thing: Object, selector: str) -> bool:
    """Return whether an object matches a label selector such as `a=b,c!=d`."""
    labels = thing["metadata"].get("labels", {})
    for each in filter(None, selector.split(",")):
        name, sign, value = re.fullmatch(r"([^!=]+)(!=|==?)(.*)", each).groups()
        if (labels.get(name) == value) is (sign == "!="):
            return False
    return True


def handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    """Return the HTTP handler of a cluster."""

    class Api(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self, body: Object, code: int = 200) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def asked(self) -> tuple[str, str, str | None, dict[str, str]]:
            url = urlsplit(self.path)
            found = PATH.fullmatch(url.path)
            if found is None:
                raise KeyError(url.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}
            verb = verbs[self.command]
            if found["name"] is None and verb in ("get", "delete"):
                verb = {"get": "list", "delete": "deletecollection"}[verb]
            if query.get("watch") == "true":
                verb = "watch"
            cluster.asked.add((found["group"] or "", found["kind"], verb))
            return found["kind"], found["ns"], found["name"], query

        def body(self) -> Object:
            return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

        def refuse(self, code: int, reason: str) -> None:
            self.answer(
                {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}, code
            )

        def do_GET(self) -> None:
            try:
                kind, _, name, query = self.asked()
            except KeyError:
                self.refuse(404, "NotFound")
                return
            labels = query.get("labelSelector", "")
            if query.get("watch") == "true":
                self.watch(kind, name, labels, query)
            elif name is None:
                items = [each for (of, _), each in cluster.objects.items() if of == kind and matches(each, labels)]
                version = str(next(cluster.versions))
                self.answer(
                    {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items}
                )
            elif thing := cluster.objects.get((kind, name)):
                self.answer(thing)
            else:
                self.refuse(404, "NotFound")

        def watch(self, kind: str, name: str | None, labels: str, query: dict[str, str]) -> None:
            if self.headers.get("Upgrade"):
                self.refuse(503, "ServiceUnavailable")  # then it is asked without a web socket
                return
            named = re.fullmatch(r"metadata\.name=(.+)", query.get("fieldSelector", ""))
            name = name or (named[1] if named else None)
            events: queue.Queue[Object | None] = queue.Queue()
            with cluster.lock:
                cluster.watchers.append((kind, labels, events))
                for (of, each), thing in cluster.objects.items():
                    if of == kind and matches(thing, labels) and name in (None, each):
                        events.put({"type": "ADDED", "object": json.loads(json.dumps(thing))})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with contextlib.suppress(OSError):
                while (event := events.get()) is not None:
                    if name in (None, event["object"]["metadata"]["name"]):
                        data = json.dumps(event).encode() + b"\n"
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                        self.wfile.flush()

        def do_POST(self) -> None:
            kind, namespace, _, _ = self.asked()
            self.answer(cluster.create(kind, namespace, self.body()), 201)

        def do_PUT(self) -> None:
            kind, _, _, _ = self.asked()
            self.answer(cluster.put(kind, self.body(), "MODIFIED"))

        def do_PATCH(self) -> None:
            kind, _, name, _ = self.asked()
            patch, thing = self.body(), cluster.objects.get((kind, name or ""))
            if thing is None:
                # Server-side apply creates missing objects.
                self.answer(cluster.create(kind, self.asked()[1], patch), 201)
                return
            if isinstance(patch, dict):
                for part in ("metadata", "data", "spec"):
                    if isinstance(patch.get(part), dict):
                        thing.setdefault(part, {}).update(patch[part])
            self.answer(cluster.put(kind, thing, "MODIFIED"))

        def do_DELETE(self) -> None:
            kind, _, name, query = self.asked()
            self.body()
            labels = query.get("labelSelector", "")
            with cluster.lock:
                all_of = [
                    each for (of, each), thing in cluster.objects.items() if of == kind and matches(thing, labels)
                ]
            for each in all_of if name is None else [name]:
                cluster.delete(kind, each)
            self.answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    return Api


@contextmanager
def kubernetes(folder: Path, environment: dict[str, str], runs: bool = True) -> Iterator[Cluster]:
    """Run a cluster; end its pods with it."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(folder, environment, runs)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(cluster))
    server.daemon_threads = True
    cluster.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield cluster
    finally:
        cluster.stop()
        server.shutdown()
        server.server_close()
