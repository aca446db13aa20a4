"""Data sets in TensorFlow Federated's files: valid and rejected files."""

import contextlib
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.client_sim.data import load_original
from fedping.client_sim.data.originals import files_of_original, hdf5_process, reading, tff, tff_files
from fedping.client_sim.data.originals.tf_example import OddRecord, features_of
from fedping.protocol.errors import FedpingError, InvalidSettings
from tests.support.original_files import leaf, picture
from tests.support.tff_files import characters, field, hdf5, objects, record, sentences, sqlite, varint

FORMS = ("hdf5", "sqlite", "indexed")


def write(form: str, folder: Path, names: tuple[str, str, str], train: Any, test: Any) -> None:
    """Write a data set, given the prefix of HDF5's file names, SQLite's file name, and the prefix of its splits."""
    before, database, split = names
    if form == "hdf5":
        hdf5(folder / f"{before}_train.h5", train)
        hdf5(folder / f"{before}_test.h5", test)
    else:
        both = {f"{split}test": test, f"{split}train": train}
        sqlite(folder / f"{database}.sqlite", both, index=form == "indexed")


FEMNIST = ("fed_emnist", "emnist_all", "all_")
SHAKESPEARE = ("shakespeare", "shakespeare", "")
CIFAR_100 = ("fed_cifar100", "cifar100", "")
STACKOVERFLOW = ("stackoverflow", "stackoverflow", "")


@pytest.mark.parametrize("form", FORMS)
def test_femnist_is_read_by_writer_with_its_test_examples(form: str, tmp_path: Path) -> None:
    train = {"f0001_41": characters(1, [0, 35]), "f0000_14": characters(2, [61])}
    test = {"f0001_41": characters(3, [7]), "f0000_14": characters(4, [8])}
    write(form, tmp_path, FEMNIST, train, test)
    table = load_original("femnist", tmp_path, {})
    assert table.key is not None
    assert table.for_test is not None
    found = sorted(zip(table.key.tolist(), table.y.tolist(), table.for_test.tolist(), strict=True))
    assert found == [
        ("f0000_14", 8, True),
        ("f0000_14", 61, False),
        ("f0001_41", 0, False),
        ("f0001_41", 7, True),
        ("f0001_41", 35, False),
    ]
    assert table.x[table.y == 61][0] == pytest.approx(train["f0000_14"]["pixels"].reshape(-1))
    assert table.features[29] == "pixel_1_1"
    first = load_original("femnist", tmp_path, {"users": 1})
    assert first.key is not None
    assert first.key.tolist() == ["f0000_14", "f0000_14"]


@pytest.mark.parametrize("form", FORMS)
def test_cifar_100_is_read_by_client_and_test_clients_are_others(form: str, tmp_path: Path) -> None:
    write(form, tmp_path, CIFAR_100, {"0": objects(1, [99, 3]), "1": objects(2, [50])}, {"0": objects(3, [7])})
    table = load_original("cifar-100", tmp_path, {})
    assert table.key is not None
    assert table.for_test is not None
    assert table.key.tolist() == ["0", "0", "1", "test 0"]
    assert table.y.tolist() == [99, 3, 50, 7]
    assert table.for_test.tolist() == [False, False, False, True]
    pixel = table.features.index("pixel_3_5_g")
    assert table.x[1, pixel] == objects(1, [99, 3])["image"][1, 3, 5, 1]
    limited = load_original("cifar-100", tmp_path, {"users": 1})
    assert limited.key is not None
    assert limited.key.tolist() == ["0", "0", "test 0"]


@pytest.mark.parametrize("form", FORMS)
def test_a_snippet_of_shakespeare_is_an_example_for_each_character_and_its_end(form: str, tmp_path: Path) -> None:
    train = {"HAMLET": {"snippets": [b"To be", b"x" * 90]}}
    write(form, tmp_path, SHAKESPEARE, train, {"HAMLET": {"snippets": ["o é".encode()]}})
    table = load_original("shakespeare", tmp_path, {})
    symbols = table.target.classes
    assert (len(symbols), len(tff.CHARACTERS), table.x.shape) == (90, 86, (6 + 91 + 4, 80))

    def text(row: int) -> str:
        return "".join(symbols[int(number)] for number in table.x[row] if number)

    assert [text(row) + " > " + symbols[table.y[row]] for row in range(6)] == [
        "<begin> > T",
        "<begin>T > o",
        "<begin>To >  ",
        "<begin>To  > b",
        "<begin>To b > e",
        "<begin>To be > <end>",
    ]
    assert text(6 + 90) == "x" * 80
    assert text(6 + 91 + 3) == "<begin>o <unknown>"
    assert table.x[0].tolist() == [0.0] * 79 + [float(symbols.index("<begin>"))]
    assert table.for_test is not None
    assert table.for_test.sum() == 4


