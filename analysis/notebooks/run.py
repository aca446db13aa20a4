"""Executing notebooks, such that the same notebook gives the same file again."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config

HERE = Path(__file__).parent

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""All that a file keeps of who executed it: nothing. The language is there for those who colour it."""

TIMEOUT = 300.0
"""Seconds for one cell."""


def notebooks() -> list[Path]:
    """Return the notebooks in the order in which they are to be read."""
    return sorted(HERE.glob("*.ipynb"))


def executed(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Return a copy of a notebook with the results of a fresh kernel, started in a folder.

    The kernel knows nothing of what this person has set for IPython and Matplotlib.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised.
    """
    made = nbformat.from_dict(notebook)  # type: ignore[no-untyped-call]
    environment = {
        **os.environ,
        "IPYTHONDIR": str(folder / ".ipython"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "MPLCONFIGDIR": str(folder / ".matplotlib"),
    }
    client = NotebookClient(
        made,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,  # else what is printed comes in as many pieces as chance has it
        config=Config({"KernelManager": {"transport_encryption": "auto"}}),  # the kernel warns where it is not
    )
    client.execute(env=environment)
    return _plain(made)


def _plain(notebook: NotebookNode) -> NotebookNode:
    """Drop what says how and by whom a notebook was executed, and the words that stand in for a picture."""
    notebook["metadata"] = nbformat.from_dict(METADATA)  # type: ignore[no-untyped-call]
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags")
        cell["metadata"] = nbformat.from_dict({"tags": tags} if tags else {})  # type: ignore[no-untyped-call]
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                output["data"].pop("text/plain", None)
    return notebook
