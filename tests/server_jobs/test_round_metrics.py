"""Metrics of rounds, served and written; and the alert rules and dashboard that use them."""

import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fedping.commands.round import noting_attempt
from fedping.main import main
from fedping.model_store.store import ModelStore, open_store
from fedping.protocol.errors import FedpingError
from fedping.protocol.landing import open_landing
from fedping.server_jobs.health.snapshot import StudyMonitor, ingest_snapshot
from fedping.server_jobs.ingest.admission import Catalogue
from fedping.server_jobs.ingest.heartbeat import CHECKS
from fedping.server_jobs.ingest.latencies import BATCH, PING, TELEMETRY
from fedping.server_jobs.ingest.services import ServiceState
from fedping.server_jobs.ingest.settings import IngestSettings
from fedping.server_jobs.round_status import FAILURES, Attempt, keep_attempt, last_attempt
from fedping.server_jobs.shutdown import DeadlineReached, EndedBySignal, TemporaryFailure
from tests.support.ingest_app import ingest_app
from tests.support.rounds import crowd, land, store_with
from tests.support.versions import small_study

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
HERE = {"study": "study", "line": "main"}
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool, of Prometheus, is not installed"
)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return store_with(tmp_path / "store", small_study(m=2))


def noted(tmp_path: Path) -> Attempt:
    return last_attempt(open_landing(tmp_path / "landing"), str(tmp_path / "store"), "study", "main")


def keep(tmp_path: Path, outcome: str) -> None:
    attempt = Attempt().followed_by(outcome, "2026-01-01T00:00:00.000+00:00", 1.5)
    keep_attempt(open_landing(tmp_path / "landing"), str(tmp_path / "store"), "study", "main", attempt)


def run_round(tmp_path: Path) -> int:
    places = ["--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing")]
    return main(["round", "study", *places, "--engine", "numpy", "--metrics-file", str(tmp_path / "fedping.prom")])


def samples(text: str, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Return the values of a metric by their labels, without those of :data:`HERE`."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name == name:
                found[tuple(sorted((k, v) for k, v in one.labels.items() if k not in HERE))] = one.value
    return found


def test_a_round_leaves_its_metrics_in_the_file(tmp_path: Path, store: ModelStore) -> None:
    land(tmp_path / "landing", crowd(120))
    assert run_round(tmp_path) == 0
    text = (tmp_path / "fedping.prom").read_text()
    head = store.head("study", "main")
    assert samples(text, "fedping_line_version") == {(): head.iteration} == {(): 1}
    assert samples(text, "fedping_line_clients") == {(): 120}
    assert samples(text, "fedping_line_pings")[("fate", "used"),] == 120
    assert samples(text, "fedping_round_last_update_bytes") == {(): 120 * 8}
    assert samples(text, "fedping_round_last_outcome") == {(("outcome", "published"),): 1}
    assert samples(text, "fedping_rounds_total") == {(("outcome", "published"),): 1}
    assert samples(text, "fedping_round_last_seconds")[()] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fedping.prom", "landing", "store"]


def test_a_failed_round_moves_the_last_round_and_not_the_last_success(tmp_path: Path, store: ModelStore) -> None:
    landed = land(tmp_path / "landing", crowd(120))
    assert run_round(tmp_path) == 0
    before = noted(tmp_path)
    damaged = land(tmp_path / "landing", crowd(120, version=1), iteration=1, at_ms=int(landed.name.split("-")[0]) + 1)
    damaged.write_bytes(b"damaged")
    assert run_round(tmp_path) == 1
    text, after = (tmp_path / "fedping.prom").read_text(), noted(tmp_path)
    assert (after.outcome, after.succeeded) == ("failed", before.succeeded)
    assert after.ended > before.ended
    assert samples(text, "fedping_round_last_outcome") == {(("outcome", "failed"),): 1}
    assert samples(text, "fedping_line_version") == {(): 1}
    assert samples(text, "fedping_rounds_total") == {(("outcome", "published"),): 1, (("outcome", "failed"),): 1}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (FedpingError("x"), "failed"),
        (TemporaryFailure("x"), "temporary"),
        (DeadlineReached(), "out_of_time"),
        (EndedBySignal(15), "ended"),
        (ZeroDivisionError(), "crashed"),
    ],
)
def test_every_end_without_a_result_has_its_outcome(
    tmp_path: Path, store: ModelStore, error: BaseException, outcome: str
) -> None:
    assert outcome in FAILURES
    (tmp_path / "landing").mkdir()
    with pytest.raises(type(error)), noting_attempt(store, open_landing(tmp_path / "landing"), "study", "main"):
        raise error
    assert noted(tmp_path).ended_as == {outcome: 1}
    assert noted(tmp_path).succeeded == ""