COUNTS = "the\t9\nto\t7\nis\t7\ncss\t2\n"


@pytest.mark.parametrize("form", FORMS)
def test_a_sentence_of_stackoverflow_is_an_example_for_each_word_and_its_end(form: str, tmp_path: Path) -> None:
    train = {"1000": sentences("the css is bad", "to the"), "0999": sentences("is is is is")}
    write(form, tmp_path, STACKOVERFLOW, train, {"1000": sentences("css"), "2000": sentences("to")})
    (tmp_path / "stackoverflow.word_count").write_text(COUNTS)
    table = load_original("stackoverflow", tmp_path, {"words": 3, "length": 3})
    symbols = ("<padding>", "the", "to", "is", "<unknown>", "<begin>", "<end>")
    assert table.target.classes == symbols
    assert table.key is not None
    of_one = (table.key == "1000") & ~table.for_test  # type: ignore[operator]
    rows = np.column_stack([table.x, table.y])[of_one].astype(int)
    assert [[symbols[number] for number in row] for row in rows] == [
        ["<padding>", "<padding>", "<begin>", "the"],
        ["<padding>", "<begin>", "the", "<unknown>"],
        ["<begin>", "the", "<unknown>", "is"],  # four words exceed three, so there is no end token
        ["<padding>", "<padding>", "<begin>", "to"],
        ["<padding>", "<begin>", "to", "the"],
        ["<begin>", "to", "the", "<end>"],
    ]
    limited = load_original("stackoverflow", tmp_path, {"words": 4, "users": 2, "sentences": 1})
    assert limited.key is not None
    assert limited.for_test is not None
    assert limited.x.shape[1] == 20
    assert len(limited.target.classes) == 8
    kept = {(str(user), bool(for_test)) for user, for_test in zip(limited.key, limited.for_test, strict=True)}
    assert kept == {("0999", False), ("1000", False), ("1000", True)}
    assert (limited.key == "1000").sum() == 5 + 2


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (None, r"lacks stackoverflow.word_count, TFF's list of words. Unpack"),
        ("", "it has no words"),
        ("the\n", "line 1 is not a new word and its number of users"),
        ("the\t9\nthe\t8\n", "line 2 is not a new word"),
        ("the\t9\nto\tmany\n", "line 2 is not a new word"),
        ("the\t1\nto\t2\n", "line 2 is more frequent than the one before"),
    ],
)
def test_a_damaged_list_of_words_is_refused(counts: str | None, said: str, tmp_path: Path) -> None:
    sqlite(tmp_path / "stackoverflow.sqlite", {"train": {"1": sentences("to")}, "test": {"1": sentences("to")}})
    if counts is not None:
        (tmp_path / "stackoverflow.word_count").write_text(counts)
    with pytest.raises(FedpingError, match=said):
        load_original("stackoverflow", tmp_path, {})


def test_missing_and_packed_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FedpingError, match=r"neither stackoverflow_train\.h5 nor"):
        load_original("stackoverflow", tmp_path, {})
    (tmp_path / "emnist_all.sqlite.lzma").write_bytes(b"")
    with pytest.raises(FedpingError, match=r"is packed. Unpack it with: xz --format=lzma --decompress --keep '/"):
        load_original("femnist", tmp_path, {})
    with pytest.raises(InvalidSettings, match="the authors' files have no users"):
        load_original("cifar-100", tmp_path, {"users": 3})
    assert files_of_original("femnist", tmp_path) == []


