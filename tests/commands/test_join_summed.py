"""`fedping join` in sums of institutions: each row is protected in the sum; only sums of enough institutions open."""

import base64
import hashlib
import json
import math
import re
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq

from fedping.client_sim.fleet.private_pings import PrivatePings
from fedping.client_sim.joining.columns import read_columns
from fedping.client_sim.joining.examples import Wanted, read_examples
from fedping.client_sim.joining.folder import served_digest
from fedping.client_sim.joining.ledger import ledger_of
from fedping.client_sim.learning.registry import model_spec
from fedping.client_sim.learning.states import in_memory
from fedping.helper.enrol import keys_of
from fedping.helper.folder import HelperFolder, make_helper
from fedping.helper.folder import open_folder as open_helper
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.privacy import RowSums
from fedping.protocol.row_privacy import LOSS, UNIT, mu_of, usual_delta
from fedping.protocol.sharing.keys import opener
from fedping.protocol.sharing.shares import WORDS, info_of, layout_by, mask, words_of
from fedping.protocol.sharing.terms import agreed_terms
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm, Line, PublicStudy, public_json, public_study
from fedping.protocol.training import LocalSteps
from fedping.server_jobs.privacy.card import card_of
from fedping.server_jobs.privacy.keys import leader_identity
from tests.support.dying import Dying
from tests.support.effort import few_or_all
from tests.support.faulty_server import Attempt, faulty_server
from tests.support.helping import write_study
from tests.support.institutions import OPEN, ROOT, STUDY, Typed, typed_join
from tests.support.shared_rounds import KEY
from tests.support.summing import LARGEST_LOSS, NOISE, Summing, offered, summed, summing

GUIDE = (ROOT / "docs" / "institutions.md").read_text(encoding="utf-8")
ZEROS = np.zeros(31)
HOSPITALS = Arm(name="hospitals", share=0.5, line="main", applies=True, submits=True)
PROTECTED = ("--yes", "--rounds", "1", "--epsilon", "3")


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Give the command with fixed ledger secrets, so that the noise is the same in each run."""
    made = iter(range(1000))
    monkeypatch.setattr(
        "fedping.client_sim.joining.ledger.secrets.token_bytes",
        lambda size: hashlib.sha256(b"secret %d" % next(made)).digest()[:size],
    )
    return typed_join(tmp_path, capsys)


def sum_without_noise(folder: Path, numbers: range, weights: np.ndarray) -> np.ndarray:
    """Return the sum over the rows of institutions, computed row by row from the formulas of logistic regression."""
    total = np.zeros(len(weights) + 3)
    length = np.hypot(1, LOSS)
    for number in numbers:
        columns = read_columns(folder / "columns.toml")
        rows = read_examples(folder / f"hospital-{number}.csv", None, columns, Wanted("a model", 30, True, 2))
        for x, y in zip(rows.x, rows.y, strict=True):
            score = float(x @ weights[:-1] + weights[-1])
            gradient = (1 / (1 + np.exp(-score)) - y) * np.append(x, 1.0)
            gradient /= max(1.0, float(np.linalg.norm(gradient)))
            loss = float(np.logaddexp(0, score) - y * score)
            centred = 2 * min(loss / LARGEST_LOSS, 1.0) - 1
            total[:-3] -= np.trunc(gradient / length * UNIT)
            total[-2] += np.trunc(LOSS * centred / length * UNIT)
        total[-3] += len(rows)
    return total


def test_the_sum_is_the_plain_sum_with_the_noise_that_was_promised(
    typed: Typed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The size of the noise, 3 versions with 32 numbers, is within the 1 - 1e-6 interval of χ²; the seed is fixed."""
    noise = []
    with summing(tmp_path) as running:
        for version in range(3):
            for number in range(3):
                out, said = typed(running.server.url, *PROTECTED, number=number)
                assert "a private vector in two shares" in out
                assert "as long as at most 1 of the others collude with the operator" in said
                assert f"neither the operator nor the helper {running.helper.identity[:16]}… can read it alone" in said
            running.server.flush()
            capsys.readouterr()
            assert main(running.round()) == 0
            assert f"published version {version + 1} from 569 rows of institutions' tables" in capsys.readouterr().out
            before = np.array(open_store(running.store).version(STUDY, "main", version).weights)
            plain, found = sum_without_noise(tmp_path, range(3), before), np.array(running.released(version + 1))
            metric = 2 * round(LOSS / (np.hypot(1, LOSS) / UNIT))
            assert found[-3] == metric * plain[-3] == metric * 569
            assert found[-1] == 0
            centred = found[-2] - 569 * metric // 2
            noise.append(np.append(found[:-3] - plain[:-3], centred - plain[-2]))
            lineage = open_store(running.store).version(STUDY, "main", version + 1).lineage
            assert lineage.arms["hospitals"].examples == 569
    drawn = np.concatenate(noise)
    sigma = NOISE * UNIT * np.sqrt(3 / 2)  # each of three adds 1/√(3 - 1) of it
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(drawn))
    assert low < float(np.sum(drawn**2)) / sigma**2 < high
    assert abs(float(drawn.mean())) < 5 * sigma / np.sqrt(len(drawn))


