"""Small data sets in their authors' formats."""

import io
import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np


def leaf(users: Mapping[str, tuple[list[Any], list[Any]]], file: Path) -> None:
    """Write a file in the format of LEAF's scripts."""
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    file.write_text(json.dumps(document))


def picture(seed: int) -> list[float]:
    """Return a FEMNIST picture, rounded as in a JSON file."""
    values: list[float] = np.random.default_rng(seed).random(784).round(4).tolist()
    return values


class _OfPython2(pickle._Pickler):
    """Bytes that are pickled like Python 2's texts, as in the authors' batches."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def _bytes(self, value: bytes) -> None:
        short = len(value) < 256
        self.write(b"U" + bytes([len(value)]) if short else b"T" + len(value).to_bytes(4, "little"))  # type: ignore[attr-defined]
        self.write(value)  # type: ignore[attr-defined]
        self.memoize(value)

    dispatch[bytes] = _bytes  # type: ignore[index]


def pickled(value: Any) -> bytes:
    """Return a pickle in protocol 2, as written by Python 2."""
    written = io.BytesIO()
    _OfPython2(written, 2).dump(value)
    return written.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def pictures(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return CIFAR pictures as the authors' rows: all red values, then green, then blue."""
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)


CIFAR_10 = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def cifar_10(folder: Path, labels: Sequence[Sequence[int]], *, binary: bool) -> None:
    """Write six batches with these labels; each batch's number is the seed of its pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, each) in enumerate(zip(CIFAR_10, labels, strict=True)):
        data = pictures(len(each), seed)
        if binary:
            rows = np.column_stack([np.array(each, np.uint8), data])
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
        else:
            batch = {
                b"batch_label": name.encode(),
                b"labels": list(each),
                b"data": data,
                b"filenames": [b"x.png"] * len(each),
            }
            (folder / name).write_bytes(pickled(batch))


def cifar_100(folder: Path, labels: Sequence[tuple[Sequence[int], Sequence[int]]], *, binary: bool) -> None:
    """Write the two parts with these coarse and fine labels, and the names ``coarse0``, ``fine0`` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {kind: [f"{kind}{number}" for number in range(count)] for kind, count in (("coarse", 20), ("fine", 100))}
    for seed, (name, (coarse, fine)) in enumerate(zip(("train", "test"), labels, strict=True)):
        data = pictures(len(fine), seed)
        if binary:
            rows = np.column_stack([np.array(coarse, np.uint8), np.array(fine, np.uint8), data])
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
        else:
            batch = {b"data": data, b"coarse_labels": list(coarse), b"fine_labels": list(fine), b"filenames": []}
            (folder / name).write_bytes(pickled(batch))
    if binary:
        for kind, each in names.items():
            (folder / f"{kind}_label_names.txt").write_text("\n".join(each) + "\n\n")
    else:
        meta = {f"{kind}_label_names".encode(): [name.encode() for name in each] for kind, each in names.items()}
        (folder / "meta").write_bytes(pickled(meta))
