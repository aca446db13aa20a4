"""Packs the extension's and the module's files into a folder that both browsers can load, and into zips.

    python browser/extension/pack.py [OUT]

OUT is ``build/extension`` by default. Next to it are written a zip of the folder, and a zip for each browser's store,
whose manifest omits the other browser's keys. The same files give the same bytes.
"""

import json
import shutil
import sys
import zipfile
from pathlib import Path

EXTENSION = Path(__file__).resolve().parent
MODULE = EXTENSION.parent
MODULE_PARTS = ("fedping.js", "client.js", "personal.js", "private.js", "delivery", "disclosure", "models", "study")
STAND_INS = ("fedping.js", "disclosure/groups.js")
"""Files of the extension that import the module's files, which replace them in the packed folder."""
EXTENSION_KINDS = {".js", ".json", ".html", ".css", ".svg", ".png"}
OF_THE_OTHER = {
    "firefox": [("key",), ("minimum_chrome_version",), ("background", "service_worker")],
    "chromium": [("key",), ("browser_specific_settings",), ("background", "scripts")],
}
_EARLIEST = (1980, 1, 1, 0, 0, 0)


def packed_files() -> dict[str, Path]:
    """Return the source of each file of the packed folder.

    In the checkout, the extension's ``STAND_INS`` import the module above it. In the packed folder, the module replaces
    them.
    """
    files = {path.relative_to(EXTENSION).as_posix(): path for path in EXTENSION.rglob("*") if _belongs(path)}
    for part in MODULE_PARTS:
        whole = MODULE / part
        for path in sorted(whole.rglob("*.js")) if whole.is_dir() else [whole]:
            name = path.relative_to(MODULE).as_posix()
            if name in files and name not in STAND_INS:
                sys.exit(f"both the module and the extension have {name}; rename the extension's")
            files[name] = path
    return dict(sorted(files.items()))


def _belongs(path: Path) -> bool:
    return path.is_file() and path.suffix in EXTENSION_KINDS


def manifest_for(browser: str, manifest: bytes) -> bytes:
    """Return the manifest without the other browser's keys, and without ``key``, which stores assign themselves."""
    given = json.loads(manifest)
    for *outer, name in OF_THE_OTHER[browser]:
        holder = given
        for step in outer:
            holder = holder[step]
        del holder[name]
    return (json.dumps(given, indent=2) + "\n").encode()


def pack(out: Path) -> list[Path]:
    """Write the folder and the zips next to it, replacing previous ones; return the paths of the zips."""
    files = {name: source.read_bytes() for name, source in packed_files().items()}
    shutil.rmtree(out, ignore_errors=True)
    for name, data in files.items():
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    manifest = files["manifest.json"]
    version = json.loads(manifest)["version"]
    whole = _zipped(out.parent / f"fedping-extension-{version}.zip", files)
    of_stores = [
        _zipped(
            out.parent / f"fedping-extension-{version}-{browser}.zip",
            {**files, "manifest.json": manifest_for(browser, manifest)},
        )
        for browser in OF_THE_OTHER
    ]
    return [whole, *of_stores]


def _zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EARLIEST), data, zipfile.ZIP_DEFLATED)
    return path


def main() -> None:
    """Pack, and print the paths."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else MODULE.parent / "build" / "extension"
    if out.exists() and any(out.iterdir()) and not (out / "manifest.json").is_file():
        sys.exit(f"{out} is not a folder that this made; choose another, or empty it")
    print(f"{out}: load this folder in a browser")
    for archive in pack(out):
        print(archive)


if __name__ == "__main__":
    main()
