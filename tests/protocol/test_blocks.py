"""Weights in blocks: the same model as with single weights, in a short document, and the same start everywhere."""

import hashlib
import itertools
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.spec import (
    Block,
    ModelSpec,
    Normal,
    OrderedCutoffs,
    Start,
    Step,
    Uniform,
    Weight,
    Zeros,
    published,
    published_array,
)
from fedping.protocol.study import Arm, Line, Study, study_from_toml

STEP = Step(start=1, min=0.1, max=3)
SMALL = Step(start=0.01, min=0.001, max=0.03)
NETWORK = ModelSpec(
    name="net",
    model="network",
    weights=(Weight(name="bias", start=0.5, step=STEP, integer=True),),
    blocks=(
        Block(name="W1", shape=(2, 3), start=Uniform(seed=7, scale=0.5), step=SMALL),
        Block(name="b1", shape=(3,), step=STEP, integer=True),
        Block(name="T", shape=(2, 1, 2), start=Normal(seed=7, scale=2), step=SMALL),
    ),
)
NAMES = ["bias", *[f"W1[{i},{j}]" for i in range(2) for j in range(3)], "b1[0]", "b1[1]", "b1[2]"]
NAMES += ["T[0,0,0]", "T[0,0,1]", "T[1,0,0]", "T[1,0,1]"]


def test_names_are_in_the_order_of_the_wire() -> None:
    assert (NETWORK.m, len(NETWORK.names), list(NETWORK.names)) == (14, 14, NAMES)
    assert [NETWORK.names.index(name) for name in NAMES] == list(range(14))
    assert (NETWORK.names[-1], NETWORK.names[1:3]) == ("T[1,0,1]", ("W1[0,0]", "W1[0,1]"))
    assert NETWORK.document_names == ()


def test_a_name_of_a_block_stands_for_all_of_its_places_and_one_of_a_weight_for_its_own() -> None:
    names = NETWORK.names
    assert [names.places(name) for name in ("W1", "b1", "T")] == [range(1, 7), range(7, 10), range(10, 14)]
    assert [names.places(name) for name in ("bias", "b1[2]")] == [range(1), range(9, 10)]
    assert [len(names.places(name)) for name in ("W2", "b1[3]", "b1[0,0]", "b1[0", "")] == [0] * 5


shapes = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)


@given(st.lists(shapes, min_size=1, max_size=4), st.data())
def test_a_name_leads_back_to_its_place(made: list[tuple[int, ...]], data: st.DataObject) -> None:
    blocks = tuple(Block(name=f"B{i}", shape=shape, step=STEP) for i, shape in enumerate(made))
    spec = ModelSpec(name="s", model="any", blocks=blocks)
    place = data.draw(st.integers(0, spec.m - 1))
    expected = list(
        itertools.chain.from_iterable(
            (f"{block.name}[{','.join(map(str, index))}]" for index in np.ndindex(*block.shape)) for block in blocks
        )
    )
    assert spec.names[place] == expected[place]
    assert spec.names.index(expected[place]) == place


@pytest.mark.parametrize("name", ["", "W1", "W1[]", "W1[2,0]", "W1[0,3]", "W1[0]", "W1[00,0]", "W1[-1,0]", "b1[0", "x"])
def test_what_is_no_name_is_not_found(name: str) -> None:
    assert name not in NETWORK.names
    with pytest.raises(ValueError, match="no weight is named"):
        NETWORK.names.index(name)


def test_a_name_outside_is_an_error_as_in_any_sequence() -> None:
    with pytest.raises(IndexError):
        NETWORK.names[14]


def test_a_block_is_what_its_weights_would_be_one_by_one() -> None:
    of_block = {name: block for block in NETWORK.blocks for name in NAMES if name.startswith(f"{block.name}[")}
    single = [NETWORK.weights[0]] + [
        Weight(name=name, start=start, step=of_block[name].step, integer=of_block[name].integer)
        for name, start in list(zip(NAMES, NETWORK.start, strict=True))[1:]
    ]
    same = ModelSpec(name="net", model="network", weights=tuple(single))
    assert same.start == NETWORK.start
    assert list(same.names) == list(NETWORK.names)
    assert all(np.array_equal(a, b) for a, b in zip(same.steps, NETWORK.steps, strict=True))
    weights = tuple(np.linspace(-3, 3, 14).tolist())
    assert published(same, weights) == published(NETWORK, weights)
    np.testing.assert_array_equal(published_array(NETWORK, np.array(weights)), published(NETWORK, weights))


def test_integers_in_a_block_are_published_half_up_and_the_others_as_they_are() -> None:
    found = published(NETWORK, (0.5,) * 14)
    assert found == (1.0, *(0.5,) * 6, 1.0, 1.0, 1.0, *(0.5,) * 4)


def reference(start: Start, name: str, count: int) -> list[float]:
    """Return start values, computed one by one with Python's integers."""
    if isinstance(start, Zeros):
        return [0.0] * count
    key = int.from_bytes(hashlib.sha256(f"{start.seed}\n{name}".encode()).digest()[:8], "little")

    def bits(number: int) -> int:
        value = (key + number * 0x9E3779B97F4A7C15) % 2**64
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
        return value ^ value >> 31

    if isinstance(start, Uniform):
        return [start.scale * (2 * ((bits(6 * i + 1) >> 11) / 2**53) - 1) for i in range(count)]
    sums = [
        sum(divmod(bits(6 * i + draw), 2**32)[half] for draw in range(1, 7) for half in (0, 1)) for i in range(count)
    ]
    return [start.scale * (total / 2**32 - 6) for total in sums]


