"""The Results page shows the document's content, in the right reading order."""

import csv
import html
import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from flask.testing import FlaskClient
from scipy.stats import norm

from fedping.analysis.report import table_notes
from fedping.analysis.statistics import Estimate
from fedping.analysis.statistics.looks import boundary
from fedping.analysis.verdict import Asked, Verdict, as_document, plan_of, reach_verdict
from fedping.analysis.verdict.words import percent_text
from fedping.dashboard.results.counts import ASKED, LANDED
from fedping.dashboard.results.landed import Landed
from fedping.dashboard.results.power import clients_for, needs, outlook
from fedping.dashboard.results.question import LABELS, by_fields, key_of, query_of
from fedping.dashboard.results.views import comparisons_csv, sizes_csv
from fedping.experiments.run_process import ENDED, PROCESS, STDERR, STDOUT, Ended, Process
from fedping.model_store.store import open_store
from fedping.protocol.landing import landed_files, partition, write_landed
from fedping.protocol.study import Study
from tests.support.dashboard import csrf_token, dashboard_client
from tests.support.landed import landed_table
from tests.support.verdicts import made_tally
from tests.support.versions import small_study, version_0

WHEN = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
HTML = {"Accept": "text/html"}
GUARDED = Asked(guardrails=("rank_selected",), enrolled=4000)
Keep = Callable[..., str]


