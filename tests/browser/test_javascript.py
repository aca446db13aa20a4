"""Runs the JavaScript client's own tests; some compute the vectors of docs/conformance."""

import json
import subprocess

import pytest

from fedping.protocol.gaussian import least_noise
from tests.browser.tools import BROWSER, node
from tests.support.gaussian import GUARANTEES, falls_short


def test_the_javascript_passes_its_tests() -> None:
    tests = sorted(str(path) for path in (BROWSER / "tests").glob("*.test.js"))
    assert tests
    run = subprocess.run([node(), "--test", *tests], capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_client_in_javascript_never_adds_too_little_noise_however_small_the_guarantee() -> None:
    script = f"""
        import {{ leastNoise }} from {json.dumps((BROWSER / "study/privacy/gaussian.js").as_uri())};
        console.log(JSON.stringify({json.dumps(GUARANTEES)}.map(([epsilon, delta]) => leastNoise(epsilon, delta))));
    """
    command = [node(), "--input-type=module", "--eval", script]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    for (epsilon, delta), z in zip(GUARANTEES, json.loads(run.stdout), strict=True):
        assert not falls_short(epsilon, delta, z), (epsilon, delta)
        if epsilon >= 1e-3 and delta >= 1e-10:
            assert z == pytest.approx(least_noise(epsilon, delta), rel=1e-9)


def test_the_module_needs_nothing_but_itself() -> None:
    """No dependency, no build step, no outside address."""
    package = json.loads((BROWSER / "package.json").read_text())
    assert not {"dependencies", "devDependencies", "peerDependencies"} & set(package)
    sources = [path for path in BROWSER.rglob("*.js") if "tests" not in path.parts and "benchmarks" not in path.parts]
    assert sources
    for path in sources:
        code = path.read_text()
        assert code.startswith("// @ts-check\n"), path
        for line in code.splitlines():
            if line.startswith(("import ", "export ")) and " from " in line:
                assert '"./' in line or '"../' in line, f"{path}: {line}"
