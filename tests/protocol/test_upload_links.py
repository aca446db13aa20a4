"""Upload links: signs as bits, links applied in order and undone in reverse, and invalid lists of links."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedping.client_sim.upload import sent_updates
from fedping.extending import upload_link
from fedping.protocol.encodings.dense import dense_payloads
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.extensions import OWN, ExtensionFailed, OtherCode
from fedping.protocol.link_ends import ClientEnd, Ends, ServerEnd, Structured
from fedping.protocol.links import Dense, Mask, OwnLink, Sign, Upload, UploadLink, name_of
from fedping.protocol.pipeline import ClipByNorm, MeanOfSigns, Pipeline
from fedping.protocol.rules import traits_of
from fedping.protocol.settings_file import converted
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Arm, Line, Study, public_study
from fedping.protocol.update import Payloads, size_of_updates
from fedping.protocol.upload import receiving, sending
from tests.support.encodings import EXAMPLES
from tests.support.links import line_with
from tests.support.registry import registry_of_its_own

SPEC = ModelSpec(
    name="two", model="any", weights=tuple(Weight(name, 0.0, Step(start=1, min=1, max=1)) for name in ("a", "b"))
)
updates_ = hnp.arrays(
    np.float64,
    st.tuples(st.integers(0, 9), st.integers(1, 40)),
    elements=st.sampled_from([0.0, -0.0, 5e-324, -1e30]) | st.floats(-1, 1),
)


ROOT = Path(__file__).parents[2]
OF_PRIVATE_LINES = {"private", "shared"}
"""Links that study files don't contain; `privacy` sets them."""


def section(page: str, begin: str, end: str) -> str:
    """Return the part of a page between two texts."""
    return (ROOT / page).read_text().partition(begin)[2].partition(end)[0]


def test_every_link_is_in_the_reference() -> None:
    told = re.findall(r'link = "([a-z0-9-]+)"', section("docs/reference.md", "### What a client sends", "\n### "))
    assert {*told} == {kind.__struct_config__.tag for kind in get_args(UploadLink)} - {OWN, *OF_PRIVATE_LINES}


def links_of_browsers() -> set[str]:
    """Return the names of the links that the browser module implements."""
    parts = (section("browser/study/upload.js", f"const {name}", ");") for name in ("OURS", "AFTER_A_MASK"))
    return {*re.findall(r'\["([a-z0-9-]+)", ', "".join(parts))}


def test_links_that_browsers_do_not_have_are_those_advised_against() -> None:
    for link in EXAMPLES:
        if traits_of(link).isdisjoint({"private vector"}) and not isinstance(link, Mask):
            assert ("other draws" in traits_of(link)) == (name_of(link) not in links_of_browsers()), name_of(link)


def test_every_link_of_browsers_is_in_the_pages_about_them() -> None:
    links = links_of_browsers()
    for page, begin, end in (
        ("docs/browser.md", "The module has these links:", "\nIt refuses"),
        ("docs/conformance/README.md", "| link | `encoding` | `payload` |", "\n\n"),
    ):
        rows = re.findall(r"^\| ([^|]*) \|", section(page, begin, end), re.MULTILINE)
        told = " ".join(row for row in rows if "then" not in row)
        assert {*re.findall(r"`([a-z0-9-]+)`", told)} == links, page


def times(*, by: float = 4.0) -> Ends:
    return ClientEnd(transform=lambda updates, keys: updates * by), ServerEnd(
        undo=lambda updates: updates / by, undo_sum=lambda spec, direction: direction / by
    )


def only_once() -> Ends:
    return ClientEnd(transform=lambda updates, keys: updates), ServerEnd(undo_sum=lambda spec, direction: direction)