def verdict_of(asked: Asked, study: Study, *, skewed: bool = False) -> Verdict:
    tally = made_tally({"treatment": 3.0, "control": 4.0})
    arms = {"treatment": 603, "control": 597} if skewed else {"treatment": 603, "control": 402}
    sized = {name: replace(arm, clients=arms[name], exposed=arms[name]) for name, arm in tally.arms.items()}
    if asked.interim:
        for name, arm in sized.items():
            first = {metric: replace(counted, first=counted.clients) for metric, counted in arm.metrics.items()}
            sized[name] = replace(arm, metrics=first)
    return reach_verdict(study, plan_of(study, asked), replace(tally, arms=sized), asked.enrolled)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Give a study in a store, with ten landed pings."""
    study = small_study()
    open_store(tmp_path / "store", create=True).create_study(study, (version_0(study),))
    write_landed(partition(tmp_path / "landing", "study", "main", 0), landed_table(10, 1), 1)
    return study


@pytest.fixture
def client(tmp_path: Path, study: Study) -> FlaskClient:
    """Give a client of the dashboard over that store."""
    return dashboard_client(tmp_path)


@pytest.fixture
def keep(tmp_path: Path, study: Study) -> Keep:
    """Give a function that stores a count like a finished process, and returns its name."""

    def keep(asked: Asked, at: int = 1, code: int = 0, said: str = "", **how: bool) -> str:
        folder = tmp_path / "runs" / "results" / "study" / f"{at:013d}-{key_of(asked)}"
        folder.mkdir(parents=True)
        files = landed_files(partition(tmp_path / "landing", "study", "main", 0))
        landed = Landed({"study=study/line=main/iteration=0": tuple(file.name for file in files)}, {"main": 0}, "1")
        kept: dict[str, msgspec.Struct] = {
            ASKED: asked,
            LANDED: landed,
            PROCESS: Process(1, WHEN),
            ENDED: Ended(code, WHEN),
        }
        for name, value in kept.items():
            (folder / name).write_bytes(msgspec.json.encode(value))
        verdict = verdict_of(asked, study, **how)
        document = json.dumps(as_document(verdict, "Mind <the> training.", table_notes(verdict)))
        (folder / STDOUT).write_text(document + "\n" if code == 0 else "")
        (folder / STDERR).write_text(said)
        return folder.name

    return keep


def page(client: FlaskClient, query: str = "", status: int = 200) -> str:
    answer = client.get(f"/results/study/?{query}", headers=HTML)
    assert answer.status_code == status
    return answer.get_data(as_text=True)


def words(text: str) -> str:
    """Return the visible text of a page."""
    body = re.sub(r"<script.*?</script>|<[^>]+>", " ", text[text.index("<main") :], flags=re.S)
    return " ".join(html.unescape(body).split())


def test_the_only_study_and_its_newest_question_are_found_without_an_address(client: FlaskClient, keep: Keep) -> None:
    keep(Asked(), at=1)
    keep(GUARDED, at=2)
    assert client.get("/results/").headers["Location"] == "/results/study/"
    assert client.get("/results/study/").headers["Location"] == f"/results/study/?{query_of(GUARDED)}"


def test_without_a_count_the_question_comes_before_the_notes_and_its_button_is_on_top(
    client: FlaskClient, keep: Keep
) -> None:
    text = page(client)
    assert text.index('form="question"') < text.index('id="question"') < text.index('id="notes"')
    keep(GUARDED)
    text = page(client, query_of(GUARDED))
    assert 'form="question"' not in text
    assert text.index('id="notes"') < text.index('id="question"')


def test_the_verdict_comes_first_and_guardrails_stand_apart(client: FlaskClient, keep: Keep, study: Study) -> None:
    keep(GUARDED)
    said, verdict = words(page(client, query_of(GUARDED))), verdict_of(GUARDED, study)
    places = [
        said.index(part)
        for part in (
            verdict.headline,
            "Mind <the> training.",
            "Goals",
            verdict.lift_sentences[0],
            "Guardrails",
            verdict.lift_sentences[1],
            "Sizes of the arms",
            verdict.ratio_sentence,
            "Tests and effects",
            verdict.sentences[0],
        )
    ]
    assert places == sorted(places)
    assert "wrong sizes" not in said
    assert "Interim look" not in said
    assert "2,400" in said, "the enrolled of treatment, 60 % of 4,000"


def test_wrong_sizes_are_an_alarm_before_everything(client: FlaskClient, keep: Keep, study: Study) -> None:
    keep(GUARDED, skewed=True)
    text = page(client, query_of(GUARDED))
    verdict = verdict_of(GUARDED, study, skewed=True)
    assert verdict.ratio.mismatch
    assert words(text).index(verdict.ratio_sentence) < words(text).index(verdict.headline)
    assert 'class="alarm mismatch" role="alert"' in text
    assert 'class="tag better"' not in text, "nothing is praised that cannot be relied on"


def test_an_interim_look_cannot_be_taken_for_the_end(client: FlaskClient, keep: Keep) -> None:
    asked = Asked(interim=True, planned_clients=5000)
    keep(asked)
    said = words(page(client, query_of(asked)))
    assert said.index("Interim look Not the end of the study") < said.index("Interim look, not the final verdict.")
    assert "narrowest at 5,000 clients in two arms" in said
    assert "1,200 (24 %), by the pair" in said
    assert "p, which decides nothing yet" in said


def test_what_the_page_draws_is_of_the_kept_document_and_ends_no_script(
    client: FlaskClient, keep: Keep, study: Study
) -> None:
    id = keep(GUARDED)
    text = page(client, f"count={id}")
    embedded = re.search(r'<script type="application/json" id="view">(.*?)</script>', text, re.S)
    assert embedded is not None
    assert "<" not in embedded[1]
    view = json.loads(embedded[1])
    assert list(view["arms"]) == ["treatment", "control"]
    assert client.get(f"/results/study/document.json?count={id}").get_data(as_text=True).startswith('{"format": 1')
    for effects, one in zip(view["effects"], verdict_of(GUARDED, study).comparisons, strict=True):
        [row] = effects["rows"]
        assert row["pair"] == list(one.pair)
        lift, difference, ranks = (row["scales"][scale] for scale in ("lift", "difference", "ranks"))
        assert (lift["value"], lift["low"], lift["high"]) == tuple(
            100 * each for each in (one.effect.lift.relative.value, *bounds(one.effect.lift.relative))
        )
        assert (difference["low"], difference["high"]) == bounds(one.effect.lift.difference)
        assert (ranks["low"], ranks["high"]) == tuple(100 * each for each in bounds(one.deciding))


def bounds(estimate: Estimate) -> tuple[float, float]:
    return estimate.low, estimate.high


def test_csv_has_a_comparison_and_an_arm_a_row_with_every_digit(client: FlaskClient, keep: Keep, study: Study) -> None:
    keep(GUARDED)
    rows = read_csv(client.get(f"/results/study/comparisons.csv?{query_of(GUARDED)}").get_data(as_text=True))
    for row, one in zip(rows, verdict_of(GUARDED, study).comparisons, strict=True):
        assert (row["metric"], row["first"], row["second"]) == (one.metric.name, *one.pair)
        assert row["role"] == ("guardrail" if one.metric.name == "rank_selected" else "goal")
        assert float(row["difference_low"]) == one.clients.difference.low
        assert float(row["log10_p_holm"]) == one.log10_holm
        assert (row["decides_scale"], float(row["decides_high"])) == ("superiority", one.deciding.high)
        assert float(row["percent"]) == 100 * one.clients.difference.value / one.base
        assert float(row["ping_mean_second"]) == one.pings.means[1]
        assert row["anytime"] == ""
        assert row["worse"] in ("true", "false")
    sizes = read_csv(client.get(f"/results/study/sizes.csv?{query_of(GUARDED)}").get_data(as_text=True))
    assert [(row["arm"], int(row["clients"]), float(row["enrolled"])) for row in sizes] == [
        ("treatment", 603, 2400.0),
        ("control", 402, 1600.0),
    ]


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_of_an_unbounded_interval_leaves_the_bounds_empty(study: Study) -> None:
    document = as_document(verdict_of(Asked(interim=True), study))
    document["comparisons"][0]["anytime_valid"]["low"] = None
    rows = read_csv(comparisons_csv(document))
    assert rows[0]["anytime_low"] == ""
    assert float(rows[1]["anytime_low"]) < float(rows[1]["anytime_high"])
    assert len(read_csv(sizes_csv(document))) == 2


def test_pings_that_landed_since_and_earlier_looks_are_told(client: FlaskClient, keep: Keep, tmp_path: Path) -> None:
    first = keep(Asked(), at=1)
    write_landed(partition(tmp_path / "landing", "study", "main", 0), landed_table(1234, 2), 2)
    assert "1,234 pings arrived since" in words(page(client, query_of(Asked())))
    keep(Asked(), at=2)
    newest = words(page(client, query_of(Asked())))
    assert "No new pings since this count" in newest
    assert "This is look 2 of 2 at these comparisons" in newest
    assert "These are earlier results." in words(page(client, f"count={first}"))


def test_a_count_that_failed_says_why_and_the_last_good_one_is_still_shown(client: FlaskClient, keep: Keep) -> None:
    keep(Asked(), at=1)
    keep(Asked(), at=2, code=1, said="counting the landed pings\nfedping: a file is damaged; move it out\n")
    said = words(page(client, query_of(Asked())))
    assert "Counting failed: a file is damaged; move it out." in said
    assert "comparisons" in said


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"metrics": ""}, "There is nothing to compare; name at least one metric and one pair of arms."),
        ({"metrics": "loss", "alpha": "5"}, "The level alpha lies between 0 and 1, not at 5."),
        ({"metrics": "loss", "planned-clients": "500"}, "Add 'Interim'."),
        ({"metrics": "loss", "guardrails": "rank_selected"}, "'rank_selected' is not among the metrics loss; add it"),
        ({"metrics": "loss", "from-iteration": "7"}, "but none from iteration 7."),
        ({"metrics": "loss", "pairs": "treatment:placebo"}, "has no arm 'placebo'"),
    ],
)
def test_what_cannot_be_asked_is_told_and_nothing_is_started(
    client: FlaskClient, tmp_path: Path, form: dict[str, str], sentence: str
) -> None:
    token = csrf_token(client, "/results/study/")
    answer = client.post("/results/study/count", data={**form, "csrf_token": token}, headers=HTML)
    assert answer.status_code == 400
    assert sentence in words(answer.get_data(as_text=True))
    assert not (tmp_path / "runs" / "results").exists()
    kept = answer.get_data(as_text=True)
    assert all(f'value="{value}"' in kept for name, value in form.items() if name in ("alpha", "from-iteration"))


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/results/other/", 404),
        ("/results/../", 404),
        ("/results/%2e%2e/", 404),
        ("/results/study/?count=../../x", 404),
        ("/results/study/?count=0000000000009-0123456789ab", 404),
        ("/results/study/?alpha=five", 400),
        ("/results/study/document.json", 404),
        ("/results/study/sizes.csv?metrics=loss", 404),
    ],
)
def test_what_is_not_there_is_a_sentence(client: FlaskClient, address: str, status: int) -> None:
    assert client.get(address, headers=HTML).status_code == status


def test_without_a_store_the_page_says_so(tmp_path: Path) -> None:
    answer = dashboard_client(tmp_path).get("/results/", headers=HTML)
    assert answer.status_code == 200
    assert "There is no model store at" in words(answer.get_data(as_text=True))


def test_power_and_the_time_to_the_planned_end_are_told(client: FlaskClient, keep: Keep, study: Study) -> None:
    asked = Asked(metrics=("num_chars_typed",), interim=True, planned_clients=5000)
    keep(asked)
    said = words(page(client, query_of(asked)))
    assert "are shown with a power of 80 %" in said
    assert "at 5,000 clients" in said
    assert re.search(r"treatment and control: 3,995 clients to the planned end, (about|none)", said)


def test_the_least_difference_of_an_exact_look_shrinks_with_the_root_of_the_clients(study: Study) -> None:
    document = as_document(verdict_of(Asked(metrics=("num_chars_typed",)), study))
    one = document["comparisons"][0]
    n = sum(one["per_client"]["n"])
    document |= {"interim": True, "planned_clients": 4 * n}
    one |= {"anytime_valid": {"value": 0.1, "low": -0.1, "high": 0.3, "confidence": 0.95}, "anytime_bounds": [0, 20]}
    now, then = (float(each) for each in re.findall(r"from about ([0-9.]+) \(", outlook(document)[0]))
    assert now > 0.2
    assert then == pytest.approx(now / 2, rel=0.01)


def test_the_least_difference_that_is_shown_has_the_power_that_is_said(study: Study) -> None:
    asked = Asked(metrics=("num_chars_typed",))
    document = as_document(verdict_of(asked, study))
    one = document["comparisons"][0]
    found = re.search(r"differences from about ([0-9.]+) \(", outlook(document)[0])
    assert found is not None
    interval = one["per_client"]["difference"]
    z = norm.isf((1 - interval["confidence"]) / 2)
    error = (interval["high"] - interval["low"]) / 2 / z
    assert norm.sf(z - float(found[1]) / error) == pytest.approx(0.8, abs=0.01)
    assert len(outlook(document)) == 1, "without an interim look there is no planned end"
    one["per_client"]["means"][1] = float(found[1]) / 12
    assert re.search(r" \(1,[0-9]{3} %\)", outlook(document)[0]), "no power of ten"
    assert percent_text(0.6, 0.05) == " (+1,200 %)"


@pytest.mark.parametrize("interim", [False, True])
def test_the_clients_that_an_effect_needs_show_just_that_effect(study: Study, interim: bool) -> None:
    asked = Asked(metrics=("num_chars_typed",), interim=interim, planned_clients=5000 if interim else None)
    document = as_document(verdict_of(asked, study))
    [one] = document["comparisons"]
    n, base = sum(one["per_client"]["n"]), one["per_client"]["means"][1]
    needed = clients_for(one, document, 0.03 * base)
    assert needed is not None
    assert needed > n
    wide = one["anytime_valid"] or one["per_client"]["difference"]
    half, level = (wide["high"] - wide["low"]) / 2, 1 - wide["confidence"]
    z = norm.isf(level / 2)
    if interim:
        error = half / boundary(n, level, 5000) * math.sqrt(n / needed)
        assert norm.sf(boundary(needed, level, 5000) - 0.03 * base / error) == pytest.approx(0.8, abs=0.01)
    else:
        assert norm.sf(z - 0.03 * base / (half / z * math.sqrt(n / needed))) == pytest.approx(0.8, abs=0.01)
    assert one["finding"] == "less"
    [row] = needs(document, 3.0)
    assert row.needed == f"{int(float(f'{needed:.3g}')):,}"
    assert row.time == "none needed: a difference is shown"
    one["finding"] = "inconclusive"
    assert needs(document, 3.0)[0].time.endswith((" hours", " days"))
    assert needs(document, 500.0)[0].needed == "reached"
    assert clients_for(one, document, 1e-9) is None


def test_an_effect_of_interest_is_part_of_the_address(client: FlaskClient, keep: Keep) -> None:
    keep(GUARDED)
    assert "clients for 2.5 %" in words(page(client, f"{query_of(GUARDED)}&effect=2.5"))
    for wrong in ("-1", "nan", "inf", "1e9", "five"):
        assert "clients for 5 %" in words(page(client, f"{query_of(GUARDED)}&effect={wrong}"))


def test_a_document_of_an_earlier_version_is_still_shown(client: FlaskClient, keep: Keep, tmp_path: Path) -> None:
    id = keep(GUARDED)
    [kept] = (tmp_path / "runs" / "results" / "study").glob(f"{id}/stdout")
    document = json.loads(kept.read_text())
    for name in ("over_time", "segments"):
        del document[name]
    for one in document["comparisons"]:
        del one["decides"], one["percent"], one["per_ping"]["percent"]
    kept.write_text(json.dumps(document))
    said = words(page(client, query_of(GUARDED)))
    assert "▲ better" in said or "○ inconclusive" in said
    assert "For whom" not in said
    assert client.get(f"/results/study/comparisons.csv?{query_of(GUARDED)}").status_code == 200


def test_better_and_worse_have_signs_and_differences_percent(client: FlaskClient, keep: Keep, study: Study) -> None:
    keep(GUARDED)
    said, verdict = words(page(client, query_of(GUARDED))), verdict_of(GUARDED, study)
    level = verdict.comparisons[0].clients
    assert f"({100 * level.difference.value / level.means[1]:+.3g} %)".replace("-", "−") in said
    assert {"less": "▲ better", "inconclusive": "○ inconclusive", "more": "▼ worse"}[
        verdict.comparisons[0].finding
    ] in said


def test_a_message_names_the_fields_of_the_form(client: FlaskClient, keep: Keep) -> None:
    keep(GUARDED)
    said = words(page(client, query_of(GUARDED)))
    assert "--" not in said
    form = said[said.index("Ask something else") :].casefold()
    assert [label for label in LABELS.values() if label.casefold() not in form] == []
    assert by_fields("give --from-iteration 7, or --since; see --help") == (
        "give 'From iteration' 7, or 'Since'; see --help"
    )


def test_what_was_not_compared_is_told_where_the_arms_are(client: FlaskClient, keep: Keep, tmp_path: Path) -> None:
    id = keep(GUARDED)
    [kept] = (tmp_path / "runs" / "results" / "study").glob(f"{id}/stdout")
    document = json.loads(kept.read_text())
    document["left_out"]["pings"] = {"not_enrolled": 7}
    kept.write_text(json.dumps(document))
    said = words(page(client, query_of(GUARDED)))
    assert (
        "Not compared: 2 copies of documents, 0 clients with pings of several arms, 7 pings that named an arm that "
        "their client's id does not belong to."
    ) in said


def test_the_range_that_was_counted_is_told_with_its_zone(client: FlaskClient, keep: Keep) -> None:
    keep(GUARDED)
    assert "2018-06-26 08:00 to 11:00 UTC" in words(page(client, query_of(GUARDED)))
