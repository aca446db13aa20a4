"""Installs the programs that tests need: `python -m tests.browser.harness.install`. `make test-browser` runs it."""

import os
import shutil
import subprocess
import sys

from tests.browser.harness.available import AZURITE, LEAST_NODE, PACKAGES, missing, path_of
from tests.support import azurite


def main() -> int:
    """Install missing programs, or print how to install them by hand; return the exit code."""
    lacking = missing()
    packages = [PACKAGES[name] for name in lacking if name != AZURITE]
    if packages and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(packages)
    if AZURITE in lacking and (npm := path_of("npm")):
        azurite.install(npm)
    lacking = missing() if lacking else []
    if lacking:
        print(_advice(lacking), file=sys.stderr)
    return 1 if lacking else 0


def _install(packages: list[str]) -> None:
    print(f"Installing for the tests: {', '.join(packages)}.", flush=True)
    options = ["-qq", "-y", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--no-install-recommends", *packages]):
        # Whether the programs exist afterwards shows the result.
        subprocess.run(["apt-get", *options, *command], env=environment, stdout=subprocess.DEVNULL)
    if PACKAGES["nginx"] in packages and shutil.which("systemctl"):
        # Debian starts a server with its package; tests start their own, and none is needed on port 80.
        subprocess.run(["systemctl", "disable", "--now", "nginx"], capture_output=True)


def _advice(lacking: list[str]) -> str:
    names = [f"{name} {LEAST_NODE} or newer" if name == "node" else name for name in lacking]
    packages = " ".join(PACKAGES[name] for name in lacking if name != AZURITE)
    ways = [f"on Debian with 'sudo apt-get install {packages}'"] if packages else []
    if AZURITE in lacking:
        ways.append(f"{AZURITE} with npm, as 'python -m tests.support.azurite' does")
    return f"Some tests need {', '.join(names)}, missing here: install them, {', '.join(ways)}, and run this again."


if __name__ == "__main__":
    sys.exit(main())
