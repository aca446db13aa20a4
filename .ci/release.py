"""Builds the files of a release, which a person then signs, tags and uploads.

    python .ci/release.py VERSION [--out build/release] [--pythons "python3.12 python3.13"]

Run ``make release VERSION=1.0.0``, with a clean working tree and a network connection. The program

1. checks that every place that states the version agrees, and that the changelog describes it;
2. builds the docs, the sdist, the wheel from the sdist, the npm package and the browser extension twice, only from the
   commit's files, and stops unless both builds have the same bytes;
3. installs wheel and sdist, with the packages of ``requirements.lock``, for each Python 3.11 to 3.14 of this machine,
   and runs the demo there;
4. writes a bill of materials (CycloneDX) with the packages of an installation and their licences, and an unsigned
   statement of the build's origin (SLSA provenance 1);
5. writes ``SHA256SUMS`` and prints the commands that publish.

It publishes nothing itself.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MINORS = ("3.11", "3.12", "3.13", "3.14")
TOOLS = ("build==1.6.1", "cyclonedx-bom==7.5.0")
"""Packages for building a release, installed into an environment of their own."""

DEMO = ("demo", "--clients", "1000", "--iterations", "2")
VENDORED = re.compile(r"^\| `([^`]+)` \| ([^,|]+), [^|]*\| ([^|]+) \| `([0-9a-f]{64})` \|$", re.MULTILINE)


class ReleaseError(Exception):
    """The release cannot be built; the message has the reason and the remedy."""


def stated_versions(root: Path) -> dict[str, str]:
    """Return the version that each file states, by path."""

    def found(path: str, pattern: str) -> str:
        match = re.search(pattern, (root / path).read_text("utf-8"), re.MULTILINE)
        return match[1] if match else "none"

    return {
        "protocol/__init__.py": found("protocol/__init__.py", r'^__version__ = "(.+)"$'),
        "CITATION.cff": found("CITATION.cff", r"^version: (\S+)$"),
        "browser/package.json": found("browser/package.json", r'^  "version": "(.+)",$'),
    }


def check_versions(version: str, stated: Mapping[str, str]) -> None:
    """Compare the version of the release with the versions that the files state.

    Raises:
        ReleaseError: a file states another version.
    """
    others = [f"{path} states {other}" for path, other in stated.items() if other != version]
    if others:
        raise ReleaseError(f"the release is {version}, but {', '.join(others)}; correct them, and commit")


def release_notes(changelog: str, version: str) -> str:
    """Return the changelog's section about a version, without its heading.

    Raises:
        ReleaseError: the section is missing or empty, or changes of no version precede it.
    """
    parts = re.split(r"^## +", changelog, flags=re.MULTILINE)[1:]
    by_name = {part.partition("\n")[0].partition(" ")[0]: part.partition("\n")[2].strip() for part in parts}
    if by_name.get("Unreleased"):
        raise ReleaseError(
            f"CHANGELOG.md has changes under 'Unreleased'; move them below '## {version} (YYYY-MM-DD)', and commit"
        )
    if not by_name.get(version):
        raise ReleaseError(f"CHANGELOG.md says nothing of {version}; add '## {version} (YYYY-MM-DD)' with its changes")
    return by_name[version] + "\n"


def normalised(archive: bytes, epoch: int) -> bytes:
    """Return a reproducible .tar.gz with the same files, sorted by name and with one time and owner."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as read,
        gzip.GzipFile("", "wb", fileobj=packed, mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as write,
    ):
        for member in sorted(read.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            write.addfile(member, read.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def differing(first: Path, second: Path) -> list[str]:
    """Return the names of files that differ between two folders or are missing in one."""
    names = {path.name for folder in (first, second) for path in folder.iterdir()}
    return sorted(name for name in names if _sha256(first / name) != _sha256(second / name))


def vendored(table: str) -> list[dict[str, Any]]:
    """Return the JavaScript libraries that the wheel contains, as components of a bill of materials."""
    return [
        {
            "type": "library",
            "name": name.strip(),
            "version": version.strip(),
            "purl": f"pkg:npm/{name.strip().replace('@', '%40')}@{version.strip()}",
            "licenses": [{"license": {"id": "ISC"}}],
            "hashes": [{"alg": "SHA-256", "content": digest}],
            "properties": [{"name": "fedping:file", "value": f"fedping/dashboard/static/vendor/{file}"}],
        }
        for file, name, version, digest in VENDORED.findall(table)
    ]


def provenance(files: Iterable[Path], commit: str, version: str, repository: str) -> dict[str, Any]:
    """Return an unsigned in-toto statement about the build of files, for `cosign attest-blob`."""
    source = {"uri": f"git+{repository}", "digest": {"gitCommit": commit}}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": _sha256(path)}} for path in sorted(files)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{repository}/.ci/release.py",
                "externalParameters": {"version": version},
                "internalParameters": {"python": sys.version.split()[0], "tools": list(TOOLS)},
                "resolvedDependencies": [source],
            },
            "runDetails": {"builder": {"id": f"{repository}/.ci/release.py"}},
        },
    }