@pytest.mark.parametrize(
    "damaged", [b'{"format":1,"ended":3}', b'{"format":1,"ended":"soon"}', b'{"format":9}', b"\xff"]
)
def test_a_damaged_note_is_none_and_stops_no_round(tmp_path: Path, store: ModelStore, damaged: bytes) -> None:
    land(tmp_path / "landing", crowd(120))
    keep(tmp_path, "waiting")
    (note,) = (tmp_path / "landing/.attempts/study/main").iterdir()
    note.write_bytes(damaged)
    assert noted(tmp_path) == Attempt()
    assert run_round(tmp_path) == 0
    assert noted(tmp_path).ended_as == {"published": 1}


def test_a_file_that_cannot_be_written_is_told_and_the_round_counts(
    tmp_path: Path, store: ModelStore, capsys: pytest.CaptureFixture[str]
) -> None:
    land(tmp_path / "landing", crowd(120))
    (tmp_path / "fedping.prom").mkdir()
    command = ["round", "study", "--store", str(tmp_path / "store"), "--landing", str(tmp_path / "landing")]
    assert main([*command, "--engine", "numpy", "--metrics-file", str(tmp_path / "none" / "x.prom")]) == 0
    assert "cannot write the metrics" in capsys.readouterr().err
    assert store.lines.newest("study", "main") == 1


def page(tmp_path: Path) -> str:
    """Return ingest's metrics page for a store after a round."""
    ingest = ingest_app(tmp_path)
    assert ingest.ping().status_code == 200
    keep(tmp_path, "held")
    text: str = ingest.operator.get("/metrics").get_data(as_text=True)
    return text


