"""The certificates that clients trust: this machine's authorities, only those of --ca, or any with --insecure."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedping.commands.study_offer import read_offer
from fedping.main import main
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.trust import Trust
from fedping.server_jobs.round.helper_client import HelperUnavailable, HttpHelper
from tests.support.faulty_server import FaultyServer, faulty_server
from tests.support.fleets import STUDY, fleet_study
from tests.support.institutions import OPEN, agreed, tables, tumours
from tests.support.institutions import STUDY as TUMOURS
from tests.support.tls_front import make_certificates, tls_front


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server(fleet_study()) as running:
        yield running


def told(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    capsys.readouterr()
    code = main(list(map(str, words)))
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return code, err


def port_of(server: FaultyServer) -> int:
    return int(server.url.rpartition(":")[2])


def test_a_fleet_goes_through_tls_by_an_authority_of_its_own(
    server: FaultyServer, certificates: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ca, served = certificates
    stranger, _ = make_certificates(tmp_path)
    with tls_front(port_of(server), served) as url:
        fleet = ("fleet", url, STUDY, "--clients", 5)
        for options in ((), ("--ca", stranger)):
            code, err = told(capsys, *fleet, *options)
            assert code == 1
            assert "its certificate is not trusted (" in err
            assert "pass that authority's PEM file with --ca" in err
        assert not server.attempts
        code, err = told(capsys, *fleet, "--ca", ca)
        note, *others = err.splitlines()
        assert (code, others) == (0, [])
        assert note.startswith("note: 5 simulated clients will send to study ")
        sent = len(server.attempts)
        assert sent
        code, err = told(capsys, *fleet, "--insecure")
        assert code == 0
        assert err.startswith("fedping: warning: with --insecure anyone on the network path can impersonate the server")
        assert len(server.attempts) > sent


def test_an_institution_too(
    certificates: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ca, served = certificates
    rows = ["--data", tables(tmp_path)[0], "--columns", agreed(tmp_path / "columns.toml"), OPEN]
    with faulty_server(tumours()) as server, tls_front(port_of(server), served) as url:
        join = ("join", url, TUMOURS, *rows, "--state", tmp_path / "state", "--rounds", 1, "--yes", "--every", "0.1s")
        code, err = told(capsys, *join, "--for", "1s")
        assert code != 0
        assert not server.attempts
        code, err = told(capsys, *join, "--ca", ca)
        assert code == 0
        assert "--insecure" not in err
        assert len(server.attempts) == 1


def test_an_offer_is_fetched_from_a_helper_of_such_an_authority(
    server: FaultyServer, certificates: tuple[Path, Path]
) -> None:
    ca, served = certificates
    with tls_front(port_of(server), served) as url:
        with pytest.raises(FedpingError, match=r"certificate of the helper at .* is not trusted"):
            read_offer(url, "study", "main")
        for trust in (Trust(ca), Trust(insecure=True)):
            with pytest.raises(InvalidSettings, match="the helper has no offer at"):
                read_offer(url, "study", "main", trust)


def test_a_round_asks_such_a_helper_by_the_variable_of_the_docs(
    server: FaultyServer, certificates: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, served = certificates
    with tls_front(port_of(server), served) as url:
        with pytest.raises(HelperUnavailable, match="set REQUESTS_CA_BUNDLE"):
            HttpHelper(url, patience=20.0).answer(b"request", 100)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(ca))
        with pytest.raises(HelperUnavailable, match="closed the connection"):
            HttpHelper(url, patience=20.0).answer(b"request", 100)


def test_a_flush_goes_through_such_a_proxy(
    server: FaultyServer, certificates: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    ca, served = certificates
    with tls_front(port_of(server), served) as url:
        flush = ("landing", "flush", url, "--timeout", 5)
        code, err = told(capsys, *flush)
        assert code == 1
        assert "is not trusted. If you have a private certificate authority, pass its PEM file with --ca" in err
        code, err = told(capsys, *flush, "--ca", ca)
        assert code == 75
        assert "ingest doesn't answer at" in err, "the server of the test has no such page, but was reached"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ca", "{ca}", "--insecure"), "use one of them"),
        (("--ca", "{none}"), "can't read the certificates"),
        (("--ca", "{empty}"), "has no certificate that can be read"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    certificates: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    options: tuple[str, ...],
    says: str,
) -> None:
    (tmp_path / "empty.pem").write_text("")
    places = {"ca": certificates[0], "none": tmp_path / "none.pem", "empty": tmp_path / "empty.pem"}
    words = [word.format(**places) for word in options]
    code, err = told(capsys, "fleet", "https://127.0.0.1:1", STUDY, *words)
    assert code == 2
    assert says in err


def test_an_address_without_tls_takes_neither(
    server: FaultyServer, certificates: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (("--ca", certificates[0]), ("--insecure",)):
        code, err = told(capsys, "fleet", server.url, STUDY, *options)
        assert code == 2
        assert f"{options[0]} has no effect" in err
    assert not server.attempts
