"""A user's own table: the same from every format, with categories in a documented order and errors by column."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv, feather, parquet

from fedping.client_sim.data import ByKey, load_table, partition
from fedping.protocol.errors import FedpingError

PEOPLE = pa.table(
    {
        "age": pa.array([30, 41, 52, 63], pa.int32()),
        "town": ["Rome", "Bonn", "Rome", "Oslo"],
        "income": [1.5, 2.5, -3.0, 0.0],
        "owner": [True, False, True, True],
        "user": ["u2", "u1", "u2", "u3"],
        "bought": ["yes", "no", "no", "yes"],
    }
)
WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "t.csv": csv.write_csv,
    "t.parquet": parquet.write_table,
    "t.arrow": feather.write_feather,
    "t.feather": feather.write_feather,
}


@pytest.fixture
def people(tmp_path: Path) -> Path:
    parquet.write_table(PEOPLE, tmp_path / "people.parquet")
    return tmp_path / "people.parquet"


def written(folder: Path, text: str) -> Path:
    (folder / "t.csv").write_text(text)
    return folder / "t.csv"


@pytest.mark.parametrize("name", WRITERS)
def test_a_table_is_the_same_from_every_format(tmp_path: Path, name: str) -> None:
    WRITERS[name](PEOPLE, tmp_path / name)
    data = load_table(tmp_path / name, "bought", client="user")
    assert data.features == ("age", "town=Bonn", "town=Oslo", "town=Rome", "income", "owner")
    assert data.x.tolist() == [
        [30, 0, 0, 1, 1.5, 1],
        [41, 1, 0, 0, 2.5, 0],
        [52, 0, 0, 1, -3.0, 1],
        [63, 0, 1, 0, 0.0, 1],
    ]
    assert (data.target.name, data.target.classes, data.y.tolist()) == ("bought", ("no", "yes"), [1, 0, 0, 1])
    clients = partition(data, ByKey(), 0)
    assert clients.natural_keys is not None
    assert (clients.natural_keys.tolist(), clients.sizes.tolist()) == (["u1", "u2", "u3"], [1, 2, 1])


def test_compressed_and_divided_files_are_read_too(tmp_path: Path) -> None:
    with pa.output_stream(tmp_path / "t.csv.gz") as out:
        csv.write_csv(PEOPLE, out)
    (tmp_path / "parts").mkdir()
    parquet.write_table(PEOPLE.slice(0, 3), tmp_path / "parts/0.parquet")
    parquet.write_table(PEOPLE.slice(3), tmp_path / "parts/1.parquet")
    zipped, divided = (load_table(tmp_path / name, "income", ["age", "owner"]) for name in ("t.csv.gz", "parts"))
    assert zipped.x.tolist() == divided.x.tolist() == [[30, 1], [41, 0], [52, 1], [63, 1]]
    assert not zipped.target.is_class
    assert zipped.y.tolist() == [1.5, 2.5, -3.0, 0.0]


def test_features_come_in_the_order_in_which_they_are_named(people: Path) -> None:
    assert load_table(people, "bought", ["owner", "age"]).features == ("owner", "age")


def test_dictionaries_are_texts(tmp_path: Path) -> None:
    encoded = PEOPLE.set_column(1, "town", PEOPLE["town"].dictionary_encode())
    parquet.write_table(encoded, tmp_path / "t.parquet")
    assert load_table(tmp_path / "t.parquet", "age", ["town"]).features == ("town=Bonn", "town=Oslo", "town=Rome")


@pytest.mark.parametrize(
    ("column", "kind", "classes", "y"),
    [
        ("owner", None, ("false", "true"), [1, 0, 1, 1]),
        ("owner", "number", (), [1, 0, 1, 1]),
        ("age", None, (), [30, 41, 52, 63]),
        ("age", "class", ("30", "41", "52", "63"), [0, 1, 2, 3]),
        ("income", "class", ("-3", "0", "1.5", "2.5"), [2, 3, 0, 1]),
    ],
)
def test_a_target_is_a_class_or_a_number_as_it_is_said_to_be(
    people: Path, column: str, kind: str | None, classes: tuple[str, ...], y: list[int]
) -> None:
    data = load_table(people, column, ["town"], kind=kind)  # type: ignore[arg-type]
    assert (data.target.classes, data.y.tolist()) == (classes, y)


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.sampled_from(["a", "b b", "ü"])), min_size=1, max_size=20))
def test_every_number_and_category_comes_back(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:  # type: ignore[type-arg]
    file = tmp_path_factory.mktemp("t") / "t.parquet"
    numbers, texts = [number for number, _ in rows], [text for _, text in rows]
    parquet.write_table(pa.table({"text": texts, "number": numbers, "y": numbers}), file)
    data = load_table(file, "y")
    assert data.x[:, -1].tolist() == data.y.tolist() == numbers
    named = [data.features[position].removeprefix("text=") for position in data.x[:, :-1].argmax(axis=1)]
    assert named == texts
    assert (data.x[:, :-1].sum(axis=1) == 1).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,y\n", "has no rows"),
        ("a,b\n1,2\n", "has no column 'y'; it has a, b"),
        ("a,a,y\n1,1,2\n", "has several columns 'a'"),
        ("y\n1\n", "no column beside y to predict from"),
        ("a,y\n1,2\n,3\n", "row 2 of the column 'a' is missing, one of 1"),
        ("a,y\nx,2\n,3\nNA,4\n", "row 2 of the column 'a' is missing, one of 2"),
        ("a,y\n1.0,2\ninf,3\n", "row 2 of the column 'a' is inf"),
        ("a,y\n2020-01-01,1\n", "'a' is of type date32.* not a number"),
        ("a,y\n1,yes\n2,yes\n", "'y' is 'yes' in every row"),
        ("a,y\n1,2\n3\n", r"row 2 of .*t.csv has another number of columns \(1\) than the row of names \(2\); leave"),
        ("a,y\n1,2\nx,3\n2,4\n", "t.csv: row 2 of the column 'a' is 'x', but most of its rows are numbers"),
    ],
)
def test_what_is_wrong_with_a_table_is_told_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FedpingError, match=said) as error:
        load_table(written(tmp_path, text), "y")
    assert "\n" not in str(error.value)


def test_a_text_that_reads_like_nothing_stands_in_quotes(tmp_path: Path) -> None:
    file = written(tmp_path, 'country,y\n"NA",1\n"DE",2\n')
    assert load_table(file, "y").features == ("country=DE", "country=NA")


def test_not_a_number_in_a_parquet_file_is_told_too(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": [1.0, 2.0, np.nan], "y": [1, 2, 3]}), tmp_path / "t.parquet")
    with pytest.raises(FedpingError, match="row 3 of the column 'a' is nan"):
        load_table(tmp_path / "t.parquet", "y")


def test_identifiers_are_not_taken_for_categories(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [f"u{i}" for i in range(1001)], "y": range(1001)}), tmp_path / "t.parquet")
    with pytest.raises(FedpingError, match="'id' has 1001 different texts"):
        load_table(tmp_path / "t.parquet", "y")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "nothing"}, "no column 'nothing'"),
        ({"target": "age", "client": "nobody"}, "no column 'nobody'"),
        ({"target": "age", "features": ["age", "income"]}, "have the target 'age' or a column twice"),
        ({"target": "age", "features": ["income", "income"]}, "a column twice"),
        ({"target": "bought", "kind": "number"}, "'bought' is of type .*string, which is not a number"),
    ],
)
def test_columns_that_cannot_be_meant_are_refused(people: Path, options: dict, said: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(FedpingError, match=said):
        load_table(people, **options)


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(FedpingError, match="there is no file"):
        load_table(tmp_path / "nowhere.csv", "y")
    (tmp_path / "t.xlsx").write_text("")
    with pytest.raises(FedpingError, match=r"ends in none of \.csv"):
        load_table(tmp_path / "t.xlsx", "y")
    (tmp_path / "t.parquet").write_text("a,y\n")
    with pytest.raises(FedpingError, match="cannot be read as what its name says"):
        load_table(tmp_path / "t.parquet", "y")


@pytest.mark.parametrize(
    ("one", "two"),
    [("007", "7"), ("07", "7"), ("1e3", "1000"), ("1.0", "1"), ("true", "True"), ("250.00", "250.0"), ("0.0", "0")],
)
@pytest.mark.parametrize("column", ["client", "label", "choice"])
def test_two_spellings_of_one_value_are_not_one_name(tmp_path: Path, column: str, one: str, two: str) -> None:
    other = "false" if "true" in one else "3"
    cells = [one, two, other, other]
    file = written(tmp_path, "a,y,of\n" + "".join(f"{row},{row % 2},{cell}\n" for row, cell in enumerate(cells)))
    options: dict[str, Any] = {"kind": "class"} if column == "label" else {column: "of"}
    with pytest.raises(FedpingError, match=f"'of' has '{one}' in row 1 and '{two}' in row 2"):
        load_table(file, "of" if column == "label" else "y", ["a"], **options)
    typed = pa.table({"a": range(4), "y": [0, 1, 0, 1], "of": cells})
    parquet.write_table(typed, tmp_path / "t.parquet")
    names = (one, two, other)
    assert sorted(load_table(tmp_path / "t.parquet", "of", ["a"]).target.classes) == sorted(names)
    keyed = load_table(tmp_path / "t.parquet", "y", ["a"], client="of").key
    assert keyed is not None
    assert keyed.tolist() == cells


def test_ids_that_no_float_holds_stay_apart(tmp_path: Path) -> None:
    ids = ["90071992547409930000", "90071992547409930001", "5"]
    file = written(tmp_path, "a,y,of\n" + "".join(f"{row},{row},{cell}\n" for row, cell in enumerate(ids)))
    key = load_table(file, "y", ["a"], client="of").key
    assert key is not None
    assert key.tolist() == ids
    labelled = load_table(file, "of", ["a"], kind="class")
    assert (labelled.target.classes, labelled.y.tolist()) == (("5", *ids[:2]), [1, 2, 0])
    near = pa.table({"a": [0, 1], "of": pa.array([2**53, 2**53 + 1], pa.int64())})
    parquet.write_table(near, tmp_path / "t.parquet")
    labelled = load_table(tmp_path / "t.parquet", "of", kind="class")
    assert (labelled.target.classes, labelled.y.tolist()) == (("9007199254740992", "9007199254740993"), [0, 1])


def test_names_that_are_numbers_keep_their_order_and_classes_their_texts(tmp_path: Path) -> None:
    file = written(tmp_path, "a,y,of\n1,10.0,010\n2,9.0,9\n3, 250.1,9\n")
    data = load_table(file, "y", ["a"], client="of", kind="class")
    assert (data.target.classes, data.y.tolist()) == (("9.0", "10.0", "250.1"), [1, 0, 2])
    assert data.key is not None
    assert data.key.tolist() == [10, 9, 9]


@pytest.mark.parametrize("far", [3, 2_000_000_000])
def test_a_file_of_arrow_whose_texts_lie_elsewhere_in_memory_is_refused(far: int, tmp_path: Path) -> None:
    texts = ["abc", "def"] * 100
    feather.write_feather(
        pa.table({"s": texts, "y": [0.5] * 200}), str(tmp_path / "t.arrow"), compression="uncompressed"
    )
    offsets = np.arange(0, 603, 3, dtype="<i4")
    written = (tmp_path / "t.arrow").read_bytes()
    assert written.count(offsets.tobytes()) == 1
    (tmp_path / "t.arrow").write_bytes(written.replace(offsets.tobytes(), (offsets + far).tobytes()))
    with pytest.raises(FedpingError, match="cannot be read as what its name says that it is: Column 0"):
        load_table(tmp_path / "t.arrow", "y")