def test_nobody_leaves_the_noise_of_a_number_to_one_institution(typed: Typed, tmp_path: Path) -> None:
    """A leader that let two of three institutions leave out weights would get only the third one's noise."""
    study, published = offered(tmp_path)
    lie = json.loads(published)
    lie["lines"][0]["privacy"]["left_out"] = list(study.lines[0].spec.names[:-1])
    with faulty_server(study) as server:
        server.files[f"/models/{STUDY}/study.json"] = json.dumps(lie).encode()
        said = typed(server.url, *PROTECTED, code=2)[1]
        assert "each number needs the noise of all institutions. Remove 'left_out'" in said
        assert not server.attempts


def posted_elsewhere(running: Summing, typed: Typed, number: int, weights: np.ndarray, l2: float = 0.0) -> None:
    """Let an institution join a server that serves its own model, and forwards the ping to ingest."""
    with faulty_server(running.study) as liar:
        study = json.loads(fetched(running, "study.json"))
        if l2:
            study["lines"][0]["spec"]["settings"]["l2"] = l2
        spec = msgspec.convert(study["lines"][0]["spec"], ModelSpec)
        liar.files[f"/models/{STUDY}/study.json"] = json.dumps(study).encode()
        model = json.loads(fetched(running, "main/latest.json")) | {"spec_digest": spec.digest}
        liar.files[f"/models/{STUDY}/main/latest.json"] = json.dumps(model | {"model": weights.tolist()}).encode()
        typed(liar.url, *PROTECTED, number=number)
        (attempt,) = liar.attempts
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(running.server.url + attempt.path, attempt.body, headers, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def fetched(running: Summing, path: str) -> bytes:
    with urllib.request.urlopen(f"{running.server.url}/models/{STUDY}/{path}", timeout=30) as answer:
        return bytes(answer.read())


def status_of(folder: Path, number: int, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["join", "status", str(folder / f"state-{number}"), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_server_that_serves_one_institution_other_weights_gets_no_sum(
    typed: Typed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with summing(tmp_path) as running:
        for number in range(3):
            typed(running.server.url, *PROTECTED, number=number)
        running.server.flush()
        assert main(running.round()) == 0
        capsys.readouterr()
        for number in range(2):
            typed(running.server.url, *PROTECTED, number=number)
        posted_elsewhere(running, typed, 2, np.linspace(-9, 9, 31))
        running.server.flush()
        for _ in range(2):  # no other round gets it either
            assert main(running.round()) == 1
            said = capsys.readouterr().err
            assert "can't compute the next version from the pings of version 1" in said
            assert "were served 2 different models or weights as version 1" in said
            assert "'fedping store continue tumours main --from 3'" in said
        with running.helper.records() as records:
            (line,) = records.lines()
            assert records.totals(line.number).answers == 1
        digests = [status_of(tmp_path, number, capsys)["answers"][0]["weights"] for number in range(3)]
        assert digests[0] == digests[1] != digests[2]
        assert all(f"have {digest[:16]}…" in said for digest in digests)


def test_a_server_that_serves_one_institution_another_model_of_the_same_weights_gets_no_sum(
    typed: Typed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with summing(tmp_path) as running:
        for number in range(2):
            typed(running.server.url, *PROTECTED, number=number)
        posted_elsewhere(running, typed, 2, ZEROS, l2=1.0)
        running.server.flush()
        assert main(running.round()) == 1
        assert "were served 2 different models or weights as version 0" in capsys.readouterr().err


def test_fewer_institutions_than_the_noise_is_made_for_are_not_opened(
    typed: Typed, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with summing(tmp_path) as running:
        for number in range(2):
            typed(running.server.url, *PROTECTED, number=number)
        running.server.flush()
        capsys.readouterr()
        assert main(running.round()) == 0
        assert "2 of at least 3 clients of arm 'hospitals'" in capsys.readouterr().out
        assert not running.way.asked
        shared = running.study.lines[0].privacy.shared  # type: ignore[union-attr]
        assert shared is not None
        less = replace(shared, min_batch=2)  # a leader with a lower minimum than published
        monkeypatch.setattr("fedping.server_jobs.round.shared._shared", lambda line: less)
        assert main(running.round()) == 0
        assert "too_few" in capsys.readouterr().out
        assert len(running.way.asked) == 1
        with running.helper.records() as records:
            (line,) = records.lines()
            assert records.totals(line.number).answers == 0


def test_the_budget_of_a_table_says_how_many_versions_of_a_study_it_is_enough_for(typed: Typed, tmp_path: Path) -> None:
    """A version costs μ² = 1 / z² by the noise of all but t other institutions: by hand, and by the ledger."""
    study, published = offered(tmp_path, noise=2.0)
    with faulty_server(study) as server:
        server.files[f"/models/{STUDY}/study.json"] = published
        _, said = typed(server.url, *PROTECTED, "--colluding", "2")
        assert "by your noise alone" in said
        ledger = ledger_of(tmp_path / "hospital-0.csv")
        assert ledger.read().spent == pytest.approx(1 / 2.0**2, rel=1e-12)
        allowed = mu_of(3.0, usual_delta(190)) ** 2
        assert f"everything sent in {int(allowed * 4)} versions" in said
        consent = json.loads((tmp_path / "state-0" / "joined.json").read_bytes())["consent"]
        assert (consent["share"], consent["colluding"], consent["institutions"]) == (2.0, 2, 3)
    none, told = offered(tmp_path / "none", colluding=0)
    with faulty_server(none) as server:
        server.files[f"/models/{STUDY}/study.json"] = told
        said = typed(server.url, "--show", "--epsilon", "3", number=2)[1]
        assert (
            "as long as none of the others collude with the operator, were invented by it, or compare the models"
            in said
        )
    with faulty_server(study) as server:
        server.files[f"/models/{STUDY}/study.json"] = published
        said = typed(server.url, *PROTECTED, OPEN, number=1, code=2)[1]
        assert "remove one or the other" in said
        assert "accepts only sums of protected rows" in typed(server.url, "--yes", OPEN, number=1, code=2)[1]
        assert "2 to trust none of them" in typed(server.url, *PROTECTED, "--colluding", "3", number=1, code=2)[1]
        weak = typed(server.url, "--yes", "--epsilon", "0.3", number=1, code=2)[1]
        assert "with noise 2 costs epsilon" in weak
        assert not server.attempts


def test_weights_of_classes_count_in_a_sum_as_they_do_beside_the_penalty(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum is over rows with weight w, each with a penalty, divided by the largest w."""
    monkeypatch.setattr("fedping.client_sim.joining.protected.noisy", lambda total, z, bits: total)
    columns = tmp_path / "columns.toml"
    columns.write_text("class_weights = [5.0, 0.5]\n" + columns.read_text(encoding="utf-8"), encoding="utf-8")
    study, published = offered(
        tmp_path, spec=model_spec("logistic-regression", {"features": 30, "l2": 0.7}, name=STUDY)
    )
    public, latest = msgspec.json.decode(published, type=PublicStudy), f"/models/{STUDY}/main/latest.json"
    weights = np.linspace(-1, 1, 31)
    with faulty_server(study) as server:
        server.files[f"/models/{STUDY}/study.json"] = published
        server.files[latest] = json.dumps(json.loads(server.files[latest]) | {"model": weights.tolist()}).encode()
        typed(server.url, *PROTECTED)
        sent = np.array(vector_in(public, open_helper(tmp_path / "helper"), server.attempts[0], weights))
    rows = read_examples(tmp_path / "hospital-0.csv", None, read_columns(columns), Wanted("a model", 30, True, 2))
    total = np.zeros(31)
    for x, y in zip(rows.x, rows.y, strict=True):
        gradient = (1 / (1 + np.exp(-(x @ weights[:-1] + weights[-1]))) - y) * np.append(x, 1.0)
        gradient /= max(1.0, float(np.linalg.norm(gradient)))
        total -= (5.0, 0.5)[int(y)] * gradient + np.append(0.7 * weights[:-1], 0.0)
    found = 5.0 * sent[:31] * np.hypot(1, LOSS) / UNIT
    assert found == pytest.approx(total, abs=5 * 1.2 * 190 / UNIT)


@pytest.mark.parametrize(("weight", "l2"), [(1e15, 1e-3), (1e30, 1e-3)])
def test_a_penalty_of_hostile_weights_stays_within_the_vector(
    typed: Typed, tmp_path: Path, weight: float, l2: float
) -> None:
    spec = model_spec("logistic-regression", {"features": 30, "l2": l2}, name=STUDY)
    study, published = offered(tmp_path, spec=spec)
    public, latest = msgspec.json.decode(published, type=PublicStudy), f"/models/{STUDY}/main/latest.json"
    with faulty_server(study) as server:
        server.files[f"/models/{STUDY}/study.json"] = published
        model = json.loads(server.files[latest])
        server.files[latest] = json.dumps(model | {"model": [weight] * 31}).encode()
        typed(server.url, *PROTECTED)
        (attempt,) = server.attempts
        sent = np.array(vector_in(public, open_helper(tmp_path / "helper"), attempt, np.full(31, weight)))
    metric = sent[31] / 190
    noise = 6 * NOISE * UNIT
    assert (sent[:30] < noise - min(l2 * weight, 1e4) * 190 * UNIT).all()
    assert 190 * metric - noise < sent[32] < 2 * 190 * metric + noise
    assert (np.abs(sent) < 2**50).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rows": {"noise": 30.0, "colluding": 1}}, "you add 21.2; before 24, of which you added 17"),
        ({"rows": {"noise": 24.0, "colluding": 0}}, "you add 19.6; before 24, of which you added 17"),
        ({"shared": {"min_batch": 2}}, "a sum has 2 institutions or more, 3 before; the noise of a sum is 24"),
    ],
)
def test_a_sum_that_protects_otherwise_is_asked_about(
    typed: Typed, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    study, published = offered(tmp_path)
    other = json.loads(published)
    for name, values in change.items():
        other["lines"][0]["privacy"][name] |= values
    with faulty_server(study) as server:
        server.files[f"/models/{STUDY}/study.json"] = published
        typed(server.url, *PROTECTED)
        server.files[f"/models/{STUDY}/study.json"] = json.dumps(other).encode()
        said = typed(
            server.url, "--yes", "--agree", "--ledger", str(ledger_of(tmp_path / "hospital-0.csv").path), code=6
        )
        assert says in said[1]
        assert "numbers, of" not in said[1]
        assert len(server.attempts) == 1


def test_who_went_without_protection_decides_to_protect_the_rows_of_a_sum(typed: Typed, tmp_path: Path) -> None:
    study, published = offered(tmp_path)
    plain = replace(study, lines=(without_rows(study.lines[0]),))
    with faulty_server(plain) as server:
        typed(server.url, "--yes", "--for", "1s", OPEN, code=75)  # which has no offer yet
        server.files[f"/models/{STUDY}/study.json"] = published
        ledger = str(ledger_of(tmp_path / "hospital-0.csv").path)
        assert "--epsilon 3" in typed(server.url, "--yes", "--agree", "--ledger", ledger, code=6)[1]
        typed(server.url, *PROTECTED, "--agree")
        assert len(server.attempts) == 1


def test_a_restored_folder_sends_a_version_under_the_id_of_before(typed: Typed, tmp_path: Path) -> None:
    """A leader that counted both would have one institution's noise in both; a helper counts no document twice."""
    study, published = offered(tmp_path)
    with faulty_server(study) as server:
        server.files[f"/models/{STUDY}/study.json"] = published
        typed(server.url, "--show", "--epsilon", "3")
        shutil.copytree(tmp_path / "state-0", tmp_path / "backup")
        typed(server.url, *PROTECTED)
        shutil.rmtree(tmp_path / "state-0")
        shutil.copytree(tmp_path / "backup", tmp_path / "state-0")
        typed(server.url, *PROTECTED)
        first, second = server.attempts
        assert first.document_id == second.document_id
        public, helper = msgspec.json.decode(published, type=PublicStudy), open_helper(tmp_path / "helper")
        assert vector_in(public, helper, first) == vector_in(public, helper, second)


def test_what_cannot_be_protected_in_a_sum_is_not_to_be_accepted(typed: Typed, tmp_path: Path) -> None:
    study, published = offered(tmp_path)
    columns = tmp_path / "columns.toml"
    columns.write_text("class_weights = [0.0, 1.0]\n" + columns.read_text(encoding="utf-8"), encoding="utf-8")
    with faulty_server(study) as server:
        server.files[f"/models/{STUDY}/study.json"] = published
        said = typed(server.url, *PROTECTED, code=2)[1]
        assert "a class has the weight 0" in said
        assert "--accept-reconstruction" not in said


def test_no_version_is_answered_again_from_other_columns(typed: Typed, tmp_path: Path) -> None:
    """The noise would be the same, so the difference of the two answers would contain none."""
    study, published = offered(tmp_path)
    with faulty_server(study) as server:
        server.files[f"/models/{STUDY}/study.json"] = published
        typed(server.url, "--show", "--epsilon", "3")
        shutil.copytree(tmp_path / "state-0", tmp_path / "backup")
        typed(server.url, *PROTECTED)
        shutil.rmtree(tmp_path / "state-0")
        shutil.copytree(tmp_path / "backup", tmp_path / "state-0")
        columns = tmp_path / "columns.toml"
        columns.write_text(re.sub("deviation = .*", "deviation = 9.0", columns.read_text(), count=1), encoding="utf-8")
        said = typed(server.url, *PROTECTED, "--for", "3s", code=75)[1]
        assert "version 0 of study 'tumours' was answered already" in said
        assert len(server.attempts) == 1


def test_a_ping_that_was_kept_before_a_kill_counts_among_the_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, published = offered(tmp_path)
    dying, typed, latest = Dying(monkeypatch), typed_join(tmp_path, capsys), f"/models/{STUDY}/main/latest.json"
    state = tmp_path / "state-0"
    with faulty_server(study) as server:
        server.files[f"/models/{STUDY}/study.json"] = published
        model = json.loads(server.files[latest])
        for at in range(2, 1000):
            for path in (*tmp_path.glob("hospital-0.csv.ledger*"), *tmp_path.glob(".hospital-0.csv.ledger*")):
                path.unlink()
            shutil.rmtree(state, ignore_errors=True)
            server.attempts.clear()
            server.files[latest] = json.dumps(model).encode()
            dying.run(at, True, lambda: typed(server.url, *PROTECTED, "--versions", "1"))
            if (state / "waiting.json").exists():
                break
        assert not server.attempts
        typed(server.url, *PROTECTED)
        server.files[latest] = json.dumps(model | {"iteration": 1}).encode()
        assert "the maximum that you consented to" in typed(server.url, *PROTECTED)[1]
        assert len(server.attempts) == 1


def test_no_more_versions_are_answered_than_were_consented_to(typed: Typed, tmp_path: Path) -> None:
    study, published = offered(tmp_path)
    latest = f"/models/{STUDY}/main/latest.json"
    with faulty_server(study) as server:
        server.files[f"/models/{STUDY}/study.json"] = published
        model = json.loads(server.files[latest])
        said = typed(server.url, *PROTECTED, "--versions", "2")[1]
        assert "everything sent in 2 versions" in said
        assert "without an end" not in said
        for version in (1, 2, 3):
            server.files[latest] = json.dumps(model | {"iteration": version}).encode()
            said = typed(server.url, *PROTECTED)[1]
        assert "has answered 2 versions, the maximum that you consented to" in said
        assert len(server.attempts) == 2
        typed(server.url, *PROTECTED, "--versions", "5")
        assert len(server.attempts) == 3


def vector_in(
    study: PublicStudy, helper: HelperFolder, attempt: Attempt, weights: NDArray[np.float64] = ZEROS
) -> list[int]:
    """Return the vector that an institution has sent, as both servers together could read it."""
    line = study.lines[0]
    terms = agreed_terms(study, line)
    assert terms is not None
    payload = base64.b64decode(json.loads(attempt.body)["payload"]["update"]["payload"])
    of_offer, of_leader, of_helper = layout_by(terms).parts(np.frombuffer(payload, np.uint8)[None])
    with helper.records() as records:
        keys = keys_of(helper, records.offers(records.lines()[0].number))
    offer = of_offer.tobytes()
    arm = study.arms[0].name
    info = info_of(terms.study, terms.line, 0, arm, attempt.document_id, terms.numbers, offer)
    share = opener(terms.seal, keys[offer].private)(of_helper.tobytes(), info)
    assert share is not None
    assert share[32:].hex() == served_digest(line.spec, weights)
    return WORDS.centred(WORDS.plus(words_of(of_leader)[0], mask(share, terms.numbers))).tolist()


@pytest.mark.thorough
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_write_it_sends_one_vector_whose_noise_was_charged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    study, published = offered(tmp_path)
    public = msgspec.json.decode(published, type=PublicStudy)
    helper, dying = open_helper(tmp_path / "helper"), Dying(monkeypatch)
    typed = typed_join(tmp_path, capsys)
    ledger = ledger_of(tmp_path / "hospital-0.csv")
    with faulty_server(study) as server:
        server.files[f"/models/{STUDY}/study.json"] = published
        for at in range(few_or_all(2, 0), 1000, few_or_all(5, 1)):
            server.attempts.clear()
            for path in (ledger.path, ledger.copy):
                path.unlink(missing_ok=True)
            shutil.rmtree(tmp_path / "state-0", ignore_errors=True)
            ended = dying.run(at, after, lambda: typed(server.url, *PROTECTED))
            assert not server.attempts or ledger.read().spent > 0
            progress = tmp_path / "state-0" / "progress.json"
            if not (progress.exists() and json.loads(progress.read_bytes())["sent"]):
                typed(server.url, *PROTECTED)
            assert len({tuple(vector_in(public, helper, attempt)) for attempt in server.attempts}) == 1
            assert [entry.what for entry in ledger.read().entries] == ["opened", "table", "release"]
            if ended:
                break
    assert at > 20


def test_whoever_is_no_institution_is_not_taken_for_one(tmp_path: Path) -> None:
    study, published = offered(tmp_path)
    public = msgspec.json.decode(published, type=PublicStudy)
    with pytest.raises(InvalidSettings, match="take part by 'fedping join'"):
        PrivatePings(public, 0, lambda owner, first: in_memory(owner, first))
    told = json.loads(published)["lines"][0]
    assert told["privacy"]["rows"] == {"noise": NOISE, "colluding": 1}
    assert told["upload"][0]["digest"] is True
    plain = public_study(replace(study, lines=(without_rows(study.lines[0]),)))
    told = json.loads(public_json(plain))["lines"][0]  # older clients reject unknown settings
    assert "rows" not in told["privacy"]
    assert "digest" not in told["upload"][0]


def without_rows(line: Line) -> Line:
    assert line.privacy is not None
    return replace(line, privacy=replace(line.privacy, rows=None), upload=())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"training": LocalSteps(epochs=2, rate=0.1)}, "adds up in one gradient a version"),
        ({"noise": 0.01, "min_batch": 10_000}, "too small for whole numbers"),
        ({"min_batch": 10_001}, "at most 10,000"),
        ({"colluding": 3}, "none is left to add noise"),
        (
            {"arms": (HOSPITALS, replace(HOSPITALS, name="clinics", submits=False))},
            "Set 'applies' and 'submits' of each arm",
        ),
    ],
)
def test_settings_that_protect_no_row_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        summed("a" * 64, **changes)


def test_an_offer_for_other_noise_is_not_believed(tmp_path: Path) -> None:
    """Each institution relies on the noise of the others, so the helper signs how much they add."""
    _, published = offered(tmp_path)
    public = msgspec.json.decode(published, type=PublicStudy)
    line = public.lines[0]
    assert line.privacy is not None
    for rows in (RowSums(noise=NOISE, colluding=0), RowSums(noise=NOISE - 1, colluding=1)):
        other = replace(line, privacy=replace(line.privacy, rows=rows))
        with pytest.raises(InvalidSettings, match="its noise of institutions is 24 times the norm of a row, against 1"):
            agreed_terms(public, other)


def test_everybody_reads_on_what_the_protection_rests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Covers the privacy card, the study check and the helper, as text and as JSON."""
    helper = make_helper(tmp_path / "helper")
    study = summed(helper.identity, noise=7.0)
    card = card_of(study).lines[0]
    said = " ".join(map(str, (*card.trust, *card.contents, *card.guarantees)))
    assert "at most 1 of 3 in a sum reveal their noise to the operator" in said
    assert "the sum of the gradients of a table's rows" in said
    assert "the operator also sees the sender" in " ".join(map(str, card.not_covered))
    mu, delta, phi = math.sqrt(50) / 7, 300**-1.1, stats.norm.cdf  # of 50 versions, by the definition
    epsilon = brentq(lambda e: phi(mu / 2 - e / mu) - math.exp(e) * phi(-mu / 2 - e / mu) - delta, 0.1, 20)
    assert f"with 300 rows, 50 versions reveal at most (epsilon = {epsilon:.3g}" in said
    assert "as they are" not in said
    (in_guide,) = re.findall(r"^```toml\n# file: sums.toml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    (tmp_path / "sums.toml").write_text(in_guide, encoding="utf-8")
    assert main(["study", "check", str(tmp_path / "sums.toml")]) == 0
    shown = capsys.readouterr().out
    assert "protected in their sum by noise of 7 times its norm, as long as at most 1 of 3 collude" in shown
    few = math.floor((7 * mu_of(3.0, usual_delta(300))) ** 2)
    assert f"that is enough for {few} versions with 300 rows" in shown
    file = write_study(public_study(study), tmp_path / "study.json")
    own = ["--folder", str(helper.path), "--json"]
    assert main(["helper", "join", str(file), "--leader", leader_identity(KEY), *own]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == {"noise": 7.0, "colluding": 1}
    assert main(["helper", "status", *own]) == 0
    assert json.loads(capsys.readouterr().out)["lines"][0]["rows"] == {"noise": 7.0, "colluding": 1}
