"""Freezes one golden document, in a process that can import only the frozen program."""

import importlib
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import fedping
from tests.golden.frozen import differences, pack, reader, unpack


def main(name: str, site: Path) -> None:
    """Write a document, read it twice, and freeze both."""
    assert Path(fedping.__file__).is_relative_to(site), f"another program would write: {fedping.__file__}"
    writing = importlib.import_module(f"tests.golden.writing.{name}")
    with tempfile.TemporaryDirectory() as folder:
        documents = Path(folder) / "documents"
        documents.mkdir()
        writing.write(documents)
        for path in list(documents.rglob("__pycache__")):
            shutil.rmtree(path)
        file = pack(name, documents, {})
        expected = []
        for number in range(2):
            there, _ = unpack(name, Path(folder) / f"read-{number}")
            began = time.process_time()
            expected.append(json.loads(json.dumps(reader(name)(there))))
            took = time.process_time() - began
        told = differences(*expected)
        assert not told, f"reading {name} twice gives two answers: {told}"
        pack(name, documents, expected[0])
        print(f"{name}: {file.stat().st_size:,} bytes, read in {took:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
