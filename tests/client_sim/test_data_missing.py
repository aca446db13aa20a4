"""Missing values, which are filled, dropped or rejected, and missing modules."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet
from sklearn.impute import SimpleImputer

from fedping.client_sim.data import (
    ExampleData,
    Module,
    Target,
    example_data,
    filling,
    indicators,
    load_original,
    load_table,
    of_clients,
    partition,
    table,
)
from fedping.client_sim.data.federated import client_value_sums
from fedping.client_sim.data.missing import with_modules, without_gaps
from fedping.client_sim.data.originals.wisconsin import CELLS
from fedping.client_sim.data.partition import Topics
from fedping.protocol.errors import FedpingError, InvalidSettings

NAN = np.nan


def gappy(rows: int = 60, sizes: tuple[int, ...] = (10, 0, 20, 30)) -> ExampleData:
    random = np.random.default_rng(5)
    x = random.normal(size=(rows, 3))
    x[random.random(rows) < 0.3, 1] = NAN
    x[0, 2] = NAN
    return example_data_of(x, np.arange(rows) % 2, sizes)


def example_data_of(x: NDArray[np.float64], y: NDArray[np.int64], sizes: tuple[int, ...]) -> ExampleData:
    return of_clients(table(x, y, target=Target("y", ("no", "yes")), gaps=True), np.array(sizes))


def test_a_file_keeps_its_gaps_where_they_are_allowed(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("age,town,rich,y\n30,Rome,true,1\n,Bonn,,2\n50,,false,3\nNA,Rome,true,4\n")
    with pytest.raises(FedpingError, match="row 2 of the column 'age' is missing, one of 2"):
        load_table(file, "y")
    read = load_table(file, "y", gaps=True)
    assert read.gaps
    assert read.features == ("age", "town=Bonn", "town=Rome", "rich")
    expected = [[30, 0, 1, 1], [NAN, 1, 0, NAN], [50, NAN, NAN, 0], [NAN, 0, 1, 1]]
    np.testing.assert_array_equal(read.x, expected)


def test_the_marks_of_missing_values_are_gaps_unless_in_quotes(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text('a,t,y\n1,x,1\n?,"?",2\nNA,x,3\nNaN,x,4\nnull,x,5\n,?,6\n')
    read = load_table(file, "y", gaps=True)
    np.testing.assert_array_equal(read.x[:, 0], [1, *5 * [NAN]])
    assert read.features == ("a", "t=?", "t=x")
    np.testing.assert_array_equal(read.x[:, 1], [0, 1, 0, 0, 0, NAN])
    with pytest.raises(FedpingError, match="row 2 of the column 'a' is missing, one of 5"):
        load_table(file, "y")


def test_nan_of_a_parquet_file_is_missing_but_infinity_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"a": [1.0, NAN, 3.0], "whole": [1, None, 2**53], "y": [1.0, 2.0, 3.0]}), file)
    np.testing.assert_array_equal(load_table(file, "y", gaps=True).x, [[1, 1], [NAN, NAN], [3, 2**53]])
    parquet.write_table(pa.table({"a": [1.0, np.inf], "y": [1.0, 2.0]}), file)
    with pytest.raises(FedpingError, match="row 2 of the column 'a' is inf"):
        load_table(file, "y", gaps=True)


def test_a_file_without_gaps_has_none(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,y\n1,1\n2,2\n")
    assert not load_table(file, "y", gaps=True).gaps


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,who,y\n1,,u,1\n2,,u,2\n", "the column 'b' is missing in every row; leave it out"),
        ("a,b,who,y\n1,2,u,\n2,3,u,2\n", "row 1 of the column 'y' is missing"),
        ("a,b,who,y\n1,2,,1\n2,3,u,2\n", "row 1 of the column 'who' is missing"),
        ("a,b,who,y\n1,2,u,1\n2,,u,2\n3,x,u,2\n4,5,u,2\n", "row 3 of the column 'b' is 'x', but most"),
    ],
)
def test_gaps_are_for_features_with_some_values(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(FedpingError, match=said):
        load_table(tmp_path / "t.csv", "y", client="who", gaps=True)


def test_a_column_of_nan_alone_is_missing_in_every_row(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": [NAN, NAN], "y": [1.0, 2.0]}), tmp_path / "t.parquet")
    with pytest.raises(FedpingError, match="'a' is missing in every row"):
        load_table(tmp_path / "t.parquet", "y", gaps=True)


def test_a_table_refuses_nan_unless_it_says_that_it_has_gaps() -> None:
    with pytest.raises(FedpingError, match="not finite"):
        table([[1.0], [NAN]], [1, 2])
    with pytest.raises(FedpingError, match="not finite"):
        table([[1.0], [np.inf]], [1, 2], gaps=True)
    assert table([[1.0], [NAN]], [1, 2], gaps=True).rows(np.array([True, False])).gaps


def test_the_mean_over_clients_is_that_of_the_pooled_rows() -> None:
    data = gappy()
    counts, sums = client_value_sums(data)
    assert counts.shape == sums.shape == (4, 3)
    assert counts[1].tolist() == [0, 0, 0]
    pooled = SimpleImputer(add_indicator=True).fit(data.x)
    filled = filling(data).of(data)
    marks = indicators(data)
    assert not filled.gaps
    assert marks.names == ("x1", "x2")
    both = marks.added(filled, marks.of(data))
    assert both.features == ("x0", "x1", "x2", "x1 is missing", "x2 is missing")
    np.testing.assert_allclose(both.x, pooled.transform(data.x), rtol=1e-12, atol=1e-12)


def test_a_missing_text_has_one_indicator_and_is_the_share_of_each_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("town,y\nRome,1\n,2\nBonn,3\nRome,4\n")
    read = load_table(tmp_path / "t.csv", "y", gaps=True)
    data = example_data(np.zeros((4, 2)), read.y, (2, 2))
    data = replace(data, x=read.x, features=read.features, gaps=True)
    assert indicators(data).names == ("town",)
    np.testing.assert_allclose(filling(data).of(data).x[1], [1 / 3, 2 / 3])


def test_a_feature_that_no_client_has_is_refused() -> None:
    data = example_data_of(np.array([[1.0, NAN], [2.0, NAN]]), np.array([0, 1]), (1, 1))
    with pytest.raises(FedpingError, match="'x1' is missing in all training examples of all clients"):
        filling(data)


def test_rows_with_gaps_are_dropped_and_counted() -> None:
    data = gappy()
    kept, notes = without_gaps(data)
    assert len(kept.y) == int((~np.isnan(data.x).any(axis=1)).sum())
    assert np.isfinite(kept.x).all()
    assert not kept.gaps
    assert len(kept) == 4
    missing = int(np.isnan(data.x[:, 1]).sum())
    assert notes[0].startswith(f"dropped {60 - len(kept.y)} of 60 examples with missing values (x1 {missing}, x2 1)")
    one = example_data_of(np.array([[1.0, NAN], [2.0, 3.0]]), np.array([0, 1]), (1, 1))
    assert without_gaps(one)[1][0].endswith("1 of 2 clients have none left")
    with pytest.raises(FedpingError, match="drops every one of 1 examples"):
        without_gaps(one.only(np.array([True, False])))


@pytest.mark.parametrize("of", ["records", "clients"])
def test_a_module_is_missing_for_the_share_that_was_asked(of: str) -> None:
    data = example_data(np.ones((100, 4)), np.zeros(100), np.full(20, 5))
    module = Module(features=("x1", "x[23]"), missing=0.46, of=of)  # type: ignore[arg-type]
    lost, notes = with_modules(data, [module], seed=3)
    gaps = np.isnan(lost.x)
    assert not gaps[:, 0].any()
    assert (gaps[:, 1:] == gaps[:, 1:2]).all()
    by_client = gaps[:, 1].reshape(20, 5)
    if of == "clients":
        assert by_client.all(axis=1).sum() == 9
        assert by_client.any(axis=1).sum() == 9
        assert notes == ["9 of 20 clients lack the module x1, x[23], drawn by the seed"]
    else:
        assert gaps[:, 1].sum() == 46
    again, other = (with_modules(data, [module], seed=seed)[0].x for seed in (3, 4))
    np.testing.assert_array_equal(lost.x, again)
    assert (np.isnan(other) != gaps).any()
    assert np.isfinite(data.x).all()


def test_records_with_and_without_a_module_are_two_data_sets() -> None:
    data = example_data_of(
        np.array([[1, 2, 3], [4, NAN, NAN], [5, NAN, 6], [7, 8, 9.0]]), np.array([0, 1, 0, 1]), (2, 2)
    )
    has, _ = with_modules(data, [Module(features=("x1", "x2"), only="with")], seed=1)
    lacks, notes = with_modules(data, [Module(features=("x1", "x2"), only="without")], seed=1)
    assert has.x[:, 0].tolist() == [1, 5, 7]
    assert has.gaps
    assert has.features == ("x0", "x1", "x2")
    assert lacks.x.tolist() == [[4]]
    assert lacks.features == ("x0",)
    assert not lacks.gaps
    assert lacks.sizes.tolist() == [1, 0]
    assert notes == ["1 of 4 records lack the module x1, x2, and only they take part"]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Module(features=("balance",), missing=0.5), "no feature is 'balance'. There are x0, x1, x2"),
        (Module(features=("x*",), missing=0.5), "has every feature"),
        (Module(features=("x0",), only="without"), "no record is without the module x0"),
    ],
)
def test_a_module_that_cannot_be_is_refused(module: Module, said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        with_modules(gappy(), [module], seed=1)


def test_a_partition_by_features_needs_all_of_them() -> None:
    data = gappy().as_table()
    with pytest.raises(FedpingError, match="'topics' goes by features, and some of them are missing"):
        partition(data, Topics(clients=3, components=2), 1)


ORIGINAL = b"""1000025,5,1,1,1,2,1,3,1,1,2
1057013,8,4,5,1,2,?,7,3,1,4
1096800,6,6,6,9,6,?,7,8,1,2
63375,9,1,2,6,4,10,7,7,2,4
"""


def test_the_original_wisconsin_table_is_read_with_its_gaps(tmp_path: Path) -> None:
    (tmp_path / "breast-cancer-wisconsin.data").write_bytes(ORIGINAL)
    read = load_original("breast-cancer-original", tmp_path, {})
    assert read.features == CELLS
    assert read.gaps
    assert np.isnan(read.x[:, CELLS.index("bare_nuclei")]).tolist() == [False, True, True, False]
    assert int(np.isnan(read.x).sum()) == 2
    assert read.x[3].tolist() == [9, 1, 2, 6, 4, 10, 7, 7, 2]
    assert [read.target.classes[number] for number in read.y] == ["benign", "malignant", "benign", "malignant"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "it has no samples"),
        (b"1,5,1,1,1,2,1,3,1,2\n", "line 1 isn't a sample's number, 9 grades"),
        (b"1,5,1,1,1,2,1,3,1,1,3\n", "line 1 isn't a sample's number, 9 grades, and 2 or 4"),
        (b"\n1,5,1,1,1,2,11,3,1,1,2\n", "line 2 has a grade that is neither from 1 to 10"),
        (b"1,5,1,1,1,2,-1,3,1,1,2\n", "line 1 has a grade"),
    ],
)
def test_another_file_is_not_taken_for_the_wisconsin_table(text: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "breast-cancer-wisconsin.data").write_bytes(text)
    with pytest.raises(FedpingError, match=said):
        load_original("breast-cancer-original", tmp_path, {})
    with pytest.raises(FedpingError, match=r"has no file breast-cancer-wisconsin\.data\. Download it from UCI"):
        load_original("breast-cancer-original", tmp_path / "..", {})
