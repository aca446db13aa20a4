"""A new study that starts with the trained weights of an older one, with a changed spec."""

import json
import re
import shlex
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.main import main
from fedping.model_store import ModelStore, open_store
from fedping.model_store.documents import sealed, unsealed
from fedping.model_store.version import FORMAT, TAKEN_OVER_FORMAT
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import Central, Privacy
from fedping.protocol.spec import ModelSpec, NonNegative, Normal, OrderedCutoffs
from fedping.protocol.study import Line, Study
from fedping.protocol.weights import Block, Weight
from fedping.server_jobs.optimize import first_state, first_versions, state_to_document
from fedping.server_jobs.privacy.card import card_of
from fedping.server_jobs.privacy.keys import make_key, read_key
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.warm_start import beginning, start_version, warm_from
from tests.support.dashboard import dashboard_client
from tests.support.object_server import bucket_of, object_server
from tests.support.private import private_study
from tests.support.private_rounds import land_private, private_crowd
from tests.support.rounds import FIRST_MS, WHEN, crowd, land, store_with
from tests.support.versions import STEP, after, small_study

ROOT = Path(__file__).parents[2]

NEW = """
name = "new"

[[arms]]
name = "treatment"
share = 0.6
line = "main"
applies = true
submits = true

[[arms]]
name = "control"
share = 0.4
line = "main"

[[lines]]
name = "main"

[lines.pipeline]
min_clients = 1

[lines.spec]
name = "larger"
model = "linear-15"
constraints = [{ constraint = "ordered_cutoffs", weights = ["low", "high"], gap = 50 }]
weights = [
  { name = "low", start = 1, step = { start = 1, min = 0.1, max = 3 }, integer = true, kind = "cutoff" },
  { name = "high", start = 60, step = { start = 1, min = 0.1, max = 3 } },
  { name = "w2", start = 3, step = { start = 2, min = 0.5, max = 9 } },
  { name = "a=b", start = -7.5, step = { start = 1, min = 0.1, max = 3 } },
]
"""
RENAMED = ("--renamed", "low=w0", "--renamed", "high=w1", "--renamed", "a=b=w3")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Give a store whose study `old` has four weights and three rounds."""
    made = store_with(tmp_path / "store", small_study("old", m=4))
    for n in range(3):
        pings = crowd(4, seed=n, version=n, m=4, first_document=10 * n)
        land(tmp_path / "landing", pings, study="old", iteration=n, at_ms=FIRST_MS + n)
        run_round(
            made, tmp_path / "landing", "old", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="t")
        )
    (tmp_path / "new.toml").write_text(NEW)
    return made


def typed(folder: Path, word: str, *words: str, store: str = "") -> int:
    where = store or str(folder / "store")
    landing = ("--landing", str(folder / "landing")) if word == "create" else ()
    return main(
        ["study", word, str(folder / "new.toml"), "--own-model", "linear-15", "--store", where, *landing, *words]
    )


def test_a_check_shows_what_a_study_takes_over_and_creating_it_does_so(
    store: ModelStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = store.version("old", "main", 2)
    wanted = ("--from", "old/main@2", *RENAMED)
    assert typed(tmp_path, "check", *wanted) == 0
    table = capsys.readouterr().out.partition("  line main takes ")[2].splitlines()
    assert table[0] == "over 4 weights from version 2 of old/main; its constraints change 1:"
    assert [row.split()[0] for row in table[1:]] == ["low", "high", "w2", "a=b"]
    assert table[1].endswith("(its kind was coefficient, and is cutoff; was 'w0')")
    assert table[2].endswith("(was 'w1'; moved by a constraint)")
    assert store.studies.names() == ["old"]

    assert typed(tmp_path, "create", *wanted) == 0
    assert "line 'main' takes over 4 weights from version 2 of old/main" in capsys.readouterr().out
    first = store.version("new", "main", 0)
    low, high, w2, last = first.weights
    assert (low, w2, last) == (old.weights[0], old.weights[2], old.weights[3])
    assert (first.model[0], high) == (float(np.floor(low + 0.5)), float(np.floor(low + 0.5)) + 50)
    assert first.state == state_to_document(first_state(store.study("new").line("main"))), "a state is not taken over"
    origin = first.lineage.warm_start
    assert origin is not None
    assert (origin.taken.study, origin.taken.iteration, origin.taken.digest) == ("old", 2, old.digest)
    assert origin.renamed == {"low": "w0", "high": "w1", "a=b": "w3"}

    assert main(["store", "history", "new", "main", "--store", str(tmp_path / "store")]) == 0
    assert "weights of version 2 of old/main" in capsys.readouterr().out


def test_a_study_that_began_with_another_ones_weights_goes_on_and_comes_out_the_same_again(
    store: ModelStore, tmp_path: Path
) -> None:
    assert typed(tmp_path, "create", "--from", "main=old/main") == 0
    assert store.version("new", "main", 0).weights[2] == store.head("old", "main").weights[2]
    land(tmp_path / "landing", crowd(4, m=4), study="new", iteration=0)
    run_round(
        store, tmp_path / "landing", "new", "main", NumpyEngine(), RoundOptions(clock=lambda: WHEN, code_version="t")
    )
    assert (store.head("new", "main").iteration, store.head("new", "main").format) == (1, FORMAT)
    assert store.lines.trouble("new", "main") is None
    for number in (0, 1):
        again = recompute(store, tmp_path / "landing", "new", "main", number, NumpyEngine())
        assert (again.identical, again.differences, again.given) == (True, (), "")


def test_a_version_with_other_weights_than_those_that_it_names_is_found_out(store: ModelStore, tmp_path: Path) -> None:
    study = msgspec.structs.replace(store.study("old"), name="forged")
    warm = warm_from(store, study.line("main"), "old", "main", 1, {})
    weights = (warm.weights[0] + 1e-9, *warm.weights[1:])
    store.create_study(
        study, first_versions(study, created=WHEN, code_version="t", warm={"main": (weights, warm.origin)})
    )
    again = recompute(store, tmp_path / "landing", "forged", "main", 0, NumpyEngine())
    assert not again.identical
    assert again.differences[0].startswith("model differs at 1 of 4 places")


@pytest.mark.parametrize(
    ("field", "forged"), [("study", "../old"), ("study", "a\u001b[31m"), ("line", "../main"), ("iteration", -1)]
)
def test_what_names_no_version_is_no_beginning(
    store: ModelStore, tmp_path: Path, field: str, forged: object, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.toml").write_text(NEW)
    assert typed(tmp_path, "create", "--from", "old/main") == 0
    (file,) = (tmp_path / "store/new").glob("*/versions/0.json")
    document = json.loads(unsealed(file.read_bytes()))
    document["lineage"]["warm_start"]["taken"][field] = forged
    file.unlink()
    file.write_bytes(sealed(json.dumps(document).encode()))
    capsys.readouterr()
    for command in (["history", "new", "main"], ["recompute", "new", "main", "0"]):
        assert main(["store", *command, "--store", str(tmp_path / "store")]) == 1
        assert f"at `$.lineage.warm_start.taken.{field}`" in capsys.readouterr().err


def test_where_the_old_study_is_gone_its_weights_are_taken_as_they_are_which_is_said(
    store: ModelStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(tmp_path, "create", "--from", "old/main") == 0
    kept = tmp_path / "kept"
    kept.mkdir()
    shutil.move(tmp_path / "store" / "old", kept / "old")
    command = ["store", "recompute", "new", "main", "0", "--store", str(tmp_path / "store")]
    capsys.readouterr()
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "the weights that version 0 took over from version 3 of old/main were not checked" in said
    assert "has no study 'old'" in said
    assert "bit-identical" in said
    assert main([*command, "--from-store", str(kept)]) == 0
    assert "not checked" not in capsys.readouterr().out


def test_a_repetition_changes_nothing_and_another_beginning_is_refused(
    store: ModelStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(tmp_path, "create", "--from", "old/main") == 0
    before = store.versions.stored_bytes("new", "main", 0)
    head = store.head("old", "main")
    store.publish(after(head))  # now the newest is another version
    for words in (("--from", "old/main"), ("--from", "old/main@3"), ()):
        assert typed(tmp_path, "create", *words) == 0, words
        assert "nothing changed" in capsys.readouterr().out
    for words in (("--from", "old/main@2"), ("--from", "old/main@3", "--renamed", "w2=")):
        assert typed(tmp_path, "create", *words, *RENAMED[:2]) == 1
        assert "has begun already, with weights of version 3 of old/main" in capsys.readouterr().err
    assert store.versions.stored_bytes("new", "main", 0) == before

    plain = NEW.replace('name = "new"', 'name = "plain"')
    (tmp_path / "new.toml").write_text(plain)
    assert typed(tmp_path, "create") == 0
    assert typed(tmp_path, "create", "--from", "old/main") == 1
    assert "has begun already, with the start values of its spec" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--from", "old"), 2, "--from 'old' names no version; give OLD_STUDY/LINE"),
        (("--from", "old/main@x"), 2, "names no version"),
        (("--from", "s3://me:hidden@bucket/old/main"), 2, "--from 's3://…bucket/old/main' names no version"),
        (("--from", "old/main", "--from-store", "http://me:hidden@host/x"), 2, "'http://…host/x' isn't a path"),
        (("--from", "old/main", "--from-store", "ftp://host/x?key=hidden"), 2, "'ftp://host/x?…' isn't a path"),
        (("--from", "old/main", "--from", "old/main@1"), 2, "--from is given twice for line 'main'"),
        (("--from", "other=old/main"), 2, "study 'new' has no line 'other'"),
        (("--from", "nobody/main"), 1, "has no study 'nobody'; it has old"),
        (("--from", "old/second"), 1, "study 'old' has no line 'second'"),
        (("--from", "old/main@4"), 1, "has no version 4"),
        (("--from", "old/main", "--from-store", "nowhere"), 1, "there is no model store at"),
        (("--from", "old/main", "--from-store", "ftp://x/y"), 2, "ftp://x/y"),
        (("--renamed", "low=w0"), 2, "needs --from"),
        (("--from", "old/main", "--renamed", "low"), 2, "is not NEW=OLD"),
        (("--from", "old/main", "--renamed", "low=w9"), 2, "is not NEW=OLD"),
        (("--from", "old/main", "--renamed", "w9=w0"), 2, "is not NEW=OLD"),
        (("--from", "old/main", "--renamed", "low=w0", "--renamed", "low=w1"), 2, "repeats a name"),
        (
            ("--from", "old/main", "--renamed", "w2="),
            2,
            ("no weights could be taken over; the old one has w0, w1, w2, w3"),
        ),
    ],
)
def test_what_cannot_be_taken_over_is_refused_in_a_sentence(
    store: ModelStore, tmp_path: Path, words: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tuple(str(tmp_path / word) if word == "nowhere" else word for word in words)
    for command in ("check", "create"):
        assert typed(tmp_path, command, *words) == code
        said = capsys.readouterr().err
        assert told in said
        assert "hidden" not in said
        assert "Traceback" not in said
    assert store.studies.names() == ["old"], "nothing is half done"


def test_the_commands_of_the_guide_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = (ROOT / "docs/operators.md").read_text().partition("### Begin with the weights of an older study\n")[2]
    typed = section.partition("```sh\n")[2].partition("```")[0].splitlines()
    assert len(typed) == 3
    monkeypatch.chdir(tmp_path)
    older = (ROOT / "experiments/firefox.toml").read_text()
    larger = older.replace('"firefox"', '"larger"').replace('model = "frecency-2018"', 'model = "frecency-own"')
    Path("larger.toml").write_text(larger.replace('"typedVisitBonus"', '"typedBonus"'))
    for command in (
        f"study create {ROOT}/experiments/firefox.toml",
        "store continue firefox main --from 137",
        *(line.removeprefix("fedping ") for line in typed),
    ):
        assert main(shlex.split(command, comments=True)) == 0, command
    said = capsys.readouterr().out
    assert said.count("takes over 21 weights from version 137 of firefox/main, and 1 keeps the start value") == 2
    assert re.search(r"typedBonus +anew -> +2000", said), "so says the check"
    first = open_store(tmp_path / "store").version("larger", "main", 0).lineage.warm_start
    assert first is not None
    assert first.renamed == {"typedBonus": "typedVisitBonus", "reloadVisitBonus": ""}
    assert "study 'firefox' has ended" in said


def test_a_damaged_old_version_is_refused(
    store: ModelStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store/old/main/versions/2.json"
    path.write_bytes(path.read_bytes().replace(b"w0", b"w9", 1))
    assert typed(tmp_path, "create", "--from", "old/main@2") == 1
    assert "it was damaged" in capsys.readouterr().err


def test_weights_go_over_from_a_bucket_and_into_one(
    store: ModelStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with object_server() as endpoint, bucket_of(endpoint) as bucket:
        assert main(["store", "copy", "old", "--to", f"{bucket.url}/a", "--store", str(tmp_path / "store")]) == 0
        words = ("--from", "old/main@1", "--from-store")
        assert typed(tmp_path, "create", *words, f"{bucket.url}/nothing") == 1
        assert "there is no model store at" in capsys.readouterr().err
        assert typed(tmp_path, "create", *words, f"{bucket.url}/a", store=str(tmp_path / "here")) == 0
        assert typed(tmp_path, "create", *words, str(tmp_path / "store"), store=f"{bucket.url}/b") == 0
        command = ["store", "recompute", "new", "main", "0", "--store", str(tmp_path / "here")]
        assert main([*command, "--from-store", f"{bucket.url}/a"]) == 0
        assert "not checked" not in capsys.readouterr().out
    here = open_store(tmp_path / "here").version("new", "main", 0)
    assert here.weights[2] == store.version("old", "main", 1).weights[2]


def line_of(
    *weights: str, blocks: tuple[Block, ...] = (), constraints: tuple[NonNegative | OrderedCutoffs, ...] = ()
) -> Line:
    made = tuple(Weight(name=name, start=100.0 + i, step=STEP) for i, name in enumerate(weights))
    return Line(name="main", spec=ModelSpec(name="s", model="x", weights=made, blocks=blocks, constraints=constraints))


def block(name: str, *shape: int, seed: int = 1) -> Block:
    return Block(name=name, shape=shape, start=Normal(seed=seed, scale=1.0), step=STEP)


def test_blocks_are_taken_over_by_name_and_shape() -> None:
    old = line_of("bias", blocks=(block("W1", 3, 2), block("W2", 2, 2), block("W3", 2))).spec
    new = line_of("bias", "more", blocks=(block("W3", 2, seed=5), block("W1", 4, 2, seed=5), block("V", 2, 2, seed=5)))
    values = np.arange(float(old.m))
    begun = beginning(new, old, values, {"V": "W2"})
    assert begun.weights.tolist()[:4] == [0.0, 101.0, 11.0, 12.0]
    assert begun.weights.tolist()[-4:] == [7.0, 8.0, 9.0, 10.0]
    assert begun.weights[4:12].tolist() == new.spec.start_array[4:12].tolist()
    told = {part.name: (part.source, part.note) for part in begun.parts}
    assert told == {
        "bias": ("bias", ""),
        "more": (None, ""),
        "W3": ("W3", ""),
        "W1": (None, "its shape was 3 x 2"),
        "V": ("W2", ""),
    }
    assert begun.taken == 7
    for renamed, why in (
        ({"W1": "W1"}, "because its shape was 3 x 2"),
        ({"V": "bias"}, "because only one of them is a block"),
        ({"more": "W1"}, "because only one of them is a weight"),
    ):
        with pytest.raises(InvalidSettings, match=why):
            beginning(new, old, values, renamed)


def test_one_weight_may_become_two_and_one_may_start_anew_under_an_old_name() -> None:
    begun = beginning(line_of("a", "b", "c"), line_of("a", "b").spec, (1.0, 2.0), {"c": "a", "b": ""})
    assert begun.weights.tolist() == [1.0, 101.0, 1.0]
    assert begun.parts[1].note == "as asked"


NAMES = ("a", "b", "c", "d", "e")


@given(
    st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    st.lists(st.floats(-1e3, 1e3), min_size=5, max_size=5),
)
def test_what_has_a_name_in_both_keeps_its_value_and_all_else_its_start(
    names: list[str], before: list[str], values: list[float]
) -> None:
    new, old, values = line_of(*names), line_of(*before).spec, values[: len(before)]
    if not set(names) & set(before):
        with pytest.raises(InvalidSettings, match="no weights could be taken over"):
            beginning(new, old, values, {})
        return
    known = dict(zip(before, values, strict=True))
    begun = beginning(new, old, values, {})
    assert begun.weights.tolist() == [known.get(name, start) for name, start in zip(names, new.spec.start, strict=True)]
    assert begun.moved == ()
    held = beginning(line_of(*names, constraints=(NonNegative(),)), old, values, {})
    assert held.weights.tolist() == [max(value, 0.0) for value in begun.weights.tolist()]


def private_store(folder: Path, study: Study) -> ModelStore:
    store = store_with(folder / "store", study)
    key = folder / "key"
    make_key(key)
    for n in range(2):
        land_private(folder / "landing", study, private_crowd(study, 40, seed=n, version=n), iteration=n)
        run_round(
            *(store, folder / "landing", study.name, "main", NumpyEngine()),
            RoundOptions(clock=lambda: WHEN, code_version="t", privacy_key=read_key(key)),
        )
    return store


def begin(store: ModelStore, study: Study, old: str) -> Study:
    warm = warm_from(store, study.line("main"), old, "main", None, {})
    begun = {"main": (warm.weights, warm.origin)}
    store.create_study(study, first_versions(study, created=WHEN, code_version="t", warm=begun))
    return study


def test_the_privacy_card_tells_what_was_promised_to_those_behind_the_start_weights(tmp_path: Path) -> None:
    renamed = msgspec.structs.replace
    old = renamed(private_study(), name="old")
    store = private_store(tmp_path, old)
    spent = store.head("old", "main").lineage.privacy
    assert spent is not None
    assert spent.epsilon is not None
    privacy = Privacy(central=Central(epsilon=1.5, delta=1e-7, rounds=5, population=1000, noise_multiplier=8.0))
    new = begin(store, renamed(private_study(privacy=privacy), name="new"), "old")
    newer = begin(store, renamed(private_study(privacy=privacy), name="newer"), "new")

    def said(study: Study) -> str:
        return card_of(study, start_version(store, study)).text

    assert "Start weights" not in said(old)
    assert f"version 2 of old/main was learned privately: by then (epsilon = {spent.epsilon:.4g}" in said(new)
    assert f"also took part in old/main has (epsilon = {1.5 + spent.epsilon:.4g}, delta = 1.1e-06)" in said(new)
    assert f"also took part in new/main, old/main has (epsilon = {1.5 + spent.epsilon:.4g}" in said(newer)

    plain = small_study("plain", m=4)
    begin(store, plain, "old")
    assert "Its own pings have no guarantee" in said(plain)
    after_plain = begin(store, renamed(private_study(privacy=privacy), name="later"), "plain")
    assert "version 0 of plain/main was learned from pings without a guarantee" in said(after_plain)
    assert "version 2 of old/main was learned privately" in said(after_plain)


def test_pages_tell_where_version_0_is_from(store: ModelStore, tmp_path: Path) -> None:
    begin(store, msgspec.structs.replace(store.study("old"), name="new"), "old")
    visitor = dashboard_client(tmp_path)
    assert "Start weights" in visitor.get("/live/new/privacy").text
    assert "Start weights" not in visitor.get("/live/old/privacy").text
    told = visitor.get("/live/new/main/versions/0.json").get_json()
    assert told["made_by"] == "Published with the study, with weights that were taken over from version 3 of old/main"


def test_a_private_study_that_begins_with_weights_of_pings_without_a_promise_is_warned_of(
    store: ModelStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = NEW.replace('name = "new"', 'name = "new"\npings = "private-update"').replace(
        "[lines.pipeline]\nmin_clients = 1\n", ""
    )
    file += "\n[lines.privacy.central]\nepsilon = 2.0\ndelta = 1e-6\nrounds = 5\npopulation = 1000\n"
    (tmp_path / "new.toml").write_text(file)
    assert typed(tmp_path, "create", "--from", "old/main") == 0
    assert "does not cover what version 0 reveals about these" in capsys.readouterr().err
    assert main(["privacy", "card", "new", "--store", str(tmp_path / "store")]) == 0
    assert "version 3 of old/main was learned from pings without a guarantee" in capsys.readouterr().out


def test_an_older_fedping_is_told_by_the_format_that_it_cannot_read_such_a_version(
    store: ModelStore, tmp_path: Path
) -> None:
    assert typed(tmp_path, "create", "--from", "old/main") == 0
    data = store.versions.stored_bytes("new", "main", 0)
    assert data is not None
    assert data.startswith(b'{"format":%d' % TAKEN_OVER_FORMAT)
    assert TAKEN_OVER_FORMAT > FORMAT
