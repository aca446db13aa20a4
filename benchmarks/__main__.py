"""Runs all benchmarks one after the other: `python -m benchmarks [NAME …]`.

Run it on an otherwise idle machine. All figures of a table are measured in one run.
"""

import subprocess
import sys

BENCHMARKS = (
    "clients",
    "ingest",
    "outcomes",
    "viewers",
    "runs_list",
    "aggregation",
    "shards",
    "encodings",
    "private_rounds",
    "shared_rounds",
    "encoded_rounds",
    "analysis",
    "spark_start",
    "command_line",
    "simulate",
    "spread",
    "growth",
    "browser",
    "drawing",
)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"there is no benchmark '{unknown[0]}'; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or BENCHMARKS:
        print(f"\n## {name}\n", flush=True)
        failed |= subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
