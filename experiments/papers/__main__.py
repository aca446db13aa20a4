"""The former command for the papers' pictures. It runs the script if the code is a checkout."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

SCRIPTS = "fedping.experiments.papers.scripts"


def main() -> None:
    """Draw the pictures.

    Raises:
        SystemExit: the installed package has no scripts; the message names the command for a checkout.
    """
    if find_spec(SCRIPTS) is None:
        raise SystemExit(
            "fedping: the papers' pictures are drawn from a checkout of fedping. There, run: "
            "python experiments/papers/scripts/pictures.py RESULTS --figures FOLDER"
        )
    from fedping.experiments.papers.scripts.pictures import main as draw

    draw(prog_name=f"python {Path('experiments/papers/scripts/pictures.py')}")


if __name__ == "__main__":
    main()