@dataclass(frozen=True)
class Plus:
    """A link as a class, whose methods are its two ends."""

    what: float = 1.0

    def transform(self, updates: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return updates + self.what

    def undo(self, updates: np.ndarray) -> np.ndarray:
        return updates - self.what


def breaks(*, how: str) -> Ends:
    def encode(updates: np.ndarray, keys: np.ndarray) -> Any:
        return updates.tolist() if how == "no bytes" else 1 / 0

    def decode(payloads: pa.BinaryArray, m: int) -> Any:
        return (np.ones((len(payloads), 1)), np.ones(len(payloads), bool)) if how == "narrow" else None

    if how in ("no bytes", "raises", "narrow", "nothing", "lengths"):
        most = 9 if how != "lengths" else -1
        return ClientEnd(encode=encode), ServerEnd(decode=decode, lengths=lambda m: (0, most))
    if how == "structured":
        within = Structured(within=lambda keys: lambda gradients: gradients, encode=encode)
        return ClientEnd(encode=encode, structured=within), ServerEnd(decode=decode, lengths=lambda m: (0, 9))
    if how == "wordless":
        odd: Any = lambda payload, m: 3  # noqa: E731
        return ClientEnd(encode=encode), ServerEnd(decode=decode, lengths=lambda m: (0, 9), trouble=odd)
    if how == "short":
        return ClientEnd(transform=lambda updates, keys: updates[:, :1]), ServerEnd()
    if how == "nan":
        return ClientEnd(transform=lambda updates, keys: updates * np.nan), ServerEnd(undo=lambda updates: 1 / 0)
    if how == "no lengths":
        return ClientEnd(encode=encode), ServerEnd(decode=decode)
    return ClientEnd(), ServerEnd()


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register links, like a user's module; unregister them after the test."""
    registry_of_its_own(monkeypatch)
    for name, made in (("times", times), ("plus", Plus), ("only-once", only_once), ("breaks", breaks)):
        upload_link(name)(made)


def own(name: str, **settings: Any) -> OwnLink:
    """Return a link as in a settings file."""
    return converted({"link": name, **settings}, OwnLink, "")


def keys(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint64)


def sent(upload: Upload, updates: np.ndarray) -> Any:
    return sent_updates(sending(line_with(upload)), updates, keys(len(updates)))


@given(updates_, st.sampled_from(["up", "abstain"]))
def test_signs_arrive_in_one_bit_or_two(updates: np.ndarray, zero: Any) -> None:
    payloads = sent((Sign(zero=zero),), updates)
    m = updates.shape[1]
    assert isinstance(payloads, Payloads)
    assert set(size_of_updates(payloads).tolist()) <= {-(-(m if zero == "up" else 2 * m) // 8)}
    received = receiving(line_with((Sign(zero=zero),)))
    values, ok = received.decode(payloads.column, m)
    assert ok.all()
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, np.where(updates >= 0, 1, -1) if zero == "up" else np.sign(updates))
    assert not any(received.trouble(payload, m) for payload in payloads.column.to_pylist())


@given(st.lists(st.none() | st.binary(max_size=4), max_size=12), st.integers(1, 14), st.sampled_from(["up", "abstain"]))
def test_whatever_bytes_come_as_signs_are_signs_or_masked(payloads: list[Any], m: int, zero: Any) -> None:
    """Ingest, which checks single payloads, decides like the round."""
    received = receiving(line_with((Sign(zero=zero),)))
    values, ok = received.decode(pa.array(payloads, pa.binary()), m)
    assert values.shape == (len(payloads), m)
    assert set(np.unique(values).tolist()) <= {-1.0, 0.0, 1.0}
    least, most = received.lengths(m)
    for payload, row, good in zip(payloads, values, ok.tolist(), strict=True):
        fits = payload is not None and least <= len(payload) <= most and received.trouble(payload, m) is None
        assert good == fits
        assert good or not row.any()
        if good:
            assert sent((Sign(zero=zero),), row[None].astype(float)).column[0].as_py() == payload


def test_links_are_gone_through_in_order_and_undone_in_reverse() -> None:
    upload = (own("times", by=4), own("plus"))
    updates = np.array([[1.0, -2.0], [0.5, 8.0]])
    travelling = sent(upload, updates)
    assert travelling.tolist() == [[5.0, -7.0], [3.0, 33.0]]
    received = receiving(line_with(upload))
    values, ok = received.decode(dense_payloads(sent((*upload, Dense()), updates)), 2)
    assert ok.all()
    # The second link is undone for each update; the first, which is linear, once.
    assert values.tolist() == [[4.0, -8.0], [2.0, 32.0]]
    assert received.undo_sum(SPEC, values.mean(axis=0).astype(float)).tolist() == [0.75, 3.0]
    # After a nonlinear link nothing is linear: all links are undone for each update.
    by_majority = receiving(line_with(upload, Pipeline(aggregate=MeanOfSigns())))
    assert by_majority.decode(dense_payloads(sent((*upload, Dense()), updates)), 2)[0].tolist() == updates.tolist()
    assert by_majority.undone_once == ()


def test_what_is_undone_of_each_update_comes_before_what_is_undone_of_the_sum() -> None:
    """With plus, then times: times is undone first, and can't wait for the sum, because plus can't."""
    upload = (own("plus"), own("times"))
    received = receiving(line_with(upload))
    updates = np.array([[1.0, -2.0]])
    assert received.decode(dense_payloads(sent((*upload, Dense()), updates)), 2)[0].tolist() == updates.tolist()
    by_majority, clipped = Pipeline(aggregate=MeanOfSigns()), Pipeline(clip=ClipByNorm(norm=1.0))
    for pipeline, first in ((by_majority, "times"), (Pipeline(), "plus"), (clipped, "times")):
        with pytest.raises(InvalidSettings, match="'only-once' of line 'main' is undone once for the sum"):
            receiving(line_with((own(first), own("only-once")), pipeline))


@pytest.mark.parametrize("upload", [(Sign(), Dense()), (Dense(), OwnLink(name="times", code=""))])
def test_nothing_comes_after_what_encodes(upload: Upload) -> None:
    with pytest.raises(InvalidSettings, match="before its last one, but it encodes updates"):
        Line(name="main", spec=SPEC, upload=upload)


def test_a_link_that_is_not_here_or_has_other_code_is_named() -> None:
    elsewhere, other = (OwnLink(name="elsewhere", code="0" * 64),), (OwnLink(name="times", code="0" * 64),)
    Line(name="main", spec=SPEC, upload=elsewhere)  # reading a study doesn't require its links
    for end in (sending, receiving):
        with pytest.raises(InvalidSettings, match=r"the upload link 'elsewhere' is an extension that is not loaded"):
            end(line_with(elsewhere))
        with pytest.raises(OtherCode, match="the upload link 'times' has other code here"):
            end(line_with(other))


def test_settings_of_a_link_are_checked_like_those_of_ours() -> None:
    assert own("times", by=2).settings == {"by": 2.0}
    for upload, said in (
        ([{"link": "times", "bye": 2}], r"\[upload\] of entry 1 has no setting 'bye'; did you mean 'by'"),
        ([{"link": "times"}, {"link": "times", "by": "x"}], r"'by' in \[upload\] of entry 2 is 'x': expected a number"),
        ([{"link": "time"}], "'time'; choose one of dense, .*, only-once, plus, times"),
    ):
        with pytest.raises(InvalidSettings, match=said):
            converted({"name": "main", "spec": msgspec.to_builtins(SPEC), "upload": upload}, Line, "")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "raised ZeroDivisionError: division by zero .test_upload_links.py, line"),
        ("short", "returned from 'transform' float64 of shape .3, 1.; return numbers of shape .3, 2."),
        ("nan", "returned from 'transform' numbers that are not finite"),
        ("no bytes", "returned from 'encode' no Arrow array of 3 binary values"),
        ("no lengths", "gives no two ends of a link: .* 'decode' and 'lengths'"),
        ("neither", "gives no two ends of a link: .* 'transform' or 'encode', not both"),
        ("structured", "gives no two ends of a link: 'structured' is for fedping's own links. Remove it"),
    ],
)
def test_a_client_end_that_breaks_is_named(how: str, said: str) -> None:
    with pytest.raises(ExtensionFailed, match=f"the upload link 'breaks', an extension, {said}"):
        sent((own("breaks", how=how),), np.ones((3, 2)))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nan", "raised ZeroDivisionError"),
        ("nothing", "returned from 'decode' a NoneType"),
        (
            "narrow",
            "returned from 'decode' float64 of shape .3, 1., and bool of shape .3. which could be read;",
        ),
    ],
)
def test_a_server_end_that_breaks_is_named(how: str, said: str) -> None:
    with pytest.raises(ExtensionFailed, match=f"the upload link 'breaks', an extension, {said}"):
        receiving(line_with((own("breaks", how=how),))).decode(dense_payloads(np.ones((3, 2))), 2)