@given(
    st.one_of(
        st.just(Zeros()),
        st.builds(Uniform, seed=st.integers(0, 2**53 - 1), scale=st.floats(1e-6, 1e6)),
        st.builds(Normal, seed=st.integers(0, 2**53 - 1), scale=st.floats(1e-6, 1e6)),
    ),
    st.integers(1, 40),
)
def test_start_values_are_the_same_by_plain_integers(start: Start, count: int) -> None:
    spec = ModelSpec(name="s", model="any", blocks=(Block(name="W.1", shape=(count,), start=start, step=STEP),))
    assert list(spec.start) == reference(start, "W.1", count)


def test_start_values_stay_what_they_are() -> None:
    """Compared with recorded numbers, so that a change of the method is noticed: clients know only the seed."""
    expected = [0.4095431527556809, -0.0890627429729195, -0.4383225140773408]
    assert list(NETWORK.start[1:4]) == expected
    assert list(NETWORK.start[10:12]) == [0.6413030526600778, 2.047923798672855]


def test_start_values_are_distributed_as_they_say_and_blocks_do_not_repeat_each_other() -> None:
    from scipy import stats

    blocks = (
        Block(name="u", shape=(300, 100), start=Uniform(seed=3, scale=0.25), step=STEP),
        Block(name="n", shape=(300, 100), start=Normal(seed=3, scale=0.25), step=STEP),
        Block(name="v", shape=(300, 100), start=Uniform(seed=3, scale=0.25), step=STEP),
    )
    u, n, v = np.split(ModelSpec(name="s", model="any", blocks=blocks).start_array, 3)
    assert stats.kstest(u, stats.uniform(-0.25, 0.5).cdf).pvalue > 1e-4
    assert stats.kstest(n, stats.norm(0, 0.25).cdf).pvalue > 1e-4
    assert abs(stats.pearsonr(u, v).statistic) < 5 / math.sqrt(len(u))


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({}, "has 0 weights"),
        ({"blocks": (Block(name="W", shape=(2_000_000, 2), step=STEP),)}, "has 4,000,000 weights"),
        ({"blocks": (Block(name="W", shape=(2,), step=STEP),) * 2}, "has two blocks named 'W'"),
        ({"blocks": (Block(name="W", shape=(2,), step=Step(9, 1, 2)),)}, "block 'W' of model spec 's': step.start 9"),
        (
            {"weights": (Weight("W[1]", 0, STEP),), "blocks": (Block(name="W", shape=(2,), step=STEP),)},
            r"names the weight 'W\[1\]' of a block twice",
        ),
        (
            {
                "blocks": (Block(name="W", shape=(2,), step=STEP),),
                "constraints": (OrderedCutoffs(weights=("W[0]", "W[2]")),),
            },
            r"names the weight 'W\[2\]', which the spec does not have",
        ),
    ],
)
def test_a_spec_that_cannot_be_meant_is_refused(parts: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidSettings, match=sentence):
        ModelSpec(name="s", model="any", **parts)


def test_a_million_weights_are_a_short_document_and_travel() -> None:
    blocks = (Block(name="W", shape=(1000, 1000), start=Normal(seed=1, scale=0.1), step=SMALL),)
    spec = ModelSpec(name="big", model="any", blocks=blocks)
    document = msgspec.json.encode(spec)
    assert len(document) < 600
    received = msgspec.json.decode(document, type=ModelSpec)
    assert (received, received.digest, received.m) == (spec, spec.digest, 1_000_000)
    assert np.array_equal(received.start_array, spec.start_array)
    assert (spec.names[999_999], spec.names.index("W[999,999]")) == ("W[999,999]", 999_999)


def test_blocks_are_written_in_a_study_file(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        """
name = "s"
pings = "model-update"
[[arms]]
name = "a"
share = 1.0
line = "main"
submits = true
[[lines]]
name = "main"
[lines.spec]
name = "net"
model = "network"
[[lines.spec.blocks]]
name = "W1"
shape = [30, 100]
start = { values = "uniform", seed = 1, scale = 0.2 }
step = { start = 0.01, min = 0.001, max = 0.1 }
[[lines.spec.blocks]]
name = "b1"
shape = [100]
step = { start = 0.01, min = 0.001, max = 0.1 }
"""
    )
    study = study_from_toml(tmp_path / "s.toml")
    step = Step(start=0.01, min=0.001, max=0.1)
    blocks = (
        Block(name="W1", shape=(30, 100), start=Uniform(seed=1, scale=0.2), step=step),
        Block(name="b1", shape=(100,), step=step),
    )
    line = Line(name="main", spec=ModelSpec(name="net", model="network", blocks=blocks))
    arm = Arm(name="a", share=1, line="main", submits=True)
    assert study == Study(name="s", pings="model-update", arms=(arm,), lines=(line,))
    assert study.lines[0].spec.m == 3100


def test_arrays_of_a_spec_cannot_be_changed_by_accident() -> None:
    for array in (NETWORK.start_array, *NETWORK.steps, NETWORK.integer):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