def constraints(lock: str) -> str:
    """Return the versions of the lock without its hashes, which pip accepts only if all packages have them."""
    lines = (line.rstrip().removesuffix("\\").rstrip() for line in lock.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.lstrip().startswith("--hash"))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"


def _run(command: Sequence[str | Path], **more: Any) -> str:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more.pop("env", {})}
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment, **more)
    if ran.returncode:
        shown = " ".join(str(word) for word in command[:6])
        raise ReleaseError(f"'{shown} …' failed with exit code {ran.returncode}:\n{ran.stdout}{ran.stderr}".rstrip())
    printed: str = ran.stdout
    return printed


def _environment(folder: Path, python: str | Path, packages: Sequence[str | Path]) -> Path:
    _run([python, "-m", "venv", folder])
    _run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages])
    return folder / "bin" / "python"


def _built(commit: str, folder: Path, tools: Path, epoch: int) -> Path:
    """Build everything from a commit's files in a new folder; return the folder of the built files."""
    source, out = folder / "source", folder / "out"
    source.mkdir(parents=True)
    out.mkdir()
    with tarfile.open(fileobj=io.BytesIO(_archive(commit))) as archive:
        archive.extractall(source, filter="tar")
    steady = {"SOURCE_DATE_EPOCH": str(epoch), "TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
    docs = Path("fedping") / "site"
    _run([sys.executable, "-m", "docs.site.build", docs], cwd=source, env=steady)
    shutil.rmtree(source / f"{docs}.doctrees")
    _run([tools, "-m", "build", "--sdist", "--outdir", out, source], env=steady)
    (sdist,) = out.glob("fedping-*.tar.gz")
    sdist.write_bytes(normalised(sdist.read_bytes(), epoch))
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    _run([tools, "-m", "build", "--wheel", "--outdir", out, folder / sdist.name.removesuffix(".tar.gz")], env=steady)
    _run([sys.executable, Path("browser") / "npm" / "pack.py", out], cwd=source, env=steady)
    _run([sys.executable, Path("browser") / "extension" / "pack.py", out / "extension"], cwd=source, env=steady)
    shutil.rmtree(out / "extension", ignore_errors=True)
    return out


def _archive(commit: str) -> bytes:
    packed: bytes = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    return packed


def _pythons(given: str | None) -> list[tuple[str, str]]:
    """Return the Pythons to try, each with its minor version: the given ones, else those of PATH and of pyenv."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = given.split() if given else []
    for minor in () if given else MINORS:
        candidates += [f"python{minor}", *map(str, sorted(kept.glob(f"{minor}.*/bin/python3"), reverse=True))]
    found: dict[str, str] = {}
    for candidate in candidates:
        try:
            minor = _run([candidate, "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"]).strip()
        except (ReleaseError, OSError):
            if given:
                raise ReleaseError(f"'{candidate}' of --pythons does not run; correct it") from None
            continue
        found.setdefault(minor, candidate)
    return sorted(found.items())


def _tried(package: Path, python: str, folder: Path, limits: Path) -> Path:
    """Install a package for a Python and run the demo there; return the environment's Python."""
    installed = _environment(folder, python, [f"fedping[all] @ {package.resolve().as_uri()}", "--constraint", limits])
    _run([folder / "bin" / "fedping", *DEMO, "--out", folder / "demo"], cwd=folder)
    return installed


def release(version: str, out: Path, pythons: str | None) -> None:
    """Build a release into a folder.

    Raises:
        ReleaseError: a check fails; the files built so far are removed.
    """
    check_versions(version, stated_versions(ROOT))
    notes = release_notes((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    if _run(["git", "status", "--porcelain"], cwd=ROOT):
        raise ReleaseError("the tree has changes that are not committed; commit or remove them")
    if _run(["git", "tag", "--list", f"v{version}"], cwd=ROOT):
        raise ReleaseError(f"the tag v{version} exists; a released version never changes, so take the next")
    if out.exists() and any(out.iterdir()):
        raise ReleaseError(f"{out} is not empty; remove it, or give another folder by --out")
    commit = _run(["git", "rev-parse", "HEAD"], cwd=ROOT).strip()
    epoch = int(_run(["git", "log", "-1", "--format=%ct"], cwd=ROOT))
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        print("Building twice …", flush=True)
        tools = _environment(work / "tools", sys.executable, TOOLS)
        first, second = (_built(commit, work / each, tools, epoch) for each in ("first", "second"))
        if names := differing(first, second):
            raise ReleaseError(f"two builds of one commit differ in {', '.join(names)}; nothing was kept")
        limits = work / "constraints.txt"
        limits.write_text(constraints((ROOT / "requirements.lock").read_text("utf-8")))
        (wheel,), (sdist,) = first.glob("*.whl"), first.glob("fedping-*.tar.gz")
        installed = None
        for minor, python in _pythons(pythons):
            print(f"Python {minor}: the wheel, then the demo …", flush=True)
            last = _tried(wheel, python, work / f"wheel-{minor}", limits)
            installed = installed or last
        if installed is None:
            raise ReleaseError(f"no Python {' or '.join(MINORS)} can be run here; name one by --pythons")
        print("The sdist, then the demo …", flush=True)
        _tried(sdist, sys.executable, work / "sdist", limits)
        materials = json.loads(
            _run([tools, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON", installed])
        )
        table = (ROOT / "dashboard" / "static" / "vendor" / "README.md").read_text("utf-8")
        materials["components"] += vendored(table)
        (first / f"fedping-{version}.cdx.json").write_text(json.dumps(materials, indent=1) + "\n")
        built = sorted(first.iterdir())
        statement = provenance(built, commit, version, _repository())
        (first / f"fedping-{version}.provenance.json").write_text(json.dumps(statement, indent=1) + "\n")
        sums = "".join(f"{_sha256(path)}  {path.name}\n" for path in sorted(first.iterdir()))
        (first / "SHA256SUMS").write_text(sums)
        (first / "NOTES.md").write_text(notes)
        shutil.copytree(first, out, dirs_exist_ok=True)
    print(f"\n{sums}\n{_next_steps(version, out)}")


def _repository() -> str:
    ran = subprocess.run(["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True)
    return ran.stdout.strip() or "local"


def _next_steps(version: str, out: Path) -> str:
    stem = out / f"fedping-{version}"
    return f"""\
Built into {out}. A person publishes it:

    git tag --sign v{version} --file {out}/NOTES.md
    cosign attest-blob --statement {stem}.provenance.json --bundle {stem}.sigstore.json
    git push origin v{version}
    twine upload {out}/*.whl {stem}.tar.gz
    npm publish {stem}.tgz --provenance
"""


def main() -> int:
    """Build the release that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description="Build a release; publish nothing.")
    parser.add_argument("version")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--pythons", help="the Pythons that install and try it, separated by spaces")
    given = parser.parse_args()
    try:
        release(given.version, given.out, given.pythons)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
