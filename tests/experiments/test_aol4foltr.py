"""AOL4FOLTR: files in its format become a table for the laboratory."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.settings import experiment_of
from fedping.experiments.laboratory.settings.experiment import ONLY_VARIANT
from fedping.experiments.papers.scripts.aol4foltr import FEATURES, Written, main, write_table
from fedping.protocol.errors import FedpingError

USERS = {0: "17", 1: "17", 2: "98", 3: "17", 4: "4"}


def values(qid: int, place: int) -> list[float]:
    """Return raw features: the first rises with the place, the second is the query's, the others are irregular."""
    rest = [float((place * number + qid) % 7) for number in range(3, FEATURES + 1)]
    return [10.0 * place + qid, float(qid), *rest]


def line(label: int, qid: int, place: int) -> str:
    features = " ".join(f"{number}:{value}" for number, value in enumerate(values(qid, place), 1))
    return f"{label} qid:{qid} {features} # doc{place}\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    clicked = {0: [2], 1: [0], 2: [19], 3: [], 4: [1, 2]}
    letor = "".join(line(int(place in clicked[qid]), qid, place) for qid in USERS for place in range(20))
    rows = [f'{qid},{user},2006-03-0{qid + 1} 10:00:00,"a, ""q""",d,"{{\'d\', \'e\'}}"' for qid, user in USERS.items()]
    head = "qid,user_id,timestamp,query,target_doc_id,candidate_doc_ids"
    (tmp_path / "letor.txt").write_text(letor)
    (tmp_path / "metadata.csv").write_text("\n".join([head, *rows]) + "\n")
    return tmp_path / "letor.txt", tmp_path / "metadata.csv"


def test_lists_with_one_click_are_written_with_user_time_and_scaled_features(files: tuple[Path, Path]) -> None:
    out = files[0].parent / "aol.parquet"
    assert write_table(*files, out) == Written(lists=3, odd=2, others=0)
    rows = pq.read_table(out).to_pylist()
    assert len(rows) == 60
    assert [row["clicked"] for row in rows[:4]] == [0, 0, 1, 0]
    assert (rows[40]["qid"], rows[40]["user_id"], rows[40]["timestamp"]) == (2, "98", "2006-03-03 10:00:00")
    assert [row["f1"] for row in rows[:20]] == [place / 19 for place in range(20)]
    assert {row["f2"] for row in rows} == {0.0}  # the same for all candidates
    assert all(0 <= row["f50"] <= 1 for row in rows)


def test_compressed_files_and_the_users_with_the_most_queries(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    packed = files[0].with_suffix(".txt.gz")
    packed.write_bytes(gzip.compress(files[0].read_bytes()))
    out = files[0].parent / "aol.parquet"
    main([str(packed), str(files[1]), str(out), "--users", "1"])
    assert set(pq.read_table(out)["user_id"].to_pylist()) == {"17"}
    assert "2 lists" in capsys.readouterr().out


def test_the_laboratory_learns_from_the_table(files: tuple[Path, Path]) -> None:
    write_table(*files, files[0].parent / "aol.parquet")
    features = [{"kind": "number", "name": f"f{number}"} for number in range(1, FEATURES + 1)]
    tables: dict[str, Any] = {
        "rounds": 1,
        "model": {"name": "features", "features": features},
        "data": {"file": "aol.parquet", "target": "clicked", "choice": "qid", "client": "user_id", "test": 0.0},
        "partition": {"partition": "key"},
    }
    setup = experiment_of(tables, name="aol", folder=files[0].parent).variants[ONLY_VARIANT]
    problem = prepare(setup, 1, None)
    assert sorted(problem.train.sizes.tolist()) == [1, 2]
    batch = problem.train.batch(np.arange(2))
    assert sorted(batch.y[batch.weight > 0].tolist()) == [0, 2, 19]
    weights = np.zeros(problem.spec.m)
    assert problem.model.losses(weights, batch) == pytest.approx(np.log(20))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1 query:7 1:0.5\n", "line 1: expected a label"),
        ("1 qid:0 104:1\n", "line 1: expected a label"),
        ("1 qid:0 1:0.5\n1 qid:0 1:many\n", "line 2: expected a label"),
        ("1 qid:0 1:0.5\n1 qid:1 1:0.5\n0 qid:0 1:0.5\n", "has query 0 in two places"),
        ("1 qid:77 1:0.5\n", "has query 77, which .*metadata.csv lacks"),
    ],
)
def test_a_line_of_another_form_is_refused_with_its_number(files: tuple[Path, Path], text: str, sentence: str) -> None:
    files[0].write_text(text)
    with pytest.raises(FedpingError, match=sentence):
        write_table(*files, files[0].parent / "aol.parquet")


def test_files_that_are_not_there_are_named(files: tuple[Path, Path]) -> None:
    out = files[0].parent / "aol.parquet"
    with pytest.raises(FedpingError, match=r"none\.txt"):
        write_table(Path("none.txt"), files[1], out)
    with pytest.raises(FedpingError, match=r"none\.csv"):
        write_table(files[0], Path("none.csv"), out)
