"""Files for operators: systemd units, nginx settings, alerts and manifests, with one deployment's names and paths.

The sources are docs/deploy and deploy/kubernetes in a checkout, which a wheel installs below share/fedping. They work
unchanged for an example deployment; this module replaces the example's names.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.shared_files import shared_folder

PLACES = {
    "README.md": "README.md",
    "fedping-ingest.service": "systemd/fedping-ingest.service",
    "fedping-schedule.service": "systemd/fedping-schedule.service",
    "nginx.conf": "nginx/fedping.conf",
    "prometheus-alerts.yml": "prometheus/fedping-alerts.yml",
    "grafana-dashboard.json": "grafana/fedping.json",
}
"""Output path of each file of docs/deploy."""

MANIFESTS = "kubernetes/fedping"
"""Folder of the manifests that the study's kustomization extends."""

_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+", re.I)
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_FOLDER = re.compile(r"(/[A-Za-z0-9._-]+)+")
_HOMES = ("/home/", "/root/", "/run/user/")
"""Folders that systemd's ``ProtectHome=yes`` hides."""

_DOCS = re.compile(r"https?://[!-~]+")


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The names and paths of a deployment.

    Attributes:
        study: the study's name.
        study_file: the study's TOML file.
        host: the host name of nginx for clients.
        data: the folder of store and landing folder.
        user: the user that runs ingest and rounds.
        environment: the Python environment in which fedping is installed.
        docs: the address of the docs, for alerts.

    Raises: InvalidSettings: a value can't be written to the files.
    """

    study: str
    study_file: bytes
    host: str
    data: str
    user: str
    environment: str
    docs: str

    def __post_init__(self) -> None:
        for option, value, pattern, example in (
            ("--host", self.host, _HOST, "a host name such as telemetry.example.org"),
            ("--user", self.user, _USER, "a user such as fedping"),
            ("--data", self.data, _FOLDER, "an absolute path such as /srv/fedping, without spaces"),
            ("--environment", self.environment, _FOLDER, "an absolute path such as /opt/fedping/.venv, without spaces"),
            ("--docs", self.docs, _DOCS, "an address such as https://docs.example/fedping"),
        ):
            if not pattern.fullmatch(value) or ".." in value:
                raise InvalidSettings(f"{option} {value!r} can't be written to the files; give {example}")

    @property
    def names(self) -> dict[str, str]:
        """Replacements for the example's values."""
        at_home = any(
            f"{path}/".startswith(("/home/", "/root/", "/run/user/")) for path in (self.data, self.environment)
        )
        return {
            "/opt/fedping/.venv": self.environment.rstrip("/"),
            "/srv/fedping": self.data.rstrip("/"),
            "schedule firefox ": f"schedule {self.study} ",
            "ProtectHome=yes": f"ProtectHome={'no' if at_home else 'yes'}",
            "User=fedping\n": f"User={self.user}\n",
            "owner=fedping\n": f"owner={self.user}\n",
            "telemetry.example.org": self.host,
            "https://HOST/PATH/docs": self.docs.rstrip("/"),
        }


def present_environment() -> str:
    """Return the folder of the Python environment of this process."""
    return sys.prefix


def files_of(deployment: Deployment) -> dict[str, bytes]:
    """Return the files of a deployment by path.

    Raises: FedpingError: this installation lacks the files.
    """
    host, manifests = _sources()
    files = {place: _filled((host / name).read_text("utf-8"), deployment).encode() for name, place in PLACES.items()}
    for path in sorted(manifests.rglob("*")):
        if path.is_file() and path.suffix:
            files[f"{MANIFESTS}/{path.relative_to(manifests).as_posix()}"] = path.read_bytes()
    files["kubernetes/kustomization.yaml"] = _KUSTOMIZATION.replace("STUDY", deployment.study).encode()
    return files | dict.fromkeys(("study.toml", "kubernetes/study.toml"), deployment.study_file)


def example_study() -> bytes:
    """Return the file of the example's study."""
    return (_sources()[1] / "study.toml").read_bytes()


def write_files(files: dict[str, bytes], folder: Path, *, force: bool = False) -> list[str]:
    """Write files below a folder and return the paths of those that are new or changed, sorted.

    Raises: FedpingError: a file exists with other contents and ``force`` is False (checked before any write), or a
        file can't be written.
    """
    try:
        changed = [path for path, data in sorted(files.items()) if _contents(folder / path) != data]
        edited = [path for path in changed if (folder / path).exists()]
        if edited and not force:
            more = f" and {len(edited) - 1} more" if edited[1:] else ""
            raise FedpingError(
                f"{folder / edited[0]}{more} would be overwritten, so no file was written. Give another folder, or "
                "--force."
            )
        for path in changed:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(files[path])
    except OSError as error:
        raise FedpingError(f"can't write {error.filename or folder} ({error.strerror}); correct the path") from error
    return changed


def _contents(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _filled(text: str, deployment: Deployment) -> str:
    names = deployment.names
    return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text)


def _sources() -> tuple[Path, Path]:
    """Return the folders docs/deploy and deploy/kubernetes, of a checkout or of an installed wheel."""
    return (
        shared_folder("docs/deploy", "deploy", "nginx.conf"),
        shared_folder("deploy/kubernetes", "deploy/kubernetes", "study.toml"),
    )


_KUSTOMIZATION = """\
# The study 'STUDY': ingest, rounds and models. Put your registry in place of registry.example. 'fedping docs
# containers' describes components to add, such as fedping/private.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: fedping
resources:
  - fedping
images:
  - name: fedping-ingest
    newName: registry.example/fedping-ingest
    newTag: "1"
  - name: fedping-round
    newName: registry.example/fedping-round
    newTag: "1"
configMapGenerator:
  - name: fedping-study
    behavior: replace
    files:
      - study.toml
patches:
  - target:
      kind: CronJob
      name: fedping-round
    patch: |
      - op: replace
        path: /spec/jobTemplate/spec/template/spec/containers/0/args
        value: [round, STUDY, "--master=local[2]", --time-limit=12m]
"""
