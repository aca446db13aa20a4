"""`python -m fedping.analysis.notebooks [NAME…]`: execute notebooks and write their results into them.

Execution is reproducible: the same notebook gives the same file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config

HERE = Path(__file__).parent

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""The metadata of a written file: the language for syntax highlighting, but nothing about who executed it."""

TIMEOUT = 300.0
"""Timeout for one cell, in seconds."""


def notebooks() -> list[Path]:
    """Return the notebooks in reading order."""
    return sorted(HERE.glob("*.ipynb"))


def executed(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Return a copy of a notebook with the results of a fresh kernel, started in a folder.

    The kernel ignores the user's settings for IPython and Matplotlib.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised.
    """
    copy = nbformat.from_dict(notebook)  # type: ignore[no-untyped-call]
    environment = {
        **os.environ,
        "IPYTHONDIR": str(folder / ".ipython"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "MPLCONFIGDIR": str(folder / ".matplotlib"),
    }
    client = NotebookClient(
        copy,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,  # otherwise printed output is split at random
        config=Config({"KernelManager": {"transport_encryption": "auto"}}),  # without it the kernel warns
    )
    client.execute(env=environment)
    return _plain(copy)


def _plain(notebook: NotebookNode) -> NotebookNode:
    """Return a notebook without metadata of its execution (times, user, kernel) and text alternatives of pictures."""
    notebook["metadata"] = nbformat.from_dict(METADATA)  # type: ignore[no-untyped-call]
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags")
        cell["metadata"] = nbformat.from_dict({"tags": tags} if tags else {})  # type: ignore[no-untyped-call]
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                output["data"].pop("text/plain", None)
    return notebook


def main(names: list[str]) -> None:
    """Execute the notebooks whose file names contain one of the names; all notebooks without names."""
    chosen = [path for path in notebooks() if not names or any(name in path.name for name in names)]
    with TemporaryDirectory(prefix="fedping-notebooks-") as folder:
        for path in chosen:
            print(path.name, flush=True)
            notebook = executed(nbformat.read(path, as_version=4), Path(folder))  # type: ignore[no-untyped-call]
            hidden = path.with_name(f".{path.name}.tmp")
            nbformat.write(notebook, hidden)  # type: ignore[no-untyped-call]
            os.replace(hidden, path)


if __name__ == "__main__":
    main(sys.argv[1:])
