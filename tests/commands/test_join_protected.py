"""`fedping join` protects each row: its ledger accounts for everything sent; chosen weights recover no row."""

import hashlib
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from fedping.client_sim.joining.columns import read_columns
from fedping.client_sim.joining.examples import Wanted, read_examples
from fedping.client_sim.joining.ledger import ledger_of
from fedping.client_sim.joining.protected import ProtectedRows
from fedping.client_sim.learning.registry import model_spec
from fedping.main import main
from fedping.protocol.model import ModelDocument
from fedping.protocol.personalization import FineTune
from fedping.protocol.row_privacy import usual_delta
from fedping.protocol.training import LocalSteps, OneGradient
from tests.support.dying import Dying
from tests.support.effort import few_or_all
from tests.support.faulty_server import LANDED, Answer, FaultyServer, faulty_server, refusal
from tests.support.fleets import document
from tests.support.institutions import ARMS, LABEL, OPEN, STUDY, agreed, tables, tumours

LATEST = f"/models/{STUDY}/main/latest.json"


class Typed:
    """The command as typed, with its own table, folder and ledger."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self.capsys, self.folder, self.state = capsys, folder, folder / "state"
        self.data, self.columns = tables(folder)[0], agreed(folder / "columns.toml")
        self.ledger = ledger_of(self.data)

    def __call__(self, url: str, *options: str | Path, code: int = 0) -> tuple[str, str]:
        self.capsys.readouterr()
        own = ["--data", self.data, "--columns", self.columns, "--state", self.state, "--every", "0.1s"]
        ended = main(["join", url, STUDY, *map(str, own), *map(str, options)])
        said = self.capsys.readouterr()
        assert ended == code, said
        assert "Traceback" not in said.err
        return said.out, said.err

    def once(self, url: str, *options: str | Path, code: int = 0) -> tuple[str, str]:
        return self(url, "--rounds", "1", "--yes", *options, code=code)

    @property
    def entries(self) -> list[str]:
        return [entry.what for entry in self.ledger.read().entries]


@pytest.fixture
def join(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Typed:
    return Typed(capsys, tmp_path)


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server(tumours()) as running:
        yield running


def serve(server: FaultyServer, version: int, weights: np.ndarray) -> None:
    """Publish a version with weights chosen by a hostile server."""
    honest: ModelDocument = document(server.study, "main", version)
    chosen = msgspec.structs.replace(honest, model=tuple(weights.tolist()))
    server.files[LATEST] = msgspec.json.encode(chosen)


def updates(server: FaultyServer) -> list[np.ndarray]:
    return [np.array(json.loads(body)["payload"]["update"]) for body in server.bodies().values()]


# --- the default ---


def test_rows_are_protected_unless_somebody_says_otherwise(server: FaultyServer, join: Typed) -> None:
    out, said = join.once(server.url, "--json")
    assert "each row of your 190 is protected" in said
    assert "spent so far, over all studies of this table: epsilon 0 of 3" in said
    assert "reveal rows" not in said
    consent = json.loads(out)["consent"]
    assert (consent["protected"], consent["epsilon"], consent["versions"], consent["unit"]) == (True, 3.0, 50, "row")
    assert 0 < consent["spent_epsilon"] < 0.5
    assert join.entries == ["opened", "table", "release"]
    book = join.ledger.read()
    assert book.spent == pytest.approx(book.allowed / 50, rel=1e-6)
    (protected,) = updates(server)
    join.state = join.folder / "other"
    join.once(server.url, OPEN)
    plain = updates(server)[1]
    assert np.linalg.norm(protected - plain) > 0.1


def test_show_charges_nothing_and_prints_the_bytes_that_are_posted_later(server: FaultyServer, join: Typed) -> None:
    shown, said = join(server.url, "--show")
    assert "each row of your 190 is protected" in said
    assert join.entries == ["opened"]
    join.once(server.url)
    assert server.attempts[0].body.decode() == shown.rstrip("\n")


def test_to_look_at_another_budget_decides_nothing(server: FaultyServer, join: Typed) -> None:
    assert "of 8\n" in join(server.url, "--show", "--epsilon", "8")[1]
    assert join.ledger.read().budget[0] == 3.0
    join.once(server.url)
    assert "of 0.5\n" in join(server.url, "--show", "--epsilon", "0.5")[1]
    assert join.entries == ["opened", "table", "release"]


def test_to_look_at_persons_leaves_rows_their_delta(server: FaultyServer, join: Typed) -> None:
    names, *rows = join.data.read_text().splitlines()
    lines = [f"{names},patient", *(f"{row},{number // 2}" for number, row in enumerate(rows))]
    join.data.write_text("\n".join(lines) + "\n")
    assert "each person of your 95 is protected" in join(server.url, "--show", "--person", "patient")[1]
    assert "delta 0.0031:" in join(server.url, "--show")[1]
    join.once(server.url)
    assert join.ledger.read().budget == (3.0, usual_delta(190))


def test_steps_on_a_client_are_charged_one_by_one(join: Typed) -> None:
    with faulty_server(tumours(training=LocalSteps(epochs=5, batch=16, rate=0.1))) as server:
        join.once(server.url, "--versions", "10", "--epsilon", "1")
    book = join.ledger.read()
    assert book.budget[0] == 1.0
    assert book.spent == pytest.approx(book.allowed / 10, rel=1e-6)


def test_without_protection_two_sentences_say_so(join: Typed) -> None:
    spec = model_spec("network", {"features": 30, "classes": 2, "hidden": 500}, name=STUDY)
    with faulty_server(tumours(training=OneGradient(), spec=spec)) as server:
        _, said = join.once(server.url, OPEN, "--versions", "3")
        assert "a row of your table can be worked out exactly from one update" in said
        assert "can work out up to 190 of your 190 rows in 3 versions" in said
        assert not join.ledger.exists


def test_what_is_accepted_is_kept_and_asked_again_when_it_changes(join: Typed) -> None:
    with faulty_server(tumours(training=LocalSteps(epochs=3, rate=0.1))) as server:
        join.once(server.url, OPEN)
        server.publish(1)
        join.once(server.url)  # kept
        assert len(server.attempts) == 2
    with faulty_server(tumours(training=LocalSteps(epochs=4, rate=0.1))) as server:
        server.publish(2)
        assert "since you consented (the training is another one); check it" in join.once(server.url, code=6)[1]
        assert "--agree" in join.once(server.url, OPEN, code=6)[1]
        assert not server.attempts
        join.once(server.url, OPEN, "--agree")
        assert len(server.attempts) == 1


def test_no_more_versions_are_answered_than_were_consented_to(server: FaultyServer, join: Typed) -> None:
    version = iter(range(1, 100))

    def publishing(name: object, attempt: int) -> Answer:
        server.publish(next(version))
        return LANDED

    server.plan = publishing
    for options in (["--versions", "3"], [OPEN, "--versions", "2"]):
        server.attempts.clear()
        said = join(server.url, "--yes", *options)[1]
        assert len(server.attempts) == int(options[-1])
        assert "the maximum that you consented to" in said


@pytest.mark.parametrize("options", [["--versions", "9"], [OPEN]])
def test_no_more_pings_are_posted_a_day_than_it_allows_also_refused_ones(
    server: FaultyServer, join: Typed, options: list[str]
) -> None:
    join.once(server.url, *options, "--a-day", "2")
    server.publish(1)
    server.plan = lambda name, attempt: refusal(400, "loss: too large")
    join.once(server.url, *options, "--a-day", "2", code=1)
    server.publish(2)
    said = join(server.url, "--yes", *options, "--a-day", "2", "--for", "1s", code=75)[1]
    assert "is reached for the last 24 hours" in said
    assert len(server.attempts) == 2
    lines = [json.loads(line) for line in (join.state / "sent.ndjson").read_text().splitlines()]
    old = [json.dumps({**line, "time": "2018" + line["time"][4:]}) for line in lines]
    (join.state / "sent.ndjson").write_text("\n".join(old) + "\n")
    server.plan = lambda name, attempt: LANDED
    join.once(server.url, *options, "--a-day", "2")
    assert len(server.attempts) == 3


def test_pings_of_other_weights_under_one_version_count_one_by_one_a_day(server: FaultyServer, join: Typed) -> None:
    server.plan = lambda name, attempt: refusal(400, "loss: too large")
    for number in range(4):  # like a restarted service
        serve(server, 0, np.full(31, 0.1 * number))
        join(server.url, "--yes", OPEN, "--a-day", "2", "--for", "1s", code=1 if number < 2 else 75)
    assert len(server.attempts) == 2
    assert len({attempt.body for attempt in server.attempts}) == 2
    lines = [json.loads(line) for line in (join.state / "sent.ndjson").read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["unanswered", "rejected"] * 2
    assert len({line["weights"] for line in lines}) == 2


def test_a_training_that_takes_too_long_is_given_up_and_sends_nothing(
    server: FaultyServer, join: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as slow:
        slow.setattr(ProtectedRows, "_sum", lambda self, *given: time.sleep(30))
        said = join.once(server.url, "--training-time", "0.2s", code=1)[1]
    assert "the training on version 0 took longer than 0.2 s and was stopped, so no ping was sent" in said
    assert not server.attempts
    assert join.entries == ["opened", "table", "release"]
    join.once(server.url)  # already charged
    assert join.entries == ["opened", "table", "release"]
    assert len(server.attempts) == 1


def test_an_ended_budget_ends_in_order_and_says_what_that_means(server: FaultyServer, join: Typed) -> None:
    join.once(server.url, "--versions", "1")
    server.publish(1)
    _out, said = join.once(server.url, "--versions", "2")
    assert len(server.attempts) == 1
    assert "the table's budget is spent" in said
    assert "it sends nothing more" in said
    join.once(server.url, "--versions", "2", "--epsilon", "4")
    assert len(server.attempts) == 2


def test_what_cannot_be_protected_is_refused_unless_it_is_accepted(join: Typed) -> None:
    training = LocalSteps(epochs=1, rate=0.1, personal=FineTune(rate=0.1, steps=1))
    arms = (replace(ARMS[0], share=1.0, personal=True),)
    with faulty_server(tumours(training=training, arms=arms)) as server:
        said = join.once(server.url, code=2)[1]
        assert "cannot be protected here: your own model" in said
        assert not server.attempts
        join.once(server.url, OPEN)
        assert len(server.attempts) == 1


def test_scales_are_refused_and_counts_of_classes_are_protected(join: Typed) -> None:
    agreed(join.columns, raw=True)
    spec = model_spec("k-means", {"features": 60, "clusters": 1, "counts": False}, name=STUDY)
    with faulty_server(tumours(training=LocalSteps(epochs=1, rate=1.0), spec=spec)) as server:
        assert "without an agreed range" in join.once(server.url, code=2)[1]
    text = join.columns.read_text().replace("moments = true", "counts = true")
    join.columns.write_text(text)
    spec = model_spec("k-means", {"features": 2, "clusters": 1, "counts": False}, name=STUDY)
    with faulty_server(tumours(training=LocalSteps(epochs=1, rate=1.0), spec=spec)) as server:
        join.once(server.url, "--versions", "1")
        (update,) = updates(server)
        start = np.array(document(server.study, "main", 0).model)
    shares = start + update
    lines = join.data.read_text().splitlines()[1:]
    truth = np.mean([line.endswith("malignant") for line in lines])
    assert shares[0] == pytest.approx(truth, abs=0.15)


def test_persons_are_protected_by_a_column(server: FaultyServer, join: Typed) -> None:
    header, *lines = join.data.read_text().splitlines()
    join.data.write_text(
        "\n".join([f"patient,{header}", *(f"p{n // 5},{line}" for n, line in enumerate(lines))]) + "\n"
    )
    assert "each person of your 38 is protected" in join.once(server.url, "--person", "patient")[1]
    server.publish(1)
    assert "each person" in join.once(server.url)[1]  # kept
    assert "0 columns 'nobody'" in join.once(server.url, "--person", "nobody", code=2)[1]


def test_held_out_rows_have_noise_too_and_their_price_in_the_same_ledger(join: Typed) -> None:
    with faulty_server(tumours(arms=ARMS)) as server:
        join.once(server.url, "--hold-out", "0.25")
        payloads = [json.loads(body)["payload"] for body in server.bodies().values()]
    book = join.ledger.read()
    assert join.entries == ["opened", "table", "release", "release"]
    assert book.spent == pytest.approx(book.allowed / 50, rel=1e-6)
    (evaluated,) = [payload for payload in payloads if payload.get("update") is None]
    assert sum(evaluated["confusion"]) == evaluated["examples"] == 48


# --- one draw a version ---


def test_a_refused_ping_draws_no_second_time(server: FaultyServer, join: Typed) -> None:
    server.plan = lambda name, attempt: refusal(400, "loss: too large")
    join.once(server.url, code=1)
    first = list(server.bodies())
    server.plan = lambda name, attempt: LANDED
    server.publish(1)
    join.once(server.url)
    assert len(server.bodies()) == 2
    assert next(iter(server.bodies())) == first[0]
    assert join.entries == ["opened", "table", "release", "release"]


def test_a_ping_without_a_ticket_is_sent_again_with_it_and_charged_once(
    server: FaultyServer, join: Typed, tmp_path: Path
) -> None:
    server.plan = lambda name, attempt: refusal(403, "a ticket is missing")
    join.once(server.url, code=1)
    (tmp_path / "ticket").write_text("key.1.mac\n")
    join.once(server.url, "--ticket", str(tmp_path / "ticket"), code=1)  # a wrong one
    server.plan = lambda name, attempt: LANDED
    assert join.once(server.url, "--ticket", str(tmp_path / "ticket"))[0].startswith("version 0: ")
    sent = [json.loads(attempt.body) for attempt in server.attempts]
    assert [each["payload"] for each in sent] == [sent[0]["payload"]] * 3
    assert [each.get("ticket") for each in sent] == [None, "key.1.mac", "key.1.mac"]
    assert join.entries == ["opened", "table", "release"]
    progress = json.loads((join.state / "progress.json").read_bytes())
    assert (progress["sent"], progress["contributed"]) == (1, 1)
    join(server.url, "--for", "0.3s", code=75)  # and is done with the version


def test_a_ping_that_was_rejected_for_its_sender_and_then_for_its_content_is_not_sent_a_third_time(
    server: FaultyServer, join: Typed
) -> None:
    server.plan = lambda name, attempt: refusal(403, "a ticket is missing")
    join.once(server.url, code=1)
    server.plan = lambda name, attempt: refusal(400, "loss: too large")
    join.once(server.url, code=1)
    join.once(server.url, "--for", "0.3s", code=75)
    assert len(server.attempts) == 2


def test_the_last_version_of_a_budget_is_sent_again_with_a_ticket_and_no_other_one(
    server: FaultyServer, join: Typed
) -> None:
    server.plan = lambda name, attempt: refusal(403, "a ticket is missing")
    join.once(server.url, "--versions", "1", code=1)
    server.publish(1)
    assert "answered 1 version" in join.once(server.url)[1]
    del server.files[LATEST]
    join.once(server.url, "--for", "0.3s", code=75)
    serve(server, 0, np.zeros(31))
    server.plan = lambda name, attempt: LANDED
    assert join.once(server.url)[0].startswith("version 0: ")
    assert "answered 1 version" in join.once(server.url)[1]
    sent = [json.loads(attempt.body)["payload"] for attempt in server.attempts]
    assert sent == [sent[0]] * 2


def test_other_weights_under_an_answered_version_are_refused_and_logged(server: FaultyServer, join: Typed) -> None:
    server.plan = lambda name, attempt: refusal(400, "loss: too large")
    serve(server, 0, np.zeros(31))
    join.once(server.url, code=1)
    for path in join.state.iterdir():  # a restored folder doesn't know that it has answered
        if path.name == "progress.json":
            path.unlink()
    serve(server, 0, np.ones(31))
    said = join.once(server.url, code=6)[1]
    assert "version 0 of study 'tumours' has other weights than when it was answered" in said
    assert len(server.attempts) == 1
    assert join.entries == ["opened", "table", "release", "refused"]
    serve(server, 0, np.zeros(31))
    server.plan = lambda name, attempt: LANDED
    join.once(server.url)
    assert len(server.bodies()) == 1  # the same bytes


@pytest.mark.thorough
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_write_it_never_draws_again_and_sends_nothing_uncharged(
    server: FaultyServer, join: Typed, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    dying, table = Dying(monkeypatch), join.data.read_bytes()
    for at in range(few_or_all(2, 0), 1000, few_or_all(5, 1)):
        join.state, join.data = join.folder / f"state-{at}", join.folder / f"table-{at}.csv"
        join.data.write_bytes(table)
        join.ledger = ledger_of(join.data)
        server.attempts.clear()
        ended = dying.run(at, after, lambda: join.once(server.url))
        assert not server.attempts or join.ledger.read().spent > 0
        progress = join.state / "progress.json"
        if not (progress.exists() and json.loads(progress.read_bytes())["sent"]):
            join.once(server.url)
        assert len({attempt.body for attempt in server.attempts}) == 1
        assert join.entries == ["opened", "table", "release"]
        if ended:
            break
    assert at > 20


def test_a_table_with_one_row_less_is_refused(server: FaultyServer, join: Typed) -> None:
    join.once(server.url)
    lines = join.data.read_text().splitlines(keepends=True)
    join.data.write_text("".join(lines[:-1]))
    server.publish(1)
    assert "1 row of the table changed" in join.once(server.url, code=2)[1]
    join.data.write_text("".join(lines[:-10]))
    join.once(server.url)
    assert join.entries == ["opened", "table", "release", "table", "release"]


def test_a_ledger_that_is_gone_stops_everything_until_a_person_says_what_was_spent(
    server: FaultyServer, join: Typed, capsys: pytest.CaptureFixture[str]
) -> None:
    join.once(server.url)
    join.ledger.path.unlink()
    server.publish(1)
    join.once(server.url)  # by the copy
    join.ledger.path.unlink()
    join.ledger.copy.unlink()
    server.publish(2)
    assert "--spent EPSILON" in join.once(server.url, code=1)[1]
    assert len(server.attempts) == 2
    assert main(["join", "ledger", str(join.data), "--spent", "1", "--epsilon", "3"]) == 0
    assert "stated by --spent" in capsys.readouterr().out
    join.once(server.url)
    assert main(["join", "ledger", str(join.data), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["spent_epsilon"] > 1
    assert [each["study"] for each in told["studies"]] == ["", STUDY]
    assert told["studies"][1]["versions"] == 1 + 2  # versions 0 and 1 may have been answered beyond what was stated


def test_a_damaged_copy_of_the_ledger_is_reported_and_then_repaired(
    server: FaultyServer, join: Typed, capsys: pytest.CaptureFixture[str]
) -> None:
    join.once(server.url)
    shown = ["join", "ledger", str(join.data)]
    whole = join.ledger.copy.read_bytes()
    capsys.readouterr()
    assert main(shown) == 0
    assert not capsys.readouterr().err
    for damaged in (whole.replace(b"release", b"RELEASE"), whole[: whole.index(b"\n") + 1]):
        join.ledger.copy.write_bytes(damaged)
        assert main(shown) == 0
        said = capsys.readouterr()
        assert f"{join.ledger.copy} is damaged, missing or incomplete" in said.err
        assert "chain intact" in said.out
    assert main([*shown, "--restored"]) == 0
    assert "the ledger charges the versions that the backup may lack" in capsys.readouterr().err
    assert main(shown) == 0
    assert not capsys.readouterr().err


def test_the_ledger_is_shown(server: FaultyServer, join: Typed, capsys: pytest.CaptureFixture[str]) -> None:
    join.once(server.url)
    assert main(["join", "ledger", str(join.data)]) == 0
    shown = capsys.readouterr().out
    assert "3 entries, chain intact" in shown
    assert "study 'tumours': 1 ping," in shown
    assert "98.0% of the budget is left" in shown
    content = join.ledger.path.read_bytes()
    for path in (join.ledger.path, join.ledger.copy):
        path.write_bytes(content.replace(b'"version":0', b'"version":7').replace(b'"units":190', b'"units":191'))
    assert main(["join", "ledger", str(join.data)]) == 1
    assert "damaged" in capsys.readouterr().err


# --- the status of a folder ---


@pytest.mark.parametrize("options", [(OPEN,), ("--versions", "5")])
def test_status_tells_the_digest_of_each_versions_weights(
    server: FaultyServer, join: Typed, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    assert main(["join", "status", str(join.state)]) == 2
    assert "isn't a state folder of 'fedping join'" in capsys.readouterr().err
    weights = [np.zeros(31), np.arange(31.0)]
    serve(server, 0, weights[0])
    join.once(server.url, *options)
    serve(server, 1, weights[1])
    server.plan = lambda name, attempt: refusal(400, "loss: too large")
    join.once(server.url, code=1)
    capsys.readouterr()
    assert main(["join", "status", str(join.state), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["study"], found["protected"], found["version"]) == (STUDY, options != (OPEN,), 0)
    assert [(each["version"], each["outcome"]) for each in found["answers"]] == [(1, "rejected"), (0, "accepted")]
    of_weights = [hashlib.sha256(np.asarray(each, "<f8").tobytes()).hexdigest() for each in weights[::-1]]
    spec = server.study.lines[0].spec.digest
    digests = [hashlib.sha256(f"{spec}|{each}".encode()).hexdigest() for each in of_weights]
    assert [each["weights"] for each in found["answers"]] == digests
    assert main(["join", "status", str(join.state), "--last", "1"]) == 0
    said = capsys.readouterr().out
    assert f"version 1  weights {digests[0][:16]}" in said
    assert "version 0  weights" not in said
    assert ("updates are not protected" in said) == (options == (OPEN,))


# --- the attack by steep weights, through a server ---


def half_spaces(rows: np.ndarray, versions: int) -> list[np.ndarray]:
    """Return weights with a boundary between successive rows, one row further in each version, as found by bisection.

    Knowing the boundaries in advance saves the versions of a bisection, in both cases.
    """
    direction = np.random.default_rng(11).normal(size=30)
    along = np.sort(rows @ direction)[:versions]
    return [1e9 * np.append(direction, -at) for at in (along[1:] + along[:-1]) / 2]


def worked_out(sums: list[np.ndarray], rows: np.ndarray) -> int:
    """Return the number of rows within 1e-3 in every column of the difference of two successive updates."""
    found = [(after - before) * len(rows) for before, after in pairwise(sums)]
    guesses = [each[:-1] / each[-1] for each in found if abs(each[-1]) > 1e-9]
    return sum(any(np.abs(row - guess).max() < 1e-3 for guess in guesses) for row in rows)


def test_steep_weights_read_rows_out_of_updates_and_none_out_of_protected_ones(join: Typed) -> None:
    """Runs twice 24 versions through a server, which takes some seconds.

    At ε = 3 a guess has noise with a standard deviation above 10 in each of 30 columns, so it is within 1e-3 of a row
    in all columns with a probability below 1e-100.
    """
    read = read_examples(join.data, LABEL, read_columns(join.columns), Wanted("the model", 30, True, 2)).x
    hostile, recovered = half_spaces(read, 25), {}
    with faulty_server(tumours(training=OneGradient())) as server:
        for options in ([OPEN], ["--versions", "24"]):
            server.attempts.clear()
            join.state = join.folder / f"attacked-{options[0]}"
            serve(server, 0, hostile[0])
            weights = iter(enumerate(hostile[1:], start=1))

            def following(name: object, attempt: int, weights: Any = weights) -> Answer:
                if (following := next(weights, None)) is not None:
                    serve(server, *following)
                return LANDED

            server.plan = following
            join(server.url, "--yes", "--rounds", "24", *options)
            recovered[options[0]] = worked_out(updates(server), read)
    assert recovered[OPEN] >= 20
    assert recovered["--versions"] == 0


# --- institutions that joined with an earlier program ---


def joined_before(join: Typed, server: FaultyServer) -> None:
    """Create a folder as left by a program without protection, in the middle of a line."""
    join.once(server.url, OPEN)
    path = join.state / "joined.json"
    document = json.loads(path.read_bytes())
    del document["consent"]
    path.write_text(json.dumps(document))
    server.attempts.clear()
    server.publish(1)


def test_who_joined_with_an_earlier_program_decides_before_anything_more_is_sent(
    server: FaultyServer, join: Typed
) -> None:
    joined_before(join, server)
    said = join.once(server.url, code=6)[1]
    assert "joined by a program that sent updates without protection" in said
    assert "--accept-reconstruction" in said
    assert "is protected" in join(server.url, "--show")[1]
    assert join.once(server.url, code=6)
    assert not server.attempts
    join.once(server.url, "--epsilon", "3")
    assert join.entries == ["opened", "table", "release"]
    server.publish(2)
    join.once(server.url)
    assert len(server.attempts) == 2


def test_or_goes_on_as_before(server: FaultyServer, join: Typed) -> None:
    joined_before(join, server)
    join.once(server.url, OPEN)
    assert len(server.attempts) == 1
    assert not join.ledger.exists
