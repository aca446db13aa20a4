"""Packs the module as an npm package, with TypeScript declarations made from its JSDoc.

    python browser/npm/pack.py [OUT]

This writes ``fedping-<version>.tgz`` into OUT (default ``build``). It needs node, npm, and at the first run the
network, for TypeScript. The package has the files that ``files`` of ``browser/package.json`` lists. Only the package
has declarations next to the modules, so that the module itself needs no build step.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TYPESCRIPT = "typescript@5.9.3"
BUNDLER = "esbuild@0.28.2"
MINIFIER = "terser@5.44.0"
ENTRIES = ("predictor", "ranker")
"""The entry points that the package also has as single files, for pages without a bundler."""

MODULE = Path(__file__).resolve().parents[1]
DECLARATIONS = (
    *("--allowJs", "--declaration", "--emitDeclarationOnly", "--strict"),
    *("--target", "ES2022", "--module", "NodeNext", "--lib", "ES2022,DOM"),
)


def run(command: list[str], cwd: Path) -> str:
    """Return a command's output; if the command fails, end the program with its error output."""
    program = shutil.which(command[0])
    if program is None:
        sys.exit(
            f"{command[0]} is not on PATH; install node 20 or newer with npm, on Debian the packages nodejs and npm"
        )
    environment = {**os.environ, "npm_config_update_notifier": "false", "npm_config_fund": "false"}
    ended = subprocess.run([program, *command[1:]], cwd=cwd, env=environment, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"'{' '.join(command[:4])} …' failed:\n{ended.stdout}{ended.stderr}".rstrip())
    return ended.stdout


def stage(folder: Path) -> None:
    """Put the package's files into a folder: the module, its types, its bundles and its documentation."""
    for name in json.loads((MODULE / "package.json").read_text())["files"]:
        for path in MODULE.glob(name):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / path.relative_to(MODULE))
    for path in (MODULE / "package.json", MODULE / "npm" / "README.md", MODULE.parent / "LICENSE"):
        shutil.copy(path, folder)
    modules = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.js"))
    run(["npx", "--yes", "--package", TYPESCRIPT, "--", "tsc", *modules, *DECLARATIONS], folder)
    for entry in ENTRIES:
        bundle(MODULE / f"{entry}.js", folder / f"{entry}.min.js")


def bundle(entry: Path, out: Path) -> None:
    """Write an entry point with all its imports as one minified ES module."""
    options = ("--bundle", "--minify", "--format=esm", "--target=es2022", "--log-level=error", f"--outfile={out}")
    run(["npx", "--yes", "--package", BUNDLER, "--", "esbuild", str(entry), *options], entry.parent)
    smaller = (
        "--module",
        "--compress",
        "passes=3,ecma=2020",
        "--mangle",
        "--format",
        "ecma=2020",
        "--output",
        str(out),
    )
    run(["npx", "--yes", "--package", MINIFIER, "--", "terser", str(out), *smaller], out.parent)


def pack(out: Path) -> Path:
    """Write the package, replacing a previous one; return its path."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        stage(Path(folder))
        (packed,) = json.loads(run(["npm", "pack", "--json", "--pack-destination", str(out.resolve())], Path(folder)))
    return out / str(packed["filename"])


if __name__ == "__main__":
    print(pack(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build")))