def test_the_files_that_are_read_are_listed_each_once(tmp_path: Path) -> None:
    sqlite(tmp_path / "emnist_all.sqlite", {"all_train": {"f": characters(1, [1])}})
    assert files_of_original("femnist", tmp_path) == [tmp_path / "emnist_all.sqlite"]
    leaf({"f": ([picture(1)], [0])}, tmp_path / "leaf/a.json")
    assert files_of_original("femnist", tmp_path / "leaf") == [tmp_path / "leaf/a.json"]


# Damaged and hostile files of HDF5


def file_of(folder: Path) -> Path:
    file = folder / "fed_emnist_train.h5"
    hdf5(file, {"f": characters(1, [1, 2])})
    return file


def changed(change: Callable[[Any, Any], None]) -> Callable[[Path], None]:
    """Return a function that applies a change, which also gets h5py, to a file's group ``examples``."""

    def apply(file: Path) -> None:
        h5py = pytest.importorskip("h5py")
        with h5py.File(file, "r+") as opened:
            change(h5py, opened["examples"])

    return apply


def with_array(name: str, values: Any) -> Callable[[Path], None]:
    def change(_: Any, examples: Any) -> None:
        del examples["f"][name]
        examples["f"][name] = values

    return changed(change)


def with_link(of_group: bool, external: bool) -> Callable[[Path], None]:
    def change(h5py: Any, examples: Any) -> None:
        path = "/examples/f" if of_group else "/examples/f/label"
        link = h5py.ExternalLink("elsewhere.h5", path) if external else h5py.SoftLink(path)
        if of_group:
            examples["g"] = link
        else:
            del examples["f"]["label"]
            examples["f"]["label"] = link

    return changed(change)


def with_external_storage(file: Path) -> None:
    (file.parent / "secret.bin").write_bytes(bytes(8))

    def change(_: Any, examples: Any) -> None:
        del examples["f"]["label"]
        place = [(str(file.parent / "secret.bin"), 0, 8)]
        examples["f"].create_dataset("label", shape=(2,), dtype="i4", external=place)

    changed(change)(file)


def with_virtual_array(file: Path) -> None:
    def change(h5py: Any, examples: Any) -> None:
        del examples["f"]["label"]
        layout = h5py.VirtualLayout(shape=(2,), dtype="i4")
        layout[:] = h5py.VirtualSource("elsewhere.h5", "label", shape=(2,))
        examples["f"].create_virtual_dataset("label", layout)

    changed(change)(file)


def with_references(file: Path) -> None:
    def change(h5py: Any, examples: Any) -> None:
        del examples["f"]["label"]
        examples["f"].create_dataset("label", data=[examples.ref] * 2, dtype=h5py.ref_dtype)

    changed(change)(file)


def cut(share: float) -> Callable[[Path], None]:
    def apply(file: Path) -> None:
        data = file.read_bytes()
        file.write_bytes(data[: int(share * len(data))])

    return apply


def renamed(_: Any, examples: Any) -> None:
    examples.parent.move("examples", "others")


