"""An institution's table: read by the agreed columns, compared with the model, and rejected in a sentence."""

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis.extra.numpy import arrays
from msgspec.structs import replace
from pyarrow import parquet

from fedping.client_sim.joining.columns import AgreedColumns, Feature, as_toml, check_spec, read_columns, scaled
from fedping.client_sim.joining.examples import OwnTable, Wanted, read_examples, wanted_by
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.registry import learner_for, model_spec
from fedping.protocol.errors import FedpingError, InvalidSettings

TWO = Wanted("the model 'm'", 2, predicts=True, classes=2)
NUMBER = Wanted("the model 'm'", 2, predicts=True)
GROUPS = Wanted("the model 'm'", 2, predicts=False)
AGREED = AgreedColumns(
    label="y",
    classes=("sick", "well"),
    features=(Feature(name="b", mean=10.0, deviation=2.0), Feature(name="a")),
)


def csv(folder: Path, text: str) -> Path:
    path = folder / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_agreed_columns_have_their_order_their_scale_and_their_classes(tmp_path: Path) -> None:
    rows = read_examples(csv(tmp_path, "a,other,y,b\n1,x,well,12\n2,x,well,10\n"), None, AGREED, TWO)
    assert rows.x.tolist() == [[1.0, 1.0], [0.0, 2.0]]
    assert rows.y.tolist() == [1, 1]  # although no row is of class 0
    assert rows.features == ("b", "a")


def test_categories_become_a_feature_each_also_where_a_table_has_one_of_them(tmp_path: Path) -> None:
    agreed = AgreedColumns(label="y", features=(Feature(name="ward", categories=("south", "north")),))
    rows = read_examples(csv(tmp_path, "ward,y\nnorth,0\nnorth,1\n"), None, agreed, TWO)
    assert rows.x.tolist() == [[0.0, 1.0], [0.0, 1.0]]
    with pytest.raises(FedpingError, match=r"row 1 of the column 'ward' has none of the agreed values \(south, no"):
        read_examples(csv(tmp_path, "ward,y\nwest,0\n"), None, agreed, TWO)


@pytest.mark.parametrize(
    ("label", "numbers"),
    [
        ("0,1,1", [0, 1, 1]),
        ("1,1,1", [1, 1, 1]),
        ("no,yes,no", [0, 1, 0]),
        ("true,true,true", [1, 1, 1]),
    ],
)
def test_classes_that_nobody_named_are_numbers_or_all_there(tmp_path: Path, label: str, numbers: list[int]) -> None:
    rows = "".join(f"1,2,{value}\n" for value in label.split(","))
    assert read_examples(csv(tmp_path, f"a,b,y\n{rows}"), "y", None, TWO).y.tolist() == numbers


