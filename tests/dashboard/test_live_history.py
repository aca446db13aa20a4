"""The Live page's data: each version is read once, and sent once to every page."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.dashboard.live.feed import LineFeed, Lines, whole_history
from fedping.dashboard.live.history import KnownLine, LineHistory
from fedping.dashboard.live.rows import (
    MOST_SHOWN,
    STANDARD_ERRORS,
    Row,
    ShownLinks,
    choose,
    chosen_at,
    stable_share,
    standard_errors,
)
from fedping.model_store import Aggregate, ModelStore, StoreError, open_store
from fedping.model_store.decisions import rollback
from fedping.protocol.pipeline import Adagrad, Adam, GradientDescent, Momentum, Optimizer, Pipeline, RProp, Yogi
from fedping.protocol.spec import Block, ModelSpec, Step
from fedping.protocol.stopping_settings import IterationBySigns
from fedping.protocol.study import Line, Study
from fedping.server_jobs.optimize import (
    Arrays,
    Display,
    Transformation,
    Vector,
    first_state,
    first_versions,
    in_order,
)
from fedping.server_jobs.optimize.optimizers import OPTIMIZERS
from fedping.server_jobs.round.stopping import stable_signs
from tests.support.dashboard import dashboard_settings
from tests.support.steps import next_weights
from tests.support.versions import WHEN, after, small_study, version_0
from tests.support.walks import following, walked_store


def feed_over(folder: Path, study: str = "study") -> LineFeed:
    return LineFeed(study, "main", Lines(dashboard_settings(folder)))


def numbers(rows: list[Row] | tuple[Row, ...]) -> list[int]:
    return [row.version for row in rows]


def started(folder: Path, versions: int = 0) -> ModelStore:
    store = open_store(folder / "store", create=True)
    study = small_study()
    store.create_study(study, (version_0(study),))
    for _ in range(versions):
        store.publish(after(store.head("study", "main")))
    return store


def test_a_row_tells_what_the_version_document_holds(tmp_path: Path) -> None:
    study = small_study()
    store = walked_store(tmp_path / "store", study, 3)
    first, version = store.version("study", "main", 0), store.version("study", "main", 3)
    rows = whole_history(Lines(dashboard_settings(tmp_path)), "study", "main")["rows"]
    assert numbers(rows) == [0, 1, 2, 3]
    assert rows[0].change == (0, 0)
    assert rows[0].stable is None
    made = version.lineage.aggregate
    assert made is not None
    assert (rows[3].clients, rows[3].counts, rows[3].arms) == (
        made.clients,
        version.lineage.counts,
        version.lineage.arms,
    )
    assert rows[3].change == pytest.approx(np.array(version.model) - np.array(first.model), rel=1e-5)
    assert rows[3].links["rate"] == pytest.approx(version.state["rprop"]["rate"], rel=1e-5)


finite = st.floats(-1e6, 1e6)


@given(
    st.lists(st.tuples(finite, st.floats(0, 1e6)), min_size=1, max_size=8),
    st.one_of(st.just(1.0), st.floats(1.5, 1e6)),
)
def test_the_share_of_stable_signs_is_that_by_which_iterations_end(
    moments: list[tuple[float, float]], weight: float
) -> None:
    mean, m2 = zip(*moments, strict=True)
    made = Aggregate(pings=9, clients=9, weight=weight, mean=mean, m2=m2)
    assert stable_share(standard_errors(made), weight) == stable_signs(made, IterationBySigns(z=STANDARD_ERRORS))


def test_a_weight_that_no_update_moves_has_no_sign_and_is_stable() -> None:
    made = Aggregate(pings=4, clients=4, weight=4.0, mean=(0.0, 1.0, 0.1), m2=(0.0, 0.0, 12.0))
    away = standard_errors(made)
    assert np.isnan(away[0])
    assert away[1:].tolist() == [99.0, 0.1]
    assert stable_share(away, 4.0) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (GradientDescent(rate=0.5), [0.5]),
        (GradientDescent(rate=0.6, decay="1/t"), [0.2]),
        (Momentum(rate=0.9, decay="1/sqrt(t)"), [0.9 / 3**0.5]),
    ],
)
def test_a_rate_that_all_weights_share_is_that_of_the_last_step(optimizer: Optimizer, expected: list[float]) -> None:
    assert rates(optimizer, 3).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("optimizer", [Adam(rate=0.1, beta1=0), Yogi(rate=0.1, beta1=0), Adagrad(rate=0.1)])
def test_the_rate_of_each_weight_is_its_step_over_its_update(optimizer: Optimizer) -> None:
    before, version = stepped(optimizer, 3)[-2:]
    assert version.lineage.aggregate is not None
    step = np.array(version.weights) - np.array(before.weights)
    assert rates(optimizer, 3) == pytest.approx(step / np.array(version.lineage.aggregate.mean))


def test_before_the_first_step_nothing_is_known_of_a_rate_that_changes() -> None:
    for optimizer in (Adam(), Momentum(decay="1/t")):
        assert np.isnan(rates(optimizer, 0)).all()


def rates(optimizer: Optimizer, steps: int) -> np.ndarray:
    return ShownLinks(line_with(optimizer)).of(stepped(optimizer, steps)[-1], [0, 1])["rate"]


def line_with(optimizer: Optimizer) -> Line:
    line = small_study().lines[0]
    spec = msgspec.structs.replace(line.spec, constraints=())
    return msgspec.structs.replace(line, spec=spec, pipeline=Pipeline(optimizer=optimizer, min_clients=1))


def stepped(optimizer: Optimizer, steps: int) -> list:
    line = line_with(optimizer)
    study = msgspec.structs.replace(small_study(), lines=(line,))
    versions = list(first_versions(study, created=WHEN, code_version="test"))
    for k in range(steps):
        made = Aggregate(pings=2, clients=2, weight=2.0, mean=(1.0 + k, -0.5), m2=(1.0, 1.0))
        weights, state = next_weights(line, versions[-1].weights, versions[-1].state, made)
        version = msgspec.structs.replace(after(versions[-1]), weights=weights, state=state)
        lineage = msgspec.structs.replace(version.lineage, aggregate=made)
        versions.append(msgspec.structs.replace(version, lineage=lineage))
    return versions


OWN = RProp()


def own_link(displays: dict[str, Display]) -> Callable[..., Transformation[Arrays]]:
    """Return the maker of a link with state: a number for each weight, a vector of another length, and a step count."""

    def made(_: object, spec: ModelSpec) -> Transformation[Arrays]:
        def update(step: Vector, state: Arrays, _: Vector) -> tuple[Vector, Arrays]:
            return step, {"trust": state["trust"] - step, "odd": state["odd"], "count": state["count"] + 1}

        first = {"trust": np.zeros(spec.m), "odd": np.zeros(3), "count": np.zeros(1)}
        return Transformation(lambda _: first, update, displays)

    return made


def test_a_link_that_does_not_say_what_to_show_is_shown_by_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, RProp, own_link({}))
    links = ShownLinks(line_with(OWN))
    assert [(each.name, each.by_weight) for each in links.described] == [("trust", True), ("count", False)]
    shown = links.of(stepped(OWN, 2)[-1], [1])
    assert {name: values.tolist() for name, values in shown.items()} == {"trust": [1.0], "count": [2.0]}


def failing(_: Arrays) -> Vector:
    raise KeyError("what")


@pytest.mark.parametrize(
    ("values", "said"),
    [(failing, "KeyError"), (lambda _: np.zeros((2, 2)), "not a vector"), (lambda _: "x", "ValueError")],
)
def test_a_link_that_cannot_show_itself_is_named_and_breaks_no_page(
    monkeypatch: pytest.MonkeyPatch, values: Callable[[Arrays], Vector], said: str
) -> None:
    monkeypatch.setitem(OPTIMIZERS, RProp, own_link({"mood": Display("How it feels", values)}))
    links = ShownLinks(line_with(OWN))
    (described,) = links.described
    assert described.words.startswith("The link 'rprop' cannot show its 'mood': ")
    assert said in described.words
    assert np.isnan(links.of(stepped(OWN, 2)[-1], [0])["mood"]).all()


def test_a_version_of_format_1_shows_what_one_of_format_2_does() -> None:
    version = stepped(Adam(), 3)[-1]
    links, line = ShownLinks(line_with(Adam())), line_with(Adam())
    older = msgspec.structs.replace(version, format=1, state=in_order(version.state, first_state(line)))
    assert links.of(older, [0, 1])["rate"].tolist() == links.of(version, [0, 1])["rate"].tolist()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["publish", "look", "restart", "look of another"]), max_size=12))
def test_a_page_is_told_of_every_version_once(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = started(folder)
    feed, position, told = feed_over(folder), None, []
    for step in [*steps, "look"]:
        if step == "publish":
            store.publish(after(store.head("study", "main")))
        elif step == "restart":
            feed = feed_over(folder)
        elif step == "look of another":
            feed.since(None)
        elif change := feed.since(position):
            assert change.data["whole"] is (position is None)
            position, told = change.position, [*told, *numbers(change.data["rows"])]
    assert told == store.iterations("study", "main")
    assert feed.since(position) is None
    assert feed_over(folder).since(position) is None, "nor does a server that was started again tell it twice"


@pytest.mark.parametrize(
    "position", ["", "x", "0", "-1.a.b.c", "1e3.a.b.c", "7.00000000.00000000.00000000", "9" * 99, "²."]
)
def test_a_position_that_is_not_understood_gives_everything(tmp_path: Path, position: str) -> None:
    started(tmp_path, 2)
    change = feed_over(tmp_path).since(position)
    assert change is not None
    assert change.data["whole"]
    assert numbers(change.data["rows"]) == [0, 1, 2]


def test_a_rollback_is_one_more_row(tmp_path: Path) -> None:
    store = started(tmp_path, 2)
    feed = feed_over(tmp_path)
    first = feed.since(None)
    assert first is not None
    rollback(store, "study", "main", 1, created=WHEN, code_version="test")
    change = feed.since(first.position)
    assert change is not None
    (row,) = change.data["rows"]
    assert (row.version, row.origin, row.restored, row.clients) == (3, "rollback", 1, None)


def test_a_store_that_was_made_anew_is_told_whole(tmp_path: Path) -> None:
    started(tmp_path, 3)
    feed = feed_over(tmp_path)
    position = feed.since(None).position
    (tmp_path / "store").rename(tmp_path / "old")
    gone = feed.since(position)
    assert gone is not None
    assert "there is no model store" in gone.data["trouble"]
    assert feed.since(gone.position) is None, "the trouble is told once"
    store = walked_store(tmp_path / "store", small_study(), 2)
    back = feed.since(gone.position)
    assert back is not None
    assert back.data["whole"]
    assert numbers(back.data["rows"]) == store.iterations("study", "main")
    assert feed.since(position).data["whole"], "nor is a page at the old store's version 3 told an addition"


def test_a_damaged_version_is_left_out_and_told_until_it_is_restored(tmp_path: Path) -> None:
    started(tmp_path, 4)
    file = tmp_path / "store" / "study" / "main" / "versions" / "2.json"
    good = file.read_bytes()
    file.write_bytes(b"{")
    feed = feed_over(tmp_path)
    change = feed.since(None)
    assert change is not None
    assert numbers(change.data["rows"]) == [0, 1, 3, 4]
    assert any("2.json cannot be read" in one["sentence"] for one in change.data["now"].health["findings"])
    assert feed.since(change.position) is None
    file.write_bytes(good)
    mended = feed.since(change.position)
    assert mended is not None
    assert mended.data["whole"]
    assert numbers(mended.data["rows"]) == [0, 1, 2, 3, 4]


def test_an_unknown_study_or_line_is_told_in_a_sentence(tmp_path: Path) -> None:
    started(tmp_path)
    with pytest.raises(StoreError, match="no study 'other'"):
        LineHistory(tmp_path / "store", "other", "main").look(lambda known: known)
    with pytest.raises(Exception, match="no line 'other'"):
        LineHistory(tmp_path / "store", "study", "other").look(lambda known: known)


def test_versions_that_take_long_to_read_come_in_parts(tmp_path: Path) -> None:
    started(tmp_path, 3)
    history = LineHistory(tmp_path / "store", "study", "main")
    at, told = -1, []
    for _ in range(4):
        page = history.look(partial(KnownLine.page, after=at, over=lambda: True))
        at, told = page.through, [*told, *numbers(page.rows)]
    assert (at, told) == (3, [0, 1, 2, 3])


def large_study(m: int) -> Study:
    study = small_study()
    spec = ModelSpec(
        name="large", model="linear-15", blocks=(Block(name="W", shape=(m,), step=Step(start=1, min=0.1, max=3)),)
    )
    return msgspec.structs.replace(study, lines=(Line(name="main", spec=spec, pipeline=Pipeline(min_clients=1)),))


def test_of_a_large_model_those_weights_are_shown_that_changed_most() -> None:
    spec, m = large_study(500).lines[0].spec, 500
    by = np.random.default_rng(1).normal(size=m)
    shown = choose(spec, [0.0] * m, by.tolist(), 8)
    assert len(shown.names) == MOST_SHOWN
    assert sorted(shown.positions) == list(shown.positions)
    assert np.abs(by[list(shown.positions)]).min() >= np.delete(np.abs(by), shown.positions).max()
    assert shown.names[0] == f"W[{shown.positions[0]}]"
    assert shown.pick(by.tolist()).tolist() == by[list(shown.positions)].tolist()


@given(st.integers(0, 100_000))
def test_the_choice_is_made_anew_when_the_versions_have_doubled(newest: int) -> None:
    at = chosen_at(MOST_SHOWN + 1, newest)
    assert at is not None
    assert at <= newest < 2 * max(at, 1) or newest == at == 0
    assert chosen_at(MOST_SHOWN, newest) is None


def test_when_other_weights_are_shown_all_rows_come_again(tmp_path: Path) -> None:
    study = large_study(80)
    store = walked_store(tmp_path / "store", study, 2)
    feed = feed_over(tmp_path)
    change = feed.since(None)
    assert change is not None
    rng = np.random.default_rng(2)
    store.publish(following(study, store.head("study", "main"), rng))
    added = feed.since(change.position)
    assert added is not None
    assert numbers(added.data["rows"]) == [3]
    store.publish(following(study, store.head("study", "main"), rng))
    again = feed.since(added.position)
    assert again is not None
    assert again.data["whole"]
    assert again.data["line"]["weights"].chosen_at == 4
    assert {len(row.change) for row in again.data["rows"]} == {MOST_SHOWN}


def test_what_a_page_is_told_is_json(tmp_path: Path) -> None:
    walked_store(tmp_path / "store", small_study(), 2)
    data = json.loads(msgspec.json.encode(feed_over(tmp_path).since(None).data))
    assert data["line"]["weights"]["names"] == ["w0", "w1"]
    assert data["rows"][2]["arms"]["treatment"]["loss"] is not None