def array_for_client(_: Any, examples: Any) -> None:
    examples["g"] = np.zeros(3)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut(0.0), "damaged"),
        (cut(0.3), "damaged"),
        (cut(0.99), "damaged"),
        (changed(renamed), "lacks 'examples'"),
        (changed(array_for_client), "'g' of /examples is a Dataset, not a Group"),
        (with_array("pixels", np.zeros((2, 28, 27))), r"numbers of shape \(n, \(28, 28\)\)"),
        (with_array("pixels", np.zeros((3, 28, 28))), "other features have|has the shape"),
        (with_array("pixels", np.full((2, 28, 28), np.nan)), "pixel is not a finite number"),
        (with_array("label", np.array([0, 62])), "'label' is not a class from 0 to 61"),
        (with_array("label", np.array([0, -1])), "'label' is not a class"),
        (with_array("label", np.array([0.5, 1.0])), "'label' is not a class"),
        (with_array("label", np.array([b"a", b"b"])), "is .S1 of shape"),
        (with_array("label", 3), "has the shape"),
        (with_link(of_group=True, external=True), "'g' of /examples is a link to another place"),
        (with_link(of_group=True, external=False), "is a link to another place"),
        (with_link(of_group=False, external=True), "'label' of /examples/f is a link to another place"),
        (with_external_storage, "'label' of the client 'f' lies in another file"),
        (with_virtual_array, "'label' of the client 'f' lies in another file"),
        (with_references, "is object of shape"),
    ],
)
def test_a_damaged_or_hostile_file_of_hdf5_is_refused(
    damage: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    file = file_of(tmp_path)
    damage(file)
    with pytest.raises(FedpingError, match=said):
        load_original("femnist", tmp_path, {})


def test_texts_that_are_none_are_refused(tmp_path: Path) -> None:
    hdf5(tmp_path / "shakespeare_train.h5", {"f": {"snippets": np.zeros(3)}})
    with pytest.raises(FedpingError, match="'snippets' of the client 'f' is not a list of texts"):
        load_original("shakespeare", tmp_path, {})
    hdf5(tmp_path / "shakespeare_train.h5", {"f": {"snippets": [b"\xff\xfe"]}})
    with pytest.raises(FedpingError, match="damaged"):
        load_original("shakespeare", tmp_path, {})


def test_bounds_hold_and_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hdf5(tmp_path / "a/fed_emnist_train.h5", {f"f{at}": characters(at, [1, 2]) for at in range(4)})
    with monkeypatch.context() as patched:
        patched.setattr(reading, "MOST_NUMBERS", 5 * 784)
        with pytest.raises(FedpingError, match=r"after 2 users. Set settings = \{ users = 1 \}"):
            load_original("femnist", tmp_path / "a", {})
        assert len(load_original("femnist", tmp_path / "a", {"users": 2})) == 4
        patched.setattr(reading, "MOST_NUMBERS", 784)
        with pytest.raises(FedpingError, match="which is too large"):
            load_original("femnist", tmp_path / "a", {})
    with monkeypatch.context() as patched:
        patched.setattr(tff_files, "MOST_CLIENTS", 3)
        with pytest.raises(FedpingError, match="has 4 clients, and at most 3 are read"):
            load_original("femnist", tmp_path / "a", {})
        sqlite(tmp_path / "b/emnist_all.sqlite", {"all_train": {f"f{at}": characters(at, [1]) for at in range(4)}})
        with pytest.raises(FedpingError, match="has 4 clients, and at most 3 are read"):
            load_original("femnist", tmp_path / "b", {})
    monkeypatch.setattr(tff_files, "LONGEST_TEXT", 10)
    hdf5(tmp_path / "c/shakespeare_train.h5", {"f": {"snippets": [b"x" * 11]}})
    with pytest.raises(FedpingError, match="a text of more than 10 bytes"):
        load_original("shakespeare", tmp_path / "c", {})
    with pytest.raises(FedpingError, match="is not a record, or is too large"):
        load_original("femnist", tmp_path / "b", {})


def test_a_file_that_keeps_the_library_busy_forever_is_given_up(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "shakespeare_train.h5", "w") as file:
        file.create_group("examples/f").create_dataset("snippets", data=[b"abc"] * 8, dtype=h5py.string_dtype())
    assert len(load_original("shakespeare", tmp_path, {"patience": 60})) == 8 * 4
    data = bytearray((tmp_path / "shakespeare_train.h5").read_bytes())
    size = data.index(b"GCOL") + 24  # the size of the heap's first text, by which the library advances
    data[size : size + 8] = bytes(8)
    (tmp_path / "shakespeare_train.h5").write_bytes(data)
    with pytest.raises(
        FedpingError, match=r"given no examples for 2 seconds: .* or raise 'patience' in \[data.settings\]"
    ):
        load_original("shakespeare", tmp_path, {"patience": 2})


def test_a_library_that_crashes_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file_of(tmp_path)
    monkeypatch.setattr(hdf5_process, "_BEGIN", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(FedpingError, match=r"HDF5's library ended while it read it \(exit status -9\)"):
        load_original("femnist", tmp_path, {})


def test_without_h5py_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file_of(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(FedpingError, match=r'needs the package h5py.*pip install "fedping\[hdf5\]"'):
        load_original("femnist", tmp_path, {})


# Damaged and hostile files of SQLite


def database(statements: list[str], record: Any = b"") -> Callable[[Path], None]:
    def write(file: Path) -> None:
        opened = sqlite3.connect(file)
        for statement in statements:
            opened.execute(statement, (record,) if "?" in statement else ())
        opened.commit()
        opened.close()

    return write


EXAMPLES = "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
CLIENTS = "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)"
OF_ONE = "INSERT INTO client_metadata VALUES ('f', 'all_train', 1), ('f', 'all_test', 1)"
ONE = "INSERT INTO examples VALUES ('all_train', 'f', ?)"
GOOD = record({"pixels": np.zeros(784, np.float32), "label": np.array([1])})


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (lambda file: file.write_bytes(b"no database" * 100), "file is not a database"),
        (database([EXAMPLES]), "no table 'client_metadata'"),
        (database([CLIENTS, "CREATE VIEW examples AS SELECT 1 AS split_name"]), "no table 'examples'"),
        (database([EXAMPLES, CLIENTS]), "no clients of the split 'all_train'"),
        (database([EXAMPLES, CLIENTS, "INSERT INTO client_metadata VALUES (x'00', 'all_train', 1)"]), "is not a text"),
        (database([CLIENTS, OF_ONE, "CREATE TABLE examples (split_name TEXT)"]), "no such column"),
        (database([EXAMPLES, CLIENTS, OF_ONE, ONE], "text"), "is not a record"),
        (database([EXAMPLES, CLIENTS, OF_ONE, ONE], GOOD[:-1]), r"a record is cut off \(client 'f'\)"),
        (database([EXAMPLES, CLIENTS, OF_ONE, ONE], record({"label": np.array([1])})), "lacks 'pixels'"),
        (
            database([EXAMPLES, CLIENTS, OF_ONE, ONE], record({"pixels": np.zeros(9), "label": np.array([1])})),
            "lacks 'pixels', or has it in another shape",
        ),
        (database([EXAMPLES, CLIENTS, OF_ONE, ONE], record({"pixels": b"a", "label": np.array([1])})), "another shape"),
    ],
)
def test_a_damaged_or_hostile_file_of_sqlite_is_refused(
    written: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    written(tmp_path / "emnist_all.sqlite")
    with pytest.raises(FedpingError, match=said):
        load_original("femnist", tmp_path, {})


def interior_page(child: int, cells: int = 300, size: int = 4096) -> bytes:
    """Return an interior page of an SQLite table whose children are all the same page."""
    first = size - 5 * cells
    head = b"\x05" + struct.pack(">HHHBI", 0, cells, first, 0, child)
    places = b"".join(struct.pack(">H", first + 5 * at) for at in range(cells))
    return (head + places).ljust(first, b"\0") + (struct.pack(">I", child) + b"\x01") * cells


def test_a_file_of_sqlite_whose_pages_are_read_again_and_again_is_given_up(tmp_path: Path) -> None:
    file = tmp_path / "emnist_all.sqlite"
    with contextlib.closing(sqlite3.connect(file)) as opened:
        opened.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        opened.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        opened.executemany("INSERT INTO client_metadata VALUES (?, 'all_train', 1)", [("f",)] * 1000)
        opened.commit()
        ((root,),) = opened.execute("SELECT rootpage FROM sqlite_master WHERE name = 'client_metadata'")
    data = bytearray(file.read_bytes())
    place = 4096 * (root - 1)
    assert data[place] == 5
    child = int.from_bytes(data[place + 8 : place + 12], "big")
    for _ in range(6):  # 300^7 leaves
        data += interior_page(child)
        child = len(data) // 4096
    data[place : place + 4096] = interior_page(child)
    data[28:32] = struct.pack(">I", child)
    file.write_bytes(data)
    with pytest.raises(FedpingError, match="more rows than its bytes can hold"):
        load_original("femnist", tmp_path, {})


def test_a_file_of_sqlite_is_not_changed_by_reading(tmp_path: Path) -> None:
    file = tmp_path / "emnist_all.sqlite"
    database([EXAMPLES, CLIENTS, OF_ONE, ONE, ONE.replace("train", "test")], GOOD)(file)
    before = file.read_bytes()
    assert len(load_original("femnist", tmp_path, {})) == 2
    assert file.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


# Records of TensorFlow


def test_a_record_has_the_values_that_it_was_made_with() -> None:
    whole = np.array([0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)])
    read = features_of(record({"a": whole, "b": np.array([0.5, -2], np.float32), "c": "é".encode()}))
    assert read["a"].tolist() == whole.tolist()  # type: ignore[union-attr]
    assert read["b"].tolist() == [0.5, -2.0]  # type: ignore[union-attr]
    assert read["c"] == ["é".encode()]


def test_a_record_reads_as_googles_library_writes_it() -> None:
    pool = pytest.importorskip("google.protobuf.descriptor_pool")
    from google.protobuf import descriptor_pb2, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, str, bool]) -> None:
        made = file.message_type.add(name=name)
        for called, number, kind, of, many in fields:
            label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
            added = made.field.add(name=called, number=number, type=kind, label=label)
            if of:
                added.type_name = of

    message("Bytes", ("value", 1, kinds.TYPE_BYTES, "", True))
    message("Floats", ("value", 1, kinds.TYPE_FLOAT, "", True))
    message("Whole", ("value", 1, kinds.TYPE_INT64, "", True))
    lists = [(("bytes", "Bytes"), 1), (("floats", "Floats"), 2), (("whole", "Whole"), 3)]
    message("Feature", *((name, at, kinds.TYPE_MESSAGE, f".t.{of}", False) for (name, of), at in lists))
    message("Entry", ("key", 1, kinds.TYPE_STRING, "", False), ("value", 2, kinds.TYPE_MESSAGE, ".t.Feature", False))
    message("Features", ("feature", 1, kinds.TYPE_MESSAGE, ".t.Entry", True))
    message("Example", ("features", 1, kinds.TYPE_MESSAGE, ".t.Features", False))
    own = pool.DescriptorPool()
    own.Add(file)
    made = message_factory.GetMessageClass(own.FindMessageTypeByName("t.Example"))()
    pixels = made.features.feature.add(key="pixels")
    pixels.value.floats.value.extend([0.25, 1.0])
    made.features.feature.add(key="label").value.whole.value.extend([7, -3])
    made.features.feature.add(key="text").value.bytes.value.append(b"to be")
    read = features_of(made.SerializeToString())
    assert read["pixels"].tolist() == [0.25, 1.0]  # type: ignore[union-attr]
    assert read["label"].tolist() == [7, -3]  # type: ignore[union-attr]
    assert read["text"] == [b"to be"]