def test_other_files_and_other_models(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"a": [1, 2], "b": [0.5, 0.25], "y": [3.5, 4.5]}), path)
    rows = read_examples(path, "y", None, NUMBER)
    assert (rows.x.tolist(), rows.y.tolist()) == ([[1.0, 0.5], [2.0, 0.25]], [3.5, 4.5])
    assert read_examples(csv(tmp_path, "a,b\n1,2\n"), None, None, GROUPS).x.tolist() == [[1.0, 2.0]]
    assert read_examples(csv(tmp_path, "a,y,b\n1,s,2\n"), "y", None, GROUPS).x.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("text", "label", "wanted", "says"),
    [
        ("a,b,c,y\n1,2,3,0\n", "y", TWO, "has 3 columns beside 'y', and the model 'm' has 2 features; name those"),
        ("a,b,y\n1,2,0\n", "z", TWO, "has no column 'z'; it has a, b, y"),
        ("a,a,y\n1,2,0\n", "y", TWO, "has 2 columns of the name 'a'; rename or remove all but one"),
        ("a,b,y\n", "y", TWO, "has no rows; there is nothing to learn from"),
        ("a,b,y\n1,,0\n", "y", TWO, "row 1 of the column 'b' is missing"),
        ("a,b,y\n1,nan,0\n", "y", TWO, "row 1 of the column 'b' is"),
        ("a,b,y\n1,x,0\n", "y", TWO, "the column 'b' has texts, which every institution would number in its own way"),
        ("a,b,y\n1,2,0\n1,2,7\n3,4,8\n", "y", TWO, "has 3 classes, and the model 'm' predicts 2; name all of them in"),
        ("a,b,y\n1,2,1\n1,2,2\n", "y", TWO, "has 2 classes, and the model 'm' predicts 2; name all of them in --col"),
        ("a,b,y\n1,2,sick\n", "y", TWO, "has 1 class, and the model 'm' predicts 2; name all of them in --col"),
        ("a,b,y\n1,2,sick\n", "y", NUMBER, "the column 'y' has texts where numbers are wanted; write them with"),
        ("a,b,y\n1,2,3\n1,2,low\n", "y", NUMBER, "row 2 of the column 'y' is not a number. Correct it, with a decimal"),
        ("a,b,y\n1,2,0\n1,2,0\n1,about 2,0\n", "y", TWO, "row 3 of the column 'b' is not a number. Correct it"),
        (
            "a,b,y\n1,x,0\n1,2,0\n1,x,0\n1,3,1\n1,3,1\n",
            "y",
            TWO,
            "row 1 of the column 'b' is not a number, one of 2 such",
        ),
        (
            "a,b,y\n1,2\n",
            "y",
            TWO,
            "row 1 of {path} has another number of columns (2) than the row of names (3); leave",
        ),
        ("a,b,y\n1,2,0\n\n1,2,0,9\n1\n", "y", TWO, "row 2 of {path} has another number of columns (4) than the row"),
        ("", "y", TWO, "is empty; save the table again"),
        (
            "\n1,2,0\n4,5,0\n",
            "y",
            TWO,
            "has no column 'y', and numbers in its first row; the row of names seems to be missing",
        ),
        ("\n\n", "y", TWO, "is empty; save the table again"),
        ("a;b;y\n1;2;0\n", "y", TWO, "are separated by semicolons; save the table with commas, and decimal points"),
        ("a;b;y\n1,5;2,25;0\n", "y", TWO, "are separated by semicolons; save the table with commas, and decimal"),
        ("a;b;y\n1,5;2,25;0\n1;2,5;0\n", "y", TWO, "are separated by semicolons; save the table with commas, and"),
        ("1,5;2,5;7\n1;2;0\n", "y", TWO, "are separated by semicolons; save the table with commas, and decimal points"),
        ("a\tb\ty\n1,5\t2,25\t0\n", "y", TWO, "are separated by tabs; save the table with commas, and decimal points"),
        ("1,2,0\n3,4,1\n", "y", TWO, "has no column 'y', and numbers in its first row; the row of names seems to be"),
        ("17,17\n3,4\n", None, GROUPS, "has numbers in its first row; the row of names seems to be missing, so put"),
        ("a, b,y \n1,2,0\n", "y", TWO, "has the column 'y' with blanks around its name; remove these in the row of"),
    ],
)
def test_what_differs_from_the_model_is_said(tmp_path: Path, text: str, label: str, wanted: Wanted, says: str) -> None:
    path = csv(tmp_path, text)
    with pytest.raises(FedpingError) as caught:
        read_examples(path, label, None, wanted)
    assert says.format(path=path) in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "a,b,y\n1,2,sick\n1,Smith,well\n",
        "a,b,y\n1,2,sick\n1,2,Smith\n",
        "a,b,y\n1,2,sick\n1,Smith\n",
        "a,b,y\n1,2,sick\nSmith,1,2,3\n",
        "a;b;y\n1,1;2;sick\nSmith;1;sick\n",
        "36.25,Smith,sick\n1,2,sick\n",
        "Jones,Smith,sick\nA,B,well\n",
        "36.25;Smith;sick\n1;2;sick\n",
        "36,25;1,5;Smith;sick\n1;2,7;Smith;well\n",
        'a,b,y\n1,"Smith,sick\n2,3,well\n',
    ],
)
def test_no_value_of_a_row_is_told(tmp_path: Path, text: str) -> None:
    """Messages are written to the log of a service."""
    with pytest.raises(FedpingError) as caught:
        read_examples(csv(tmp_path, text), None, AGREED, TWO)
    assert not any(value in str(caught.value) for value in ("Smith", "Jones", "36.25", "36,25"))


