"""The folder of a run: whose it is, so that the same command goes on with it and another one does not spoil it."""

from __future__ import annotations

from pathlib import Path

from protocol.errors import InvalidSettings

NOTE = "experiment.json"
"""The file of a folder that says what is run there."""


def claim(out: Path, said: bytes) -> None:
    """Make the folder that of the experiment which ``said`` describes, or see that it is.

    A folder in which a run of something else failed before it left anything is taken over.

    Raises:
        InvalidSettings: the folder holds something else, or another experiment.
    """
    note = out / NOTE
    if note.is_file():
        if note.read_bytes() == said:
            return
        if any(file.is_file() for file in out.rglob("*") if file != note):
            raise InvalidSettings(
                f"{out} holds a run of another experiment, or of this one with other settings; give another --out, or "
                "the settings that it was begun with"
            )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidSettings(f"{out} exists and holds no run of an experiment; give another --out")
    out.mkdir(parents=True, exist_ok=True)
    hidden = out / f".{NOTE}.tmp"
    hidden.write_bytes(said)
    hidden.replace(note)