def test_ingest_serves_the_same(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert samples(text, "fedping_round_last_outcome") == {(("outcome", "held"),): 1}
    assert samples(text, "fedping_round_last_ended_timestamp_seconds") == {(): 1767225600}
    assert samples(text, "fedping_line_version") == {(): 0}


@pytest.mark.parametrize("file", ["prometheus-alerts.yml", "grafana-dashboard.json"])
def test_every_metric_that_is_named_exists(tmp_path: Path, file: str) -> None:
    families = list(text_string_to_metric_families(page(tmp_path)))
    parts = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
    there = {one.name + part for one in families for part in parts.get(one.type, ("",))}
    named = set(re.findall(r"\bfedping_\w+", (DEPLOY / file).read_text()))
    assert len(named) > 8
    assert named <= there


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    assert len({one["id"] for one in dashboard["panels"]}) == len(dashboard["panels"])
    places = {(one["gridPos"]["x"], one["gridPos"]["y"]) for one in dashboard["panels"]}
    assert len(places) == len(dashboard["panels"])
    assert all(target["expr"] for one in dashboard["panels"] for target in one["targets"])


def promtool(*arguments: object) -> None:
    ran = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


CASES = """
rule_files: [RULES]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'up{job="fedping"}', values: '1x300'}
      - {series: 'fedping_round_last_success_timestamp_seconds{study="a",line="main"}', values: '0x300'}
      - {series: 'fedping_round_last_success_timestamp_seconds{study="b",line="main"}', values: '0x300'}
      - {series: 'fedping_study_state{study="b",state="paused"}', values: '1x300'}
      - {series: 'fedping_round_last_outcome{study="a",line="main",outcome="failed"}', values: '1x300'}
      - {series: 'fedping_round_last_outcome{study="b",line="main",outcome="waiting"}', values: '1x300'}
      - {series: 'fedping_ingest_pings_missing', values: '0x60 3x240'}
    alert_rule_test:
      - {eval_time: 119m, alertname: FedpingNoRound, exp_alerts: []}
      - eval_time: 121m
        alertname: FedpingNoRound
        exp_alerts:
          - exp_labels: {severity: critical, study: a, line: main}
            exp_annotations: {summary: No round of a/main has ended without a failure for two hours.}
      - {eval_time: 34m, alertname: FedpingRoundFails, exp_alerts: []}
      - eval_time: 36m
        alertname: FedpingRoundFails
        exp_alerts:
          - exp_labels: {severity: warning, study: a, line: main, outcome: failed}
            exp_annotations: {summary: Rounds of a/main end as failed.}
      - {eval_time: 30m, alertname: FedpingPingsMissing, exp_alerts: []}
      - eval_time: 90m
        alertname: FedpingPingsMissing
        exp_alerts:
          - exp_labels: {severity: critical}
            exp_annotations: {summary: 3 pings that were answered 200 are nowhere.}
      - {eval_time: 90m, alertname: FedpingIngestDown, exp_alerts: []}
  - interval: 1m
    input_series:
      - {series: 'up{job="fedping"}', values: '1x60'}
      - {series: 'fedping_ingest_request_seconds_bucket{route="PING",status="2xx",le="1.0"}', values: '0+90x60'}
      - {series: 'fedping_ingest_request_seconds_bucket{route="PING",status="2xx",le="2.5"}', values: '0+100x60'}
      - {series: 'fedping_ingest_request_seconds_bucket{route="PING",status="2xx",le="+Inf"}', values: '0+100x60'}
      - {series: 'fedping_ingest_request_seconds_bucket{route="BATCH",status="2xx",le="1.0"}', values: '0x60'}
      - {series: 'fedping_ingest_request_seconds_bucket{route="BATCH",status="2xx",le="+Inf"}', values: '0+100x60'}
      - {series: 'fedping_ingest_request_seconds_bucket{route="TELEMETRY",status="2xx",le="1.0"}', values: '0+995x60'}
      - {series: 'fedping_ingest_request_seconds_bucket{route="TELEMETRY",status="2xx",le="+Inf"}', values: '0+1000x60'}
    alert_rule_test:
      - {eval_time: 15m, alertname: FedpingSlowAnswers, exp_alerts: []}
      - eval_time: 20m
        alertname: FedpingSlowAnswers
        exp_alerts:
          - exp_labels: {severity: warning, route: PING}
            exp_annotations: {summary: One in a hundred answers of PING takes more than a second.}
  - interval: 1m
    input_series:
      - {series: 'fedping_build_info{part="ingest",version="1",commit="a",instance="x"}', values: '1x300'}
      - {series: 'fedping_build_info{part="ingest",version="1",commit="b",instance="y"}', values: '_x60 1x240'}
      - {series: 'fedping_build_info{part="rounds",version="2",commit="b",instance="y"}', values: '1x300'}
      - {series: 'fedping_ingest_processes_died_total{process="worker"}', values: '0x60 1x30 5x210'}
      - {series: 'fedping_ingest_processes_died_total{process="server"}', values: '0x60 1x240'}
      - {series: 'fedping_ingest_check{check="store"}', values: '1x60 0x240'}
      - {series: 'fedping_ingest_check{check="balance"}', values: '1x300'}
      - {series: 'fedping_ingest_pings_pending', values: '0x60 9x240'}
      - {series: 'fedping_ingest_pings_landed_total', values: '0+10x60 600x240'}
      - {series: 'fedping_ingest_oldest_pending_seconds', values: '30x60 0+60x240'}
      - {series: 'fedping_study_rejected_total{study="a",reason="x"}', values: '0+20x300'}
      - {series: 'fedping_study_accepted_total{study="a"}', values: '0+80x300'}
      - {series: 'fedping_study_rejected_total{study="b",reason="x"}', values: '0+5x300'}
      - {series: 'fedping_study_accepted_total{study="b"}', values: '0+95x300'}
      - {series: 'fedping_study_finding{study="a",finding="arms"}', values: '2x300'}
      - {series: 'fedping_study_finding{study="b",finding="arms"}', values: '1x300'}
      - {series: 'fedping_round_last_outcome{study="a",line="main",outcome="held"}', values: '1x300'}
      - {series: 'fedping_line_version_created_timestamp_seconds{study="a",line="main"}', values: '0x500'}
      - {series: 'fedping_line_version_created_timestamp_seconds{study="b",line="main"}', values: '0x500'}
      - {series: 'fedping_study_lines_over{study="b"}', values: '1x500'}
    alert_rule_test:
      - {eval_time: 170m, alertname: FedpingVersionsApart, exp_alerts: []}
      - eval_time: 190m
        alertname: FedpingVersionsApart
        exp_alerts:
          - exp_labels: {severity: warning, part: ingest}
            exp_annotations: {summary: Hosts run 2 versions of fedping (ingest) for more than two hours.}
      - {eval_time: 80m, alertname: FedpingProcessDies, exp_alerts: []}
      - eval_time: 110m
        alertname: FedpingProcessDies
        exp_alerts:
          - exp_labels: {severity: warning, process: worker}
            exp_annotations:
              summary: A worker of ingest has died several times within an hour; its log says how.
      - {eval_time: 60m, alertname: FedpingCheckFails, exp_alerts: []}
      - eval_time: 70m
        alertname: FedpingCheckFails
        exp_alerts:
          - exp_labels: {severity: critical, check: store}
            exp_annotations:
              summary: Check store of the heartbeat fails; /__heartbeat__ of the operator port says why.
      - {eval_time: 70m, alertname: FedpingNothingLands, exp_alerts: []}
      - eval_time: 100m
        alertname: FedpingNothingLands
        exp_alerts:
          - exp_labels: {severity: warning}
            exp_annotations: {summary: "Pings wait in the journal, and none has landed for half an hour."}
      - {eval_time: 75m, alertname: FedpingPingsWait, exp_alerts: []}
      - eval_time: 77m
        alertname: FedpingPingsWait
        exp_alerts:
          - exp_labels: {severity: warning}
            exp_annotations:
              summary: A ping has waited 16m 0s to land; a machine that is lost now takes it along.
      - eval_time: 100m
        alertname: FedpingManyRefused
        exp_alerts:
          - exp_labels: {severity: warning, study: a}
            exp_annotations: {summary: More than a tenth of what is sent to a is refused.}
      - eval_time: 100m
        alertname: FedpingStudyProblem
        exp_alerts:
          - exp_labels: {severity: warning, study: a, finding: arms}
            exp_annotations: {summary: Study a has the problem arms; fedping study health says more.}
      - eval_time: 10m
        alertname: FedpingVersionHeld
        exp_alerts:
          - exp_labels: {severity: warning, study: a, line: main, outcome: held}
            exp_annotations: {summary: A version of a/main is held back until somebody decides.}
      - {eval_time: 359m, alertname: FedpingVersionOld, exp_alerts: []}
      - eval_time: 361m
        alertname: FedpingVersionOld
        exp_alerts:
          - exp_labels: {severity: warning, study: a, line: main}
            exp_annotations: {summary: The newest version of a/main is older than six hours.}
  - interval: 1m
    input_series:
      - {series: 'up{job="fedping"}', values: '1x10 0x20'}
    alert_rule_test:
      - {eval_time: 12m, alertname: FedpingIngestDown, exp_alerts: []}
      - eval_time: 20m
        alertname: FedpingIngestDown
        exp_alerts:
          - exp_labels: {severity: critical, job: fedping}
            exp_annotations: {summary: "Ingest serves no metrics: it is down, or Prometheus cannot reach it."}
"""


def test_every_alert_leads_to_its_section_of_the_docs() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus-alerts.yml").read_text())["groups"][0]["rules"]
    sections = re.findall(r"^## (\w+)$", (DEPLOY.parent / "alerts.md").read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(rule["alert"] for rule in rules)
    for rule in rules:
        url = f"https://HOST/PATH/docs/alerts.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == url


def _with_runbooks(cases: str) -> str:
    """Return the test cases with the runbook address of each expected alert."""
    made = yaml.safe_load(cases)
    for case in made["tests"]:
        for check in case["alert_rule_test"]:
            for alert in check.get("exp_alerts", []):
                section = f"https://HOST/PATH/docs/alerts.md#{check['alertname'].lower()}"
                alert["exp_annotations"]["runbook_url"] = section
    return yaml.safe_dump(made, sort_keys=False, width=1000)


@needs_promtool
def test_prometheus_takes_the_rules_and_they_fire_when_they_should(tmp_path: Path) -> None:
    rules = DEPLOY / "prometheus-alerts.yml"
    promtool("check", "rules", rules)
    cases = CASES.replace("RULES", str(rules))
    for name, route in {"PING": PING, "BATCH": BATCH, "TELEMETRY": TELEMETRY}.items():
        cases = cases.replace(name, route)
    (tmp_path / "cases.yml").write_text(_with_runbooks(cases))
    promtool("test", "rules", tmp_path / "cases.yml")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "fedping-schedule.service").read_text()
    unit = tmp_path / "fedping-schedule.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/sh", text, flags=re.MULTILINE))
    ran = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert (ran.returncode, [line for line in ran.stderr.splitlines() if "fedping" in line]) == (0, [])