def test_a_number_that_was_agreed_on_is_told_by_its_row_however_few_are_numbers(tmp_path: Path) -> None:
    for cells, says in (
        ("x 1 x", "row 1 of the column 'b' is not a number, one of 2 such rows. Correct it"),
        ('"1,5" "2,5" "3,5"', "the column 'b' has texts where numbers are wanted; write them with a decimal point"),
    ):
        text = "a,b,y\n" + "".join(f"1,{cell},sick\n" for cell in cells.split())
        with pytest.raises(FedpingError, match=says):
            read_examples(csv(tmp_path, text), None, AGREED, TWO)


def test_numbers_that_are_saved_as_texts_are_told(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": ["1"], "b": [2], "y": ["sick"]}), tmp_path / "t.parquet")
    with pytest.raises(FedpingError, match=r"the column 'a' .*saved as texts"):
        read_examples(tmp_path / "t.parquet", None, AGREED, TWO)


def test_a_table_of_none_of_the_agreed_columns_is_told_by_its_first_row(tmp_path: Path) -> None:
    with pytest.raises(FedpingError, match=r"none of the columns .* 'b'"):
        read_examples(csv(tmp_path, "north,old\nsouth,new\n"), None, AGREED, TWO)


def test_texts_that_are_not_in_utf_8_are_told_by_their_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    agreed = replace(AGREED, classes=("gesund", "krank", "ungeprüft"))
    three = Wanted("the model 'm'", 2, predicts=True, classes=3)
    path.write_bytes("a,b,y,u\n1,2,krank,ä\n1,2,ungeprüft,ä\n".encode("latin-1"))
    with pytest.raises(FedpingError, match="the column 'y' is not in UTF-8, first in row 2"):
        read_examples(path, None, agreed, three)
    path.write_bytes("a,b,y,u\n1,2,krank,ä\n".encode("latin-1"))  # an unread column may have any content
    assert read_examples(path, None, agreed, three).y.tolist() == [1]
    path.write_bytes("a,b,y\n1,2,krank\n".encode("utf-16"))
    with pytest.raises(FedpingError, match="is in UTF-16; save the table as CSV in UTF-8"):
        read_examples(path, None, agreed, three)


def test_names_of_columns_that_are_not_in_utf_8_are_said(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes("größe,b,y\n1,2,0\n".encode("latin-1"))
    with pytest.raises(FedpingError, match="are not in UTF-8; save the table as UTF-8"):
        read_examples(path, "y", None, TWO)


def test_what_was_agreed_on_is_held_against_the_model_and_the_table(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,b,y\n1,2,ill\n")
    three = Wanted("the model 'm'", 3, predicts=True, classes=3)
    for agreed, label, wanted, says in (
        (AGREED, None, three, "--columns names 2 features, and the model 'm' has 3;"),
        (AGREED, None, NUMBER, "--columns names 2 classes, and the model 'm' predicts no classes;"),
        (
            AGREED,
            None,
            TWO,
            r"row 1 of the column 'y' has none of the agreed values \(sick, well\). Correct",
        ),
        (AGREED, "a", TWO, "the label is among the features of --columns"),
        (None, None, TWO, "the model 'm' predicts a column; name it with --label"),
    ):
        with pytest.raises(FedpingError, match=says):
            read_examples(path, label, agreed, wanted)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("features = []", "features"),
        ('[[features]]\nname = "a"\n[[features]]\nname = "a"\n', "there are two features 'a'"),
        ('label = "a"\n[[features]]\nname = "a"\n', "the label 'a' is among the features"),
        ('classes = ["x", "x"]\n[[features]]\nname = "a"\n', "there are two classes 'x'"),
        ('[[features]]\nname = "a"\ndeviation = 0\n', "deviation"),
        ('[[features]]\nname = "a"\nmean = 3\ncategories = ["b"]\n', "has categories, which have no scale"),
        ('moments = true\n[[features]]\nname = "a"\ncategories = ["b"]\n', "moments = true is for numbers"),
        ('[[features]]\nnames = "a"\n', "names"),
        ("[[features", "is not valid TOML"),
    ],
)
def test_a_file_of_columns_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "columns.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidSettings) as caught:
        read_columns(path)
    assert says in str(caught.value)
    assert f"the file of columns {path}" in str(caught.value)


def test_every_model_of_tables_says_what_it_learns_from() -> None:
    for name, settings, features, predicts, classes in (
        ("linear-regression", {"features": 3}, 3, True, None),
        ("logistic-regression", {"features": 3, "classes": 4}, 3, True, 4),
        ("network", {"features": 3, "classes": 2, "hidden": 5}, 3, True, 2),
        ("k-means", {"features": 3, "clusters": 2}, 3, False, None),
    ):
        wanted = wanted_by(learner_for(model_spec(name, settings)), "it")
        assert wanted == Wanted("it", features, predicts=predicts, classes=classes)
    with pytest.raises(InvalidSettings, match="it doesn't learn from a table"):
        wanted_by(learner_for(model_spec("matrix-factorization", {"items": 3, "factors": 1})), "it")


@given(
    rows=arrays(np.float64, st.tuples(st.integers(3, 30), st.just(2)), elements=st.floats(-1e3, 1e3, width=32)),
    mean=st.floats(-100, 100),
    deviation=st.floats(0.5, 100),
)
def test_scales_from_moments_are_those_of_all_rows(rows: FloatArray, mean: float, deviation: float) -> None:
    """For any earlier scaling of the columns, and any division of the rows."""
    assume((rows.std(axis=0) > 10).all())
    before = tuple(Feature(name=name, mean=mean, deviation=deviation) for name in "ab")
    wards = Feature(name="ward", categories=("x", "y"))
    columns = AgreedColumns(label="y", features=(before[0], wards, before[1]), moments=True)
    z = (rows - mean) / deviation
    found = scaled(columns, np.concatenate([z.mean(axis=0), (z**2).mean(axis=0)]))
    assert [found.features[at].mean for at in (0, 2)] == pytest.approx(rows.mean(axis=0).tolist(), rel=1e-6, abs=1e-6)
    assert [found.features[at].deviation for at in (0, 2)] == pytest.approx(rows.std(axis=0).tolist(), rel=1e-6)
    assert (found.features[1], found.label, found.moments, found.width) == (wards, "y", False, 4)


def test_a_table_of_moments_has_each_number_and_its_square(tmp_path: Path) -> None:
    columns = replace(AGREED, features=(*AGREED.features, Feature(name="w", categories=("u", "v"))), moments=True)
    four = Wanted("it", 4, predicts=False)
    rows = read_examples(csv(tmp_path, "a,b,w,y\n3,14,u,sick\n"), None, columns, four)
    assert rows.x.tolist() == [[2.0, 3.0, 4.0, 9.0]]
    assert rows.features == ("b", "a", "b²", "a²")


def test_what_hardly_varies_is_refused_and_files_are_read_back(tmp_path: Path) -> None:
    columns = AgreedColumns(features=(Feature(name='a"\x7f\n', mean=5.0, deviation=2.0),), moments=True)
    with pytest.raises(FedpingError, match=r"hardly varies around 25, as far as one round can show"):
        scaled(columns, np.array([10.0, 100.0]))
    ours = scaled(columns, np.array([10.0, 104.0]))
    whole = replace(
        ours, label="é", classes=("\\", "'"), features=(*ours.features, Feature(name="w", categories=("u",)))
    )
    (tmp_path / "columns.toml").write_text(as_toml(whole), encoding="utf-8")
    assert read_columns(tmp_path / "columns.toml") == whole
    with pytest.raises(InvalidSettings, match="isn't a spec of scales: k-means with one cluster and 2 weights"):
        check_spec(model_spec("k-means", {"clusters": 2, "features": 1, "counts": False}), columns)
    check_spec(model_spec("k-means", {"clusters": 1, "features": 2, "counts": False}), columns)


def test_scaling_is_what_was_agreed_on_and_not_the_tables_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lines = "".join(f"{a},{b},sick\n" for a, b in rng.normal(50, 9, (20, 2)).tolist())
    rows = read_examples(csv(tmp_path, f"a,b,y\n{lines}"), None, AGREED, TWO)
    assert rows.x.mean() > 10


# --- classes ---

SICK = 'label = "y"\nclasses = ["sick", "well", "else"]\n[[features]]\nname = "a"\n'


def columns_in(tmp_path: Path, text: str) -> AgreedColumns:
    (tmp_path / "columns.toml").write_text(text)
    return read_columns(tmp_path / "columns.toml")


def test_classes_are_counted_as_shares_and_weigh_so_that_each_has_as_much(tmp_path: Path) -> None:
    agreed = columns_in(tmp_path, "counts = true\n" + SICK)
    (tmp_path / "rows.csv").write_text("a,y\n1,sick\n2,well\n3,well\n4,well\n")
    wanted = Wanted("k-means", agreed.width, predicts=False)
    rows = read_examples(tmp_path / "rows.csv", None, agreed, wanted)
    assert rows.x.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0]]
    assert rows.features == ("y=sick", "y=well", "y=else")
    found = scaled(agreed, rows.x.mean(axis=0))
    assert found.class_weights == (2.0, pytest.approx(2 / 3), 0.0)
    assert columns_in(tmp_path, as_toml(found)) == found


