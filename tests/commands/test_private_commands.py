"""The commands of a private study's operator: key, study and rounds; no exact value can be read anywhere."""

import dataclasses
import json
import os
import re
import stat
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedping.dashboard.live.lineage import lineage_of
from fedping.main import main
from fedping.model_store.store import open_store
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.privacy import Central, ClippedFlat, OneSign, Privacy, frame_of
from fedping.protocol.study import Study
from fedping.server_jobs.optimize import first_versions
from fedping.server_jobs.privacy.keys import Coins, read_key
from fedping.server_jobs.privacy.noise import SystemNoise
from fedping.server_jobs.round import RoundOptions
from fedping.server_jobs.round.plan import rules_for
from tests.support.private import STUDY_FILE as STUDY
from tests.support.private import private_study
from tests.support.private_rounds import PrivatePing, client, land_private, private_crowd
from tests.support.rounds import WHEN, store_with


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "landing").mkdir()
    return tmp_path


def study_of(rounds: int = 2, sampling: float = 1.0) -> Study:
    central = Central(
        epsilon=9, delta=1e-6, rounds=rounds, population=1000, sampling=sampling, noise_multiplier=2, dead_zone=0
    )
    return private_study(privacy=Privacy(central=central, contribution=ClippedFlat(norm=2.0)))


def test_a_key_is_made_once_for_its_owner_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0)
    try:
        assert main(["privacy", "key", "key"]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    made = read_key(folder / "key")
    assert len(made) == 32
    told = capsys.readouterr()
    assert made.hex() not in told.out + told.err
    assert main(["privacy", "key", "key"]) == 1
    assert "key exists" in capsys.readouterr().err
    assert read_key(folder / "key") == made
    assert main(["privacy", "key", "nowhere/key"]) == 1
    assert "can't write a key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda key: key.chmod(0o640), "with 'chmod 600"),
        (lambda key: key.write_text("secret"), "isn't a privacy key of 64 hexadecimal digits"),
        (lambda key: key.write_bytes(b"\xff\xfe"), "it isn't text"),
        (lambda key: key.unlink(), "Create one with 'fedping privacy key FILE'"),
        (lambda key: key.rename("store/key"), "is in store, whose readers"),
    ],
)
def test_a_key_that_keeps_no_secret_is_refused_before_anything_is_read(
    folder: Path, capsys: pytest.CaptureFixture[str], spoil: object, said: str
) -> None:
    store_with(folder / "store", study_of(sampling=0.5))
    main(["privacy", "key", "key"])
    spoil(folder / "key")  # type: ignore[operator]
    where = "store/key" if (folder / "store/key").exists() else "key"
    capsys.readouterr()
    assert main(["round", "private", "--engine", "numpy", "--privacy-key", where]) == 2
    assert said in capsys.readouterr().err
    assert open_store(folder / "store").iterations("private", "main") == [0]


def test_a_study_is_made_with_the_noise_that_keeps_its_guarantee(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "study.toml").write_text(STUDY)
    for _ in range(2):
        assert main(["study", "create", "study.toml"]) == 0
    told = capsys.readouterr()
    assert told.err.count("noise that keeps the guarantee") == 1
    assert "is already in store with these settings" in told.out
    assert (
        told.out.count(
            "its rounds sample clients in secret: create the study's key once with 'fedping privacy key FILE'"
        )
        == 1
    )
    central = open_store(folder / "store").study("private").lines[0].privacy.central  # type: ignore[union-attr]
    assert central is not None
    assert central.noise_multiplier is not None
    assert 0.6 < central.noise_multiplier < 2
    assert main(["study", "check", "study.toml"]) == 0
    assert f"for 10 rounds together, with noise of {central.noise_multiplier:.4g} times" in capsys.readouterr().out
    (folder / "less.toml").write_text(STUDY + "noise_multiplier = 0.5\n")
    assert main(["study", "check", "less.toml"]) == 2
    assert "remove 'noise_multiplier', and it is derived" in capsys.readouterr().err


def test_rounds_tell_what_is_spent_and_end_with_the_budget(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = study_of(sampling=0.5)
    store_with(folder / "store", study)
    main(["privacy", "key", "key"])
    command = ["round", "private", "--engine", "numpy", "--privacy-key", "key"]
    assert main(command[:-2]) == 2
    assert "give --privacy-key FILE" in capsys.readouterr().err
    for n, left in enumerate(("and 1 round is left", "no round is left")):
        land_private(folder / "landing", study, private_crowd(study, 400, seed=n, version=n), iteration=n)
        assert main([*command, "--keep"]) == 0
        told = capsys.readouterr()
        assert "from about " in told.out and left in told.out  # noqa: PT018
        assert "--keep keeps the pings of private lines" in told.err
        assert main(["store", "recompute", "private", "main", str(n + 1), "--privacy-key", "key"]) == 0
        assert "has the correct size" in capsys.readouterr().out
    assert main(["schedule", "private", "--help"]) == 0
    assert len(landed_files(partition(folder / "landing", "private", "main", 1))) == 1
    capsys.readouterr()
    assert main([*command, "--json"]) == 5
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["privacy"]["rounds_left"], told["privacy"]["releases"]) == ("exhausted", 0, 2)
    assert landed_files(partition(folder / "landing", "private", "main", 1)) == []
    assert main(["store", "recompute", "private", "main", "2", "--privacy-key", "key"]) == 0
    assert "bit-identical" in capsys.readouterr().out
    assert main(["analyze", "private"]) == 0
    assert "Line main: 2 rounds" in capsys.readouterr().out


