"""Data sets of Hugging Face, from saved folders and from the hub, and rejected data sets."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedping.client_sim.data import load, load_original
from fedping.client_sim.data.originals import files_of_original, hugging_face, reading
from fedping.experiments.laboratory.run import run_experiment
from fedping.experiments.laboratory.settings.experiment import experiment_from_toml
from fedping.protocol.errors import FedpingError, InvalidSettings

NAME = "hugging-face"


@pytest.fixture(scope="module")
def datasets() -> Any:
    with pytest.MonkeyPatch.context() as patched:  # read on import
        patched.setenv("HF_HUB_OFFLINE", "1")
        return pytest.importorskip("datasets")


def png(values: np.ndarray[Any, Any], form: str = "PNG", mode: str | None = None) -> bytes:
    image = pytest.importorskip("PIL.Image").fromarray(values)
    written = io.BytesIO()
    (image.convert(mode) if mode else image).save(written, form)
    return written.getvalue()


def digits(datasets: Any, count: int, seed: int) -> Any:
    """Return a data set of 4 x 3 grey pictures with a class, a writer, numbers, a category and lists."""
    drawn = np.random.default_rng(seed)
    pictures = drawn.integers(0, 256, (count, 4, 3), np.uint8)
    kinds = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["zero", "one"]),
            "writer": datasets.Value("string"),
            "age": datasets.Value("int32"),
            "hand": datasets.Value("string"),
            "sensor": datasets.List(datasets.Value("float32"), 2),
            "grid": datasets.Array2D((2, 2), "float32"),
        }
    )
    return datasets.Dataset.from_dict(
        {
            "image": [{"bytes": png(each), "path": None} for each in pictures],
            "label": [at % 2 for at in range(count)],
            "writer": [f"w{at // 2}" for at in range(count)],
            "age": list(range(20, 20 + count)),
            "hand": [("left", "right")[at % 2] for at in range(count)],
            "sensor": [[at, at / 2] for at in range(count)],
            "grid": [[[at, 1], [2, 3]] for at in range(count)],
        },
        features=kinds,
    ), pictures


def test_a_saved_folder_is_read_by_its_columns_with_the_test_split(datasets: Any, tmp_path: Path) -> None:
    train, shown = digits(datasets, 6, 1)
    test, _ = digits(datasets, 2, 2)
    datasets.DatasetDict(train=train, test=test).save_to_disk(str(tmp_path))
    settings = {"features": ["image"], "label": "label", "client": "writer", "test_split": "test"}
    table = load_original(NAME, tmp_path, settings)
    assert table.x.shape == (8, 12)
    assert table.x[:6] == pytest.approx(shown.reshape(6, 12))
    assert table.features[5] == "pixel_1_2"
    assert table.target.classes == ("zero", "one")
    assert table.y.tolist() == [0, 1] * 4
    assert table.key is not None
    assert table.key.tolist() == ["w0", "w0", "w1", "w1", "w2", "w2", "w0", "w0"]
    assert table.for_test is not None
    assert table.for_test.tolist() == [False] * 6 + [True] * 2
    only = load_original(NAME, tmp_path, {"features": ["image"], "label": "label", "split": "test", "rows": 1})
    assert (len(only), only.key) == (1, None)
    assert {each.name for each in files_of_original(NAME, tmp_path)} >= {"state.json", "dataset_dict.json"}


def test_numbers_categories_lists_and_matrices_become_features(datasets: Any, tmp_path: Path) -> None:
    train, _ = digits(datasets, 4, 1)
    train.shuffle(seed=3).select(range(3)).sort("age").save_to_disk(str(tmp_path))
    kept = load_original(NAME, tmp_path, {"features": ["age", "hand", "sensor", "grid"], "label": "label"})
    assert kept.features == (
        *("age", "hand=left", "hand=right", "sensor_0", "sensor_1"),
        *("grid_0", "grid_1", "grid_2", "grid_3"),
    )
    ages = kept.x[:, 0]
    assert ages.tolist() == sorted(ages)
    at = ages - 20
    assert kept.x[:, 3:].tolist() == [[each, each / 2, each, 1, 2, 3] for each in at]
    number = load_original(NAME, tmp_path, {"features": ["label", "image"], "label": "age"})
    assert number.y.tolist() == ages.tolist()
    assert number.target.classes == ()
    assert number.features[:3] == ("label=one", "label=zero", "image_pixel_0_0")
    assert len(load_original(NAME, tmp_path, {"features": ["age"], "label": "hand"}).target.classes) == 2


def test_coloured_pictures_have_three_colours(datasets: Any, tmp_path: Path) -> None:
    values = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 3)
    pictures = [{"bytes": png(values), "path": None}, {"bytes": png(values, mode="P"), "path": None}]
    kinds = datasets.Features({"image": datasets.Image(), "y": datasets.Value("float32")})
    datasets.Dataset.from_dict({"image": pictures, "y": [0.0, 1.0]}, features=kinds).save_to_disk(str(tmp_path))
    table = load_original(NAME, tmp_path, {"features": ["image"], "label": "y"})
    assert table.x[0].tolist() == list(range(12))
    assert table.features[:4] == ("pixel_0_0_r", "pixel_0_0_g", "pixel_0_0_b", "pixel_0_1_r")


def test_an_experiment_trains_on_a_saved_folder_and_its_own_test_split(datasets: Any, tmp_path: Path) -> None:
    train, test = digits(datasets, 6, 1)[0], digits(datasets, 2, 2)[0]
    datasets.DatasetDict(train=train, test=test).save_to_disk(str(tmp_path / "saved"))
    file = tmp_path / "saved.toml"
    file.write_text(
        "rounds = 1\n[data]\nname = 'hugging-face'\nfolder = 'saved'\ntest = 'authors'\n[data.settings]\n"
        "features = ['image']\nlabel = 'label'\nclient = 'writer'\ntest_split = 'test'\n"
        "[partition]\npartition = 'key'\n[model]\nname = 'logistic-regression'\n[training]\nalgorithm = 'gradient'\n"
    )
    summary = run_experiment(experiment_from_toml(file), tmp_path / "out")
    assert summary.variants["federated"].metrics["test"]["accuracy"].mean is not None


# Rejected data sets

ONE = {"features": ["age"], "label": "label"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"label": "label"}, "features"),
        ({"features": [], "label": "label"}, "features"),
        ({"features": ["age"], "label": "age"}, "name a column twice"),
        ({**ONE, "test_split": "train"}, "are the same"),
        ({**ONE, "path": "../secret"}, "is not a name on the hub"),
        ({**ONE, "path": "owner/name"}, "'folder' and settings.path"),
        ({**ONE, "trust_remote_code": True}, "trust_remote_code"),
        ({**ONE, "split": "later"}, "has no split 'later'; it has train, odd"),
        ({**ONE, "split": "../train"}, "has no split"),
        ({"features": ["ages"], "label": "label"}, "no column 'ages'; it has image, label"),
        ({**ONE, "split": "odd"}, "class -1; classes are 0 to 1"),
        ({"features": ["text"], "label": "label", "split": "odd"}, "is missing"),
        ({"features": ["lists"], "label": "label", "split": "odd"}, "lists of 1 to 2 values"),
        ({"features": ["sizes"], "label": "age", "split": "odd"}, "Bring pictures to one size"),
        ({"features": ["broken"], "label": "age", "split": "odd"}, "picture that cannot be read"),
        ({"features": ["tiff"], "label": "age", "split": "odd"}, "picture that cannot be read"),
        ({"features": ["nested"], "label": "age", "split": "odd"}, "not numbers, texts, lists or pictures"),
        ({**ONE, "test_split": "odd"}, "columns of different types"),
    ],
)
def test_what_a_folder_does_not_have_is_refused(
    settings: dict[str, Any], said: str, datasets: Any, tmp_path: Path
) -> None:
    grey = np.zeros((2, 2), np.uint8)
    kinds = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["zero", "one"]),
            "age": datasets.Value("int64"),
            "text": datasets.Value("string"),
            "lists": datasets.List(datasets.Value("int32")),
            **dict.fromkeys(("sizes", "broken", "tiff"), datasets.Image()),
            "nested": {"a": datasets.Value("int32")},
        }
    )
    odd = datasets.Dataset.from_dict(
        {
            "label": [0, -1],
            "age": [1, 2],
            "text": ["a", None],
            "lists": [[1], [1, 2]],
            "sizes": [{"bytes": png(grey)}, {"bytes": png(np.zeros((2, 3), np.uint8))}],
            "broken": [{"bytes": b"no picture"}, {"bytes": png(grey)[:40]}],
            "tiff": [{"bytes": png(grey, "TIFF")}] * 2,
            "nested": [{"a": 1}] * 2,
        },
        features=kinds,
    )
    datasets.DatasetDict(train=digits(datasets, 4, 1)[0], odd=odd).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(FedpingError, match=said):
        load_original(NAME, tmp_path / "saved", settings)


def test_a_picture_elsewhere_is_never_opened(datasets: Any, tmp_path: Path) -> None:
    import pyarrow as pa

    secret = tmp_path / "secret.png"
    secret.write_bytes(png(np.zeros((4, 3), np.uint8)))
    digits(datasets, 2, 1)[0].save_to_disk(str(tmp_path / "saved"))
    file = next((tmp_path / "saved").glob("*.arrow"))
    read = pa.ipc.open_stream(file.read_bytes()).read_all()
    at = read.schema.get_field_index("image")
    pictures = pa.array([{"bytes": None, "path": str(secret)}] * 2, read.schema.field(at).type)
    changed = read.set_column(at, read.schema.field(at), pictures)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, changed.schema) as writer:
        writer.write_table(changed)
    with pytest.raises(FedpingError, match=r"row 1 of the column 'image' has no bytes .*paths and addresses are not"):
        load_original(NAME, tmp_path / "saved", {"features": ["image"], "label": "label"})


def state_of(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        file = folder / "state.json"
        state = json.loads(file.read_text())
        change(state)
        file.write_text(json.dumps(state))

    return apply


def elsewhere(folder: Path) -> None:
    file = next(folder.glob("*.arrow"))
    file.rename(folder.parent / file.name)
    file.symlink_to(folder.parent / file.name)


def cut(folder: Path) -> None:
    file = next(folder.glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:-200])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (state_of(lambda state: state["_data_files"][0].update(filename="../other.arrow")), "names a file elsewhere"),
        (state_of(lambda state: state["_data_files"][0].update(filename=3)), "names a file elsewhere"),
        (state_of(lambda state: state["_data_files"][0].update(filename="none.arrow")), "damaged"),
        (elsewhere, "names a file elsewhere"),
        (cut, "damaged|cannot read"),
        (lambda folder: (folder / "state.json").write_text("{"), "damaged"),
        (lambda folder: (folder / "state.json").write_text("[]"), "not a table of settings"),
        (lambda folder: (folder / "state.json").unlink(), "no state.json. Name the folder that save_to_disk"),
    ],
)
def test_a_damaged_folder_is_refused(damage: Callable[[Path], Any], said: str, datasets: Any, tmp_path: Path) -> None:
    digits(datasets, 4, 1)[0].save_to_disk(str(tmp_path / "saved"))
    damage(tmp_path / "saved")
    with pytest.raises(FedpingError, match=said):
        load_original(NAME, tmp_path / "saved", ONE)


def test_a_split_elsewhere_is_not_read(datasets: Any, tmp_path: Path) -> None:
    datasets.DatasetDict(train=digits(datasets, 4, 1)[0]).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "saved/train").rename(tmp_path / "elsewhere")
    (tmp_path / "saved/train").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FedpingError, match="a split is a link to another place"):
        load_original("hugging-face", tmp_path / "saved", {"features": ["image"], "label": "label"})


def test_texts_that_lie_elsewhere_in_memory_are_refused(datasets: Any, tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"s": ["abc", "def"] * 100, "y": [0.5] * 200}).save_to_disk(str(tmp_path))
    (file,) = tmp_path.glob("*.arrow")
    offsets = np.arange(0, 603, 3, dtype="<i4")
    written = file.read_bytes()
    assert written.count(offsets.tobytes()) == 1
    file.write_bytes(written.replace(offsets.tobytes(), (offsets + 2_000_000_000).tobytes()))
    with pytest.raises(FedpingError, match="offset out of bounds"):
        load_original("hugging-face", tmp_path, {"features": ["s"], "label": "y"})


def test_bounds_hold_and_say_what_to_do(datasets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits(datasets, 6, 1)[0].save_to_disk(str(tmp_path))
    monkeypatch.setattr(reading, "MOST_NUMBERS", 40)
    for name in ("image", "sensor"):
        monkeypatch.setattr(reading, "MOST_NUMBERS", 40 if name == "image" else 10)
        with pytest.raises(FedpingError, match=r"in 6 rows.*Set rows = [1-3] in \[data.settings\]"):
            load_original(NAME, tmp_path, {"features": [name], "label": "label"})
    assert len(load_original(NAME, tmp_path, {"features": ["sensor"], "label": "label", "rows": 2})) == 2
    monkeypatch.setattr(reading, "MOST_NUMBERS", 2**20)
    monkeypatch.setattr(hugging_face, "_MOST_PIXELS", 11)
    with pytest.raises(FedpingError, match="a picture of 3 x 4 pixels, and at most 11 are read"):
        load_original(NAME, tmp_path, {"features": ["image"], "label": "label"})


# The hub


def test_the_hub_is_read_by_name(datasets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    parts = {"train": digits(datasets, 4, 1)[0], "test": digits(datasets, 2, 2)[0]}

    def load_dataset(path: str, config: str | None, *, revision: str | None, split: str) -> Any:
        asked.append((path, config, revision, split))
        return parts[split]

    info = SimpleNamespace(info=SimpleNamespace(download_size=None, dataset_size=1000))
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: info)
    table = load(NAME, {**ONE, "path": "owner/name", "revision": "abc", "test_split": "test"})
    assert len(table) == 6
    assert asked == [("owner/name", None, "abc", "train"), ("owner/name", None, "abc", "test")]
    info.info.download_size = 2**40
    with pytest.raises(FedpingError, match="1,099,511,627,776 bytes, and at most"):
        load(NAME, {**ONE, "path": "owner/name"})


def test_without_a_network_the_sentence_says_what_to_do(datasets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise ConnectionError("Couldn't reach 'owner/name' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset_builder", away)
    with pytest.raises(FedpingError, match=r"hub of Hugging Face \(ConnectionError: Couldn't reach.*network"):
        load(NAME, {**ONE, "path": "owner/name"})


def test_a_folder_here_is_never_taken_for_a_name_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSettings, match="'owner/name' is also here"):
        load(NAME, {**ONE, "path": "owner/name"})
    with pytest.raises(InvalidSettings, match="names no data"):
        load(NAME, ONE)


def test_a_library_that_runs_code_or_is_missing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(__version__="3.6.0"))  # type: ignore[arg-type]
    with pytest.raises(FedpingError, match=r"datasets 3.6.0 can run code of data sets. Run: pip install"):
        load_original(NAME, tmp_path, ONE)
    monkeypatch.setitem(sys.modules, "datasets", None)  # type: ignore[arg-type]
    with pytest.raises(FedpingError, match=r'needs the package datasets.*pip install "fedping\[huggingface\]"'):
        load_original(NAME, tmp_path, ONE)