def test_scales_and_classes_take_one_round(tmp_path: Path) -> None:
    agreed = columns_in(tmp_path, "moments = true\ncounts = true\n" + SICK)
    (tmp_path / "rows.csv").write_text("a,y\n1,sick\n3,well\n")
    rows = read_examples(tmp_path / "rows.csv", None, agreed, Wanted("k-means", agreed.width, predicts=False))
    found = scaled(agreed, rows.x.mean(axis=0))
    assert (found.features[0].mean, found.features[0].deviation) == (2.0, 1.0)
    assert found.class_weights == (1.0, 1.0, 0.0)


def test_an_example_counts_as_its_class_does_in_training(tmp_path: Path) -> None:
    agreed = columns_in(tmp_path, "class_weights = [3.0, 1.0, 0.5]\n" + SICK)
    (tmp_path / "rows.csv").write_text("a,y\n1,sick\n2,well\n3,else\n")
    rows = read_examples(tmp_path / "rows.csv", None, agreed, Wanted("m", 1, predicts=True, classes=3))
    batch = OwnTable(rows, agreed.class_weights).of(np.zeros(1, np.int64), 0, np.zeros(1)).batch(np.zeros(1, np.intp))
    assert batch.weight.tolist() == [[3.0, 1.0, 0.5]]
    plain = OwnTable(rows).of(np.zeros(1, np.int64), 0, np.zeros(1)).batch(np.zeros(1, np.intp))
    assert plain.weight.tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('counts = true\n[[features]]\nname = "a"\n', "counts = true needs 'label' and 'classes'"),
        ("class_weights = [1.0]\n" + SICK, "there are 1 class_weights and 3 classes"),
        ("class_weights = [0.0, 0.0, 0.0]\n" + SICK, "not all of them 0"),
        ("class_weights = [-1.0, 1.0, 1.0]\n" + SICK, ">= 0"),
        ("counts = true\nclass_weights = [1.0, 1.0, 1.0]\n" + SICK, "Remove one of them"),
    ],
)
def test_classes_that_cannot_be_counted_or_weighed_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        columns_in(tmp_path, text)