def test_nothing_exact_is_to_be_read_anywhere(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canaries are the exact sums and count, a client's id and vector, and the key; the noise is always 12,345."""
    monkeypatch.setattr(SystemNoise, "integers", lambda noise, sigma, d: np.full(d, 12_345, np.int64))
    study = study_of(sampling=0.9)
    store_with(folder / "store", study)
    main(["privacy", "key", "key"])
    key = read_key(folder / "key")
    rng = np.random.default_rng(4)
    crowd = private_crowd(study, 317)
    canary = PrivatePing(client(study, "treatment", 1), rng.integers(-6000, 6000, 7).astype("<i4").tobytes())
    land_private(folder / "landing", study, [*crowd, canary])
    for n in range(2):
        assert main(["round", "private", "--engine", "numpy", "--privacy-key", "key", *(["--json"] if n else [])]) == 0
    main(["round", "private", "--engine", "numpy", "--privacy-key", "key"])
    for command in (
        ["history", "private", "main", "--json"],
        ["show", "private", "main"],
        ["show", "private", "main", "1"],
    ):
        assert main(["store", *command]) == 0
    assert main(["store", "recompute", "private", "main", "1"]) == 0
    told = "".join(capfd.readouterr())
    texts = {str(path): path.read_bytes() for path in (folder / "store").rglob("*") if path.is_file()}
    texts |= {str(path): path.read_bytes() for path in (folder / "landing").rglob("*") if path.is_file()}
    pages = [lineage_of(open_store(folder / "store"), "private", "main", number) for number in (1, 2)]
    texts |= {"told": told.encode(), "page": msgspec.json.encode(pages)}
    event = open_store(folder / "store").version("private", "main", 1).lineage.privacy
    assert event is not None
    exact = [value - 12_345 for value in event.released["treatment"]]
    assert canary.payload is not None
    digest = open_store(folder / "store").version("private", "main", 0).digest
    counted = Coins("private", "main", 0, digest, 0.9, key).counting(
        np.frombuffer(b"".join(p.client for p in (*crowd, canary)), "<u8").reshape(-1, 2)
    )
    metric = frame_of(study.lines[0].privacy, study.lines[0].spec).metric  # type: ignore[arg-type]
    assert exact[4] == int(counted.sum()) * metric, "or what is looked for is not what is exact"
    numbers = {*(abs(value) for value in exact if abs(value) > 1000), int(counted.sum()), 318}
    secrets = [key, key.hex().encode(), canary.payload, canary.client, canary.client.hex().encode()]
    for where, text in texts.items():
        assert not [each for each in secrets if each in text], where
        for number in numbers:
            assert not re.search(rb"(?<![0-9a-zA-Z.])%d(?:\.0)?(?![0-9a-zA-Z.])" % number, text), (where, number)
    assert re.search(rb"(?<![0-9])%d(?![0-9])" % event.released["treatment"][0], texts["told"]), (
        "the search finds nothing"
    )


def test_what_clients_cost_by_their_own_noise_is_told_by_the_ping(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = msgspec.structs.replace(private_study(privacy=Privacy(local=OneSign(epsilon=2.0))), name="alone")
    store_with(folder / "store", local)
    assert main(["privacy", "spent"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"alone +main +0 +2 a ping, by the client's own noise", told[1])
    assert len(told) == 2, "no total of what the server does not count"
    assert main(["privacy", "spent", "--json"]) == 0
    [line] = json.loads(capsys.readouterr().out)["lines"]
    assert (line["epsilon"], line["delta"], line["ping_epsilon"]) == (None, None, 2.0)
    study = study_of()
    open_store(folder / "store").create_study(study, first_versions(study, created=WHEN, code_version="test"))
    assert main(["privacy", "spent"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "the cost of each ping to the other lines" in told[-1]
    assert "epsilon = 0, delta = 0" in told[-1]


def test_the_key_is_in_no_representation() -> None:
    study, key = study_of(sampling=0.5), bytes(range(65, 97))
    coins = Coins("private", "main", 0, "0" * 64, 0.5, key)
    rules = dataclasses.replace(rules_for(study, "main", 0, key=b"k"), coins=coins)
    options = RoundOptions(clock=lambda: WHEN, code_version="test", privacy_key=key)
    for shown in map(repr, (coins, rules, options)):
        assert repr(key)[2:-1] not in shown
        assert key.hex() not in shown


def test_pings_that_no_round_will_use_any_more_are_deleted_too(folder: Path) -> None:
    """An ended study's last pings are deleted, unless with `--keep`; a paused study's stay, because it may resume."""
    study = study_of()
    store_with(folder / "store", study)
    made = land_private(folder / "landing", study, private_crowd(study, 20))
    round_ = ["round", "private", "--store", "store", "--landing", "landing", "--engine", "numpy"]
    for command, options, stay in (("pause", [], True), ("end", ["--keep"], True), ("end", [], False)):
        assert main(["study", command, "private", "--store", "store"]) == 0
        assert main([*round_, *options]) == 0
        assert made.exists() is stay
    assert open_store(folder / "store").head("private", "main").iteration == 0