def test_values_that_are_not_packed_are_read_too() -> None:
    whole = b"".join(varint(1 << 3) + varint(number) for number in (5, 300))
    single = b"".join(varint(1 << 3 | 5) + np.float32(number).tobytes() for number in (0.5, 2))
    entries = [field(1, b"a") + field(2, field(3, whole)), field(1, b"b") + field(2, field(2, single))]
    read = features_of(field(1, b"".join(field(1, each) for each in entries)))
    assert read["a"].tolist() == [5, 300]  # type: ignore[union-attr]
    assert read["b"].tolist() == [0.5, 2.0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (b"\x0a", "cut off"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "cut off"),
        (b"\xff" * 12, "cut off"),
        (b"\x0b", "unknown way"),
        (field(1, field(1, field(1, b"a"))), "0 lists of values"),
        (field(1, field(1, field(1, b"\xff") + field(2, field(1, b"")))), "not UTF-8"),
        (field(1, field(1, field(2, field(4, b"")))), "unknown kind"),
        (field(1, field(1, field(2, field(1, b"") + field(3, b"")))), "several kinds"),
        (field(1, field(1, field(2, field(2, field(1, b"123"))))), "cut off"),
        (field(1, field(1, field(2, field(3, field(1, b"\x80"))))), "cut off"),
        (field(1, field(1, field(2, field(3, field(1, b"\x80" * 11 + b"\x01"))))), "too many bytes"),
        (field(1, field(1, field(2, field(3, field(2, b""))))), "has a field 2"),
    ],
)
def test_an_odd_record_is_refused(odd: bytes, said: str) -> None:
    with pytest.raises(OddRecord, match=said):
        features_of(odd)


def test_every_beginning_of_a_record_is_read_or_refused() -> None:
    whole = record({"a": np.arange(200), "b": np.ones(3, np.float32), "c": b"text"})
    assert features_of(b"") == {}
    for end in range(1, len(whole)):
        with pytest.raises(OddRecord):
            features_of(whole[:end])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_changed_record_is_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(record({"a": np.arange(200), "b": np.ones(3, np.float32), "c": b"text"}))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(OddRecord):
        features_of(bytes(whole))