def of_categories(*categories: str) -> AgreedColumns:
    return AgreedColumns(label="y", features=(Feature(name="code", categories=categories),))


@pytest.mark.parametrize("cells", [("007", "7"), ("1.0", "2"), ("1e3", "1000"), ("True", "False"), ("250.0", "250.00")])
def test_categories_are_the_texts_that_were_agreed_on(tmp_path: Path, cells: tuple[str, str]) -> None:
    rows = read_examples(csv(tmp_path, f"code,y\n{cells[0]},0\n{cells[1]},1\n"), None, of_categories(*cells), TWO)
    assert rows.x.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    classes = AgreedColumns(label="y", classes=cells, features=(Feature(name="a"), Feature(name="b")))
    labelled = read_examples(csv(tmp_path, f"a,b,y\n1,2,{cells[1]}\n1,2,{cells[0]}\n"), None, classes, TWO)
    assert labelled.y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("agreed", "cells", "shown"),
    [
        (("7", "x"), ("7", "007"), "row 2 of the column 'code' has another spelling of '7', which was"),
        (
            ("007", "7"),
            ("07", "7"),
            "row 1 of the column 'code' has another spelling of '007' and '7', which were",
        ),
        (("1", "2"), ("1", "1.0"), "row 2 of the column 'code' has another spelling of '1', which was"),
        (
            ("250", "250.1"),
            ("250.0", "250.1"),
            "row 1 of the column 'code' has another spelling of '250', which was",
        ),
        (
            ("true", "false"),
            ("true", "True"),
            "row 2 of the column 'code' has another spelling of 'true', which was",
        ),
    ],
)
def test_another_spelling_of_what_was_agreed_on_is_refused_and_no_cell_is_quoted(
    tmp_path: Path, agreed: tuple[str, str], cells: tuple[str, str], shown: str
) -> None:
    path = csv(tmp_path, f"code,y\n{cells[0]},0\n{cells[1]},1\n")
    with pytest.raises(FedpingError, match=shown):
        read_examples(path, None, of_categories(*agreed), TWO)


