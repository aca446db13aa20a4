"""Time of `fedping --help`, compared with interpreters that do nothing or only import NumPy.

    python -m benchmarks.command_line [--json] [--runs 15]

The three run in turn, so that a change in the machine's speed affects all of them; the median of each is shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "fedping --help": [sys.executable, "-m", "fedping", "--help"],
    "fedping round --help": [sys.executable, "-m", "fedping", "round", "--help"],
    "python -c 'import numpy'": [sys.executable, "-c", "import numpy"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.runs + 1):
        for name, command in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(runs[1:]) for name, runs in seconds.items()}
    if options.json:
        print(json.dumps(medians, indent=1))
        return
    for name, median in medians.items():
        print(f"{name:<28} {median:6.3f} s")


if __name__ == "__main__":
    main()