def test_trouble_that_is_no_words_is_named() -> None:
    received = receiving(line_with((own("breaks", how="wordless"),)))
    with pytest.raises(ExtensionFailed, match="'breaks', an extension, returned from 'trouble' a int; return what is"):
        received.trouble(b"123", 2)


def test_lengths_that_are_none_are_named() -> None:
    received = receiving(line_with((own("breaks", how="lengths"),)))
    with pytest.raises(InvalidSettings, match=r"'breaks', .* returned from 'lengths' \(0, -1\) for 2 weights"):
        received.lengths(2)


def test_a_name_of_ours_is_taken() -> None:
    with pytest.raises(InvalidSettings, match="the upload link 'sign' is one of fedping's; give"):
        upload_link("sign")(times)


def test_a_line_without_links_has_the_digest_that_it_had_before_there_were_any() -> None:
    arm = Arm(name="a", share=1.0, line="main", submits=True)
    study = Study(name="s", arms=(arm,), lines=(Line(name="main", spec=SPEC),))
    assert study.digest == "d96b1a28e947a9640aa363cfe8dcf4cdf2313a852b192d84ef874d4c9c379b51"
    with_links = Study(name="s", arms=(arm,), lines=(Line(name="main", spec=SPEC, upload=(Sign(),)),))
    assert with_links.digest != study.digest
    assert b"upload" not in msgspec.json.encode(public_study(study))
    public = msgspec.json.encode(public_study(with_links))
    assert msgspec.json.decode(public, type=Study).lines[0].upload == (Sign(),)