def health_of(tmp_path: Path) -> list[tuple[str, str, str]]:
    places = IngestSettings(
        store=tmp_path / "store", landing=tmp_path / "landing", journal=tmp_path / "landing" / ".journal"
    )
    _, health = StudyMonitor(places).study("study", ingest_snapshot(places))
    return [(one.name, one.severity, one.sentence) for one in health.findings if one.name not in ("ingest", "arms")]


def check_of(tmp_path: Path) -> str | None:
    """Return the heartbeat's message about rounds."""
    places = IngestSettings(store=tmp_path / "store", landing=tmp_path / "landing", journal=tmp_path / "journal")
    store = open_store(places.store)
    return CHECKS["rounds"](ServiceState(settings=places, store=store, catalogue=Catalogue(store)))


def test_a_damaged_landed_file_is_told_until_a_round_has_a_result_again(tmp_path: Path, store: ModelStore) -> None:
    file = land(tmp_path / "landing", crowd(120))
    whole = file.read_bytes()
    middle = len(whole) // 3
    file.write_bytes(whole[:middle] + bytes(byte ^ 255 for byte in whole[middle : middle + 64]) + whole[middle + 64 :])
    assert health_of(tmp_path) == [], "the footer is whole"
    assert run_round(tmp_path) == 1
    ((name, severity, said),) = health_of(tmp_path)
    assert (name, severity) == ("landing", "problem")
    assert file.name in said
    assert "The last round failed" in said
    assert run_round(tmp_path) == 1
    ((_, _, said),) = health_of(tmp_path)
    assert "The last 2 rounds failed" in said
    assert file.name in (check_of(tmp_path) or "")
    file.write_bytes(whole)
    assert run_round(tmp_path) == 0
    assert health_of(tmp_path) == []
    assert check_of(tmp_path) is None


