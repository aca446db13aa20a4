"""Data sets in their authors' files: valid and rejected files."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedping.client_sim.data import ORIGINALS, ByKey, load, load_original, partition
from fedping.client_sim.data.originals import is_downloaded, reading
from fedping.client_sim.data.originals.leaf import LETTERS
from fedping.client_sim.data.originals.plain_pickle import OddPickle, loads
from fedping.protocol.errors import FedpingError, InvalidSettings
from tests.support.original_files import cifar_10, cifar_100, leaf, pickled, picture, pictures


def test_femnist_is_read_by_writer_from_both_of_leafs_parts(tmp_path: Path) -> None:
    leaf({"f01": ([picture(1), picture(2)], [0, 35]), "f02": ([picture(3)], [36])}, tmp_path / "data/train/a.json")
    leaf({"f02": ([picture(4)], [61]), "f01": ([picture(5)], [10])}, tmp_path / "data/test/a.json")
    table = load_original("femnist", tmp_path, {})
    assert table.x.shape == (5, 784)
    assert table.x == pytest.approx(np.array([picture(seed) for seed in (1, 2, 5, 3, 4)]), abs=1e-7)
    assert table.y.tolist() == [0, 35, 10, 36, 61]
    assert table.target.classes[0] + table.target.classes[10] + table.target.classes[36] == "0Aa"
    assert table.features[29] == "pixel_1_1"
    assert table.key is not None
    assert table.key.tolist() == ["f01", "f01", "f01", "f02", "f02"]
    clients = partition(table, ByKey(), seed=1).of(table)
    assert clients.natural_keys is not None
    assert clients.natural_keys.tolist() == ["f01", "f02"]
    assert clients.sizes.tolist() == [3, 2]


def test_the_first_users_are_read_where_a_number_is_given(tmp_path: Path) -> None:
    leaf({f"f{number}": ([picture(number)], [number]) for number in range(3)}, tmp_path / "1.json")
    leaf({"f3": ([picture(3)], [3]), "f0": ([picture(4)], [4])}, tmp_path / "2.json")
    table = load_original("femnist", tmp_path, {"users": 2})
    assert table.key is not None
    assert table.key.tolist() == ["f0", "f0", "f1"]
    assert table.y.tolist() == [0, 4, 1]


def test_shakespeare_is_read_by_role_as_numbers_of_leafs_characters(tmp_path: Path) -> None:
    leaf({"HAMLET": (["To be", "o bé,"], [",", "\n"]), "OPHELIA": (["Good "], ["m"])}, tmp_path / "all_data/all.json")
    table = load_original("shakespeare", tmp_path, {})
    assert ["".join(LETTERS[int(number)] for number in row) for row in table.x] == ["To be", "o b ,", "Good "]
    assert [table.target.classes[number] for number in table.y] == [",", "\n", "m"]
    assert len(table.target.classes) == 80
    assert table.key is not None
    assert table.key.tolist() == ["HAMLET", "HAMLET", "OPHELIA"]


GOOD = {"users": ["f"], "num_samples": [1], "user_data": {"f": {"x": [[0.0] * 784], "y": [1]}}}


@pytest.mark.parametrize(
    ("name", "document", "said"),
    [
        ("femnist", '{"users": ["f"]', "damaged, or not of this data set"),
        ("femnist", '{"x":' + "[" * 100_000, "maximum recursion depth"),
        ("femnist", "[]", "Expected `object`, got `array`"),
        ("femnist", "\udcff", "damaged"),
        ("femnist", {**GOOD, "num_samples": []}, "1 'users' and 0 'num_samples'"),
        ("femnist", {**GOOD, "num_samples": [2]}, "1 x, 1 y and 2 in 'num_samples'"),
        ("femnist", {**GOOD, "users": ["f"] * 2, "num_samples": [1] * 2}, "'users' names one twice"),
        ("femnist", {**GOOD, "user_data": {}}, "lacks the user 'f'"),
        ("femnist", {**GOOD, "user_data": {"f": {"x": [[0.0]], "y": [1]}}}, "has 1 pixels, not 784"),
        ("femnist", {**GOOD, "user_data": {"f": {"x": [[0.0] * 784], "y": [62]}}}, "class 62; classes are 0 to 61"),
        (
            "femnist",
            {**GOOD, "user_data": {"f": {"x": [[1e300] * 784], "y": [6]}}},
            "pixel of the user 'f' is too large",
        ),
        ("femnist", {**GOOD, "user_data": {"f": {"x": ["text"], "y": [6]}}}, r"\$\[...\]|Expected `array`"),
        ("femnist", {"users": [], "num_samples": [], "user_data": {}}, "no examples"),
        ("shakespeare", GOOD, "Expected `str`, got `array`"),
        ("shakespeare", {**GOOD, "user_data": {"f": {"x": [""], "y": ["a"]}}}, "0 to 0 characters"),
        ("shakespeare", {**GOOD, "user_data": {"f": {"x": ["ab"], "y": ["ab"]}}}, "not single characters"),
    ],
)
def test_a_damaged_file_of_leaf_is_refused_with_what_is_wrong(
    name: str, document: Any, said: str, tmp_path: Path
) -> None:
    import json

    text = document if isinstance(document, str) else json.dumps(document)
    (tmp_path / "all.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FedpingError, match=said):
        load_original(name, tmp_path, {})


def test_sequences_of_two_lengths_are_refused(tmp_path: Path) -> None:
    leaf({"a": (["ab"], ["c"]), "b": (["abc"], ["c"])}, tmp_path / "all.json")
    with pytest.raises(FedpingError, match="2 features, and those of the user 'b' 3"):
        load_original("shakespeare", tmp_path, {})


def test_too_many_numbers_and_bytes_are_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaf({f"f{number}": ([picture(number)], [number]) for number in range(4)}, tmp_path / "1.json")
    monkeypatch.setattr(reading, "MOST_NUMBERS", 3 * 784)
    with pytest.raises(FedpingError, match=r"after 3 users. Set settings = \{ users = 1 \}"):
        load_original("femnist", tmp_path, {})
    assert len(load_original("femnist", tmp_path, {"users": 3})) == 3
    monkeypatch.setattr(reading, "MOST_BYTES", 100)
    with pytest.raises(FedpingError, match=r"the maximum is 100\. Split it"):
        load_original("femnist", tmp_path, {})


LABELS = [[0, 1], [2], [3], [4], [5], [6, 9]]


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("archive", [".", "of the version"])
def test_cifar_10_is_read_from_both_versions(binary: bool, archive: str, tmp_path: Path) -> None:
    inside = "." if archive == "." else "cifar-10-batches-bin" if binary else "cifar-10-batches-py"
    cifar_10(tmp_path / inside, LABELS, binary=binary)
    table = load_original("cifar-10", tmp_path, {})
    assert table.x.shape == (8, 3072)
    assert table.y.tolist() == [0, 1, 2, 3, 4, 5, 6, 9]
    assert table.target.classes[9] == "truck"
    assert table.key is None
    second = pictures(2, 0)[1]
    pixel = table.features.index("pixel_3_5_g")
    assert table.x[1, pixel] == second[1024 + 3 * 32 + 5]
    blue = table.features.index("pixel_31_31_b")
    assert table.x[7, blue] == pictures(2, 5)[1, 3071]


@pytest.mark.parametrize("binary", [False, True])
def test_cifar_100_has_the_superclass_as_its_key(binary: bool, tmp_path: Path) -> None:
    cifar_100(tmp_path, [([19, 0], [99, 3]), ([7], [50])], binary=binary)
    table = load_original("cifar-100", tmp_path, {})
    assert table.y.tolist() == [99, 3, 50]
    assert [table.target.classes[number] for number in table.y] == ["fine99", "fine3", "fine50"]
    assert table.key is not None
    assert table.key.tolist() == ["coarse19", "coarse0", "coarse7"]
    assert table.x[2, 2] == pictures(1, 1)[0, 2048]


@pytest.mark.parametrize("binary", [False, True])
def test_without_their_names_the_classes_are_numbers(binary: bool, tmp_path: Path) -> None:
    cifar_100(tmp_path, [([19], [99]), ([7], [50])], binary=binary)
    for name in ("meta", "fine_label_names.txt", "coarse_label_names.txt"):
        (tmp_path / name).unlink(missing_ok=True)
    table = load_original("cifar-100", tmp_path, {})
    assert table.key is not None
    assert (table.target.classes[99], table.key.tolist()) == ("99", ["19", "7"])


def batch(**changes: Any) -> dict[bytes, Any]:
    plain = {"labels": [1, 2], "data": pictures(2, 0)}
    return {key.encode(): value for key, value in (plain | changes).items()}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"", "no whole pickle"),
        (pickled(batch())[:-9], "no whole pickle"),
        (pickled([1]), "no dictionary"),
        (pickled({}), "'data' is no array of bytes"),
        (pickled(batch(data=[1])), "'data' is no array of bytes"),
        (pickled(batch(data=np.zeros((2, 3072)))), "'data' is no array of bytes"),
        (pickled(batch(data=pictures(2, 0)[:, :5].copy())), "'data' is no array of bytes"),
        (pickled(batch(labels=[1])), "2 pictures and 1 classes"),
        (pickled(batch(labels=[1, 10])), "class 10; classes are 0 to 9"),
        (pickled(batch(labels=[1, -1])), "'labels' is no list of classes"),
        (pickled(batch(labels=[1, b"a"])), "'labels' is no list of classes"),
        (pickle.dumps(batch(labels=Path("x"))), "names pathlib"),
    ],
)
def test_a_damaged_batch_is_refused_with_what_is_wrong(written: bytes, said: str, tmp_path: Path) -> None:
    cifar_10(tmp_path, LABELS, binary=False)
    (tmp_path / "data_batch_3").write_bytes(written)
    with pytest.raises(FedpingError, match=rf"data_batch_3 is damaged.*{said}"):
        load_original("cifar-10", tmp_path, {})


def test_a_cut_off_binary_file_is_refused(tmp_path: Path) -> None:
    cifar_10(tmp_path, LABELS, binary=True)
    file = tmp_path / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(FedpingError, match="3,072 bytes are no multiple of the 3,073 of a picture"):
        load_original("cifar-10", tmp_path, {})


def test_missing_batches_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FedpingError, match=r"neither data_batch_1 nor data_batch_1.bin"):
        load_original("cifar-10", tmp_path, {})
    cifar_10(tmp_path, LABELS, binary=False)
    (tmp_path / "data_batch_2").unlink()
    with pytest.raises(FedpingError, match="lacks data_batch_2"):
        load_original("cifar-10", tmp_path, {})
    with pytest.raises(FedpingError, match=r"has no file \*.json"):
        load_original("femnist", tmp_path, {})
    with pytest.raises(FedpingError, match="is no folder"):
        load_original("femnist", tmp_path / "none", {})


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_values_and_arrays_are_read_whatever_the_protocol(protocol: int) -> None:
    value = {"a": np.arange(6, dtype=">i4").reshape(2, 3), "b": [1, 2.5, None, True], "c": np.arange(3.0)}
    if protocol == 2:
        read = loads(pickled(value))
    else:
        read = loads(pickle.dumps(value, protocol)) if protocol < 5 else loads(pickle.dumps(value, 4))
    assert read["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read["c"].tolist() == [0, 1, 2]
    assert read["b"] == [1, 2.5, None, True]


class Hostile:
    """An object whose pickle would write a file when loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_no_class_and_no_other_instruction_of_a_pickle_runs(tmp_path: Path) -> None:
    file = tmp_path / "written"
    for protocol in range(6):
        with pytest.raises(OddPickle):
            loads(pickle.dumps({"a": Hostile(file)}, protocol))
    assert not file.exists()
    with pytest.raises(OddPickle, match=r"names builtins.eval|names __builtin__.eval"):
        loads(b"\x80\x02cbuiltins\neval\nU\x031+1\x85R.")
    with pytest.raises(OddPickle, match="array of 'O"):
        loads(pickled(np.array([None, 1])))
    with pytest.raises(OddPickle, match="out of order"):
        loads(b"\x80\x02Nr\xff\xff\xff\x7f.")
    with pytest.raises(OddPickle, match="more than 24 tuples"):
        loads(b"\x80\x02})" + b"2\x86" * 60 + b"K\x01s.")  # a key that would take 2^60 steps to hash
    with pytest.raises(OddPickle, match="keys are not texts"):
        loads(b"\x80\x02N" + b"2\x86" * 24 + b"q\x000}" + b"h\x00Ns" * 10_000 + b".")  # each takes 2^24 steps
    for keys in (b"}K\x01Ns.", b"}(K\x01Nu.", b"(K\x01Nd."):
        with pytest.raises(OddPickle, match="keys are not texts"):
            loads(b"\x80\x02" + keys)
    with pytest.raises(OddPickle, match="other than a text where an array has one"):
        loads(b"\x80\x02cnumpy\ndtype\n]q\x00" + b"0]h\x00ah\x00aq\x00" * 60 + b"\x85R.")  # 2^60 brackets
    with pytest.raises(OddPickle, match="a state to something other than an array"):
        loads(b"\x80\x02cnumpy\ndtype\n}U\x04doneNsb.")
    with pytest.raises(OddPickle, match="instruction EXT1"):
        loads(b"\x80\x02\x82\x01.")
    with pytest.raises(OddPickle, match="bytes for an array of shape"):
        loads(pickled(np.arange(4, dtype=np.uint8)).replace(b"K\x04\x85", b"K\xff\x85"))


def test_settings_and_names_are_checked() -> None:
    with pytest.raises(InvalidSettings, match="'users'"):
        load_original("femnist", Path(), {"users": 0})
    with pytest.raises(InvalidSettings, match=r"cifar-10.*'users'"):
        load_original("cifar-10", Path(), {"users": 1})
    with pytest.raises(
        InvalidSettings, match=r"no data set 'digits' is read from a folder. Choose breast-cancer-original, cifar-10"
    ):
        load_original("digits", Path(), {})
    for name in (each for each in ORIGINALS if not is_downloaded(each)):
        with pytest.raises(InvalidSettings, match="Set 'folder' in"):
            load(name)