@pytest.mark.parametrize(("agreed", "cells"), [(("1", "2"), ("1.0", "2.0")), (("true", "false"), ("True", "False"))])
def test_a_column_that_a_program_has_rewritten_as_a_whole_is_read_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], agreed: tuple[str, str], cells: tuple[str, str]
) -> None:
    path = csv(tmp_path, f"code,y\n{cells[0]},0\n{cells[1]},1\n")
    assert read_examples(path, None, of_categories(*agreed), TWO).x.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    told = capsys.readouterr().err
    assert "warning" in told
    assert any(f"'{cell}' instead of the agreed '{text}'" in told for text, cell in zip(agreed, cells, strict=True))


@pytest.mark.parametrize(
    ("agreed", "cell"),
    [
        (("250", "250.1"), "250.0"),
        (("007", "7"), "7.0"),
        (("007", "8"), "8.0"),
        (("1", "x"), "1.0"),
        (("true", "TRUE"), "True"),
        (("true", "other"), "True"),
    ],
)
def test_a_code_is_no_other_one_also_where_it_is_the_only_one(
    tmp_path: Path, agreed: tuple[str, str], cell: str
) -> None:
    """Columns of whole numbers or booleans are saved differently; here one agreed value is neither."""
    with pytest.raises(FedpingError, match="row 1 of the column 'code' has another spelling of "):
        read_examples(csv(tmp_path, f"code,y\n{cell},0\n{cell},1\n"), None, of_categories(*agreed), TWO)
    classes = AgreedColumns(label="y", classes=agreed, features=(Feature(name="a"), Feature(name="b")))
    with pytest.raises(FedpingError, match="row 1 of the column 'y' has another spelling of "):
        read_examples(csv(tmp_path, f"a,b,y\n1,2,{cell}\n1,2,{cell}\n"), None, classes, TWO)


def test_columns_of_numbers_have_what_was_agreed_on_where_one_text_is_each_number(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"code": [1.0, 2.0], "y": [0, 1]}), path)
    for agreed in (("1", "2"), ("1.0", "2.0")):
        assert read_examples(path, None, of_categories(*agreed), TWO).x.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(FedpingError, match="'1' and '001' were agreed on, which are the same"):
        read_examples(path, None, of_categories("1", "001"), TWO)