def test_a_store_that_cannot_be_written_is_a_problem_of_the_store(
    tmp_path: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(tmp_path / "landing", crowd(120))

    def link(source: object, target: object, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(target))

    with monkeypatch.context() as read_only:
        read_only.setattr(os, "link", link)
        assert run_round(tmp_path) != 0
    ((name, severity, said),) = health_of(tmp_path)
    assert (name, severity) == ("store", "problem")
    assert os.strerror(errno.EROFS) in said


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (["temporary"], "warning"),
        (["failed"], "warning"),
        (["crashed", "ended"], "warning"),
        (["ended"], None),
        (["temporary", "out_of_time", "failed"], "problem"),
        (["failed", "failed", "failed", "waiting"], None),
    ],
)
def test_rounds_that_fail_are_a_warning_and_after_three_a_problem(
    tmp_path: Path, store: ModelStore, ends: list[str], expected: str | None
) -> None:
    land(tmp_path / "landing", crowd(120))
    attempt = Attempt()
    for number, outcome in enumerate(ends):
        attempt = attempt.followed_by(outcome, f"2126-01-01T00:0{number}:00.000+00:00", 1.5, why="x broke")
    keep_attempt(open_landing(tmp_path / "landing"), str(tmp_path / "store"), "study", "main", attempt)
    assert [(name, severity) for name, severity, _ in health_of(tmp_path)] == (
        [("rounds", expected)] if expected else []
    )
    for _, _, said in health_of(tmp_path):
        assert "X broke." in said
    assert ("X broke" in (check_of(tmp_path) or "")) is (expected == "problem")


def test_the_heartbeat_asks_the_store_of_rounds_only_where_they_fail(
    tmp_path: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket takes tens of milliseconds for each request, and the heartbeat checks every line of all studies."""
    land(tmp_path / "landing", crowd(120))
    places = IngestSettings(store=tmp_path / "store", landing=tmp_path / "landing", journal=tmp_path / "journal")
    seen = open_store(places.store)
    watched = ServiceState(settings=places, store=seen, catalogue=Catalogue(seen))
    asked: list[str] = []

    def noting(ask: Callable[[str], object]) -> Callable[[str], object]:
        return lambda key: (asked.append(key), ask(key))[1]

    for name in ("read", "stamp", "names"):
        monkeypatch.setattr(seen.documents, name, noting(getattr(seen.documents, name)))
    for outcome in ("published", "crashed"):
        keep(tmp_path, outcome)
        asked.clear()
        assert CHECKS["rounds"](watched) is None
        assert asked == [], outcome
    attempt = noted(tmp_path)
    for _ in range(2):
        attempt = attempt.followed_by("crashed", "2126-01-01T00:00:00.000+00:00", 1.5)
    keep_attempt(open_landing(tmp_path / "landing"), str(tmp_path / "store"), "study", "main", attempt)
    assert "The last 3 rounds failed" in (CHECKS["rounds"](watched) or "")
    assert asked
