"""A study whose institutions protect each row in their sum, with its server and helper."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fedping.helper.enrol import join
from fedping.helper.folder import HelperFolder, make_helper
from fedping.model_store.store import open_store
from fedping.protocol.pipeline import GradientDescent, Pipeline
from fedping.protocol.privacy import Privacy, RowSums, Shared
from fedping.protocol.study import Arm, Study, public_json, public_study
from fedping.protocol.training import OneGradient
from fedping.server_jobs.privacy.keys import leader_identity
from tests.support.helper_server import HelperServer, helper_server
from tests.support.ingest_server import IngestServer, running_ingest
from tests.support.institutions import STUDY, tumours
from tests.support.processes import wait_until
from tests.support.rounds import store_with
from tests.support.shared_rounds import KEY

LARGEST_LOSS = 4.0
NOISE = 24.0


def summed(
    helper: str,
    *,
    noise: float = NOISE,
    colluding: int = 1,
    min_batch: int = 3,
    arms: tuple[Arm, ...] = (),
    **line: Any,
) -> Study:
    """Return a study of logistic regression whose institutions protect each row in their sum."""
    arms = arms or (Arm(name="hospitals", share=1.0, line="main", applies=True, submits=True),)
    changes: dict[str, Any] = {"training": OneGradient(), "upload": ()} | line
    the_line = replace(
        tumours().lines[0],
        pipeline=Pipeline(optimizer=GradientDescent(rate=2.0), min_clients=1),
        privacy=Privacy(
            shared=Shared(helper=helper, min_batch=min_batch),
            rows=RowSums(noise=noise, colluding=colluding),
            loss=(0.0, LARGEST_LOSS),
            delay_minutes=0.0,
        ),
        **changes,
    )
    return Study(name=STUDY, pings="private-update", enrolment="hash", arms=arms, lines=(the_line,))


def offered(folder: Path, **settings: Any) -> tuple[Study, bytes]:
    """Return a study, and its public document with the helper's offer."""
    helper = make_helper(folder / "helper")
    study = summed(helper.identity, **settings)
    public = public_study(study)
    offer, _ = join(helper, public, public.lines[0], leader_identity(KEY))
    return study, public_json(replace(public, lines=(replace(public.lines[0], offer=offer),)))


@dataclass(frozen=True)
class Summing:
    """A running study: its helper, its two servers, and the folder with ``store`` and ``landing``."""

    study: Study
    helper: HelperFolder
    server: IngestServer
    way: HelperServer
    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def landing(self) -> Path:
        return self.folder / "landing"

    def round(self) -> list[str]:
        """Return the words of a round's command."""
        places = ["--store", self.store, "--landing", self.landing, "--privacy-key", self.folder / "key"]
        return ["round", STUDY, "--engine", "numpy", *map(str, places), "--helper", self.way.url]

    def released(self, version: int) -> tuple[int, ...]:
        """Return the sum from which a version was computed."""
        privacy = open_store(self.store).version(STUDY, "main", version).lineage.privacy
        assert privacy is not None
        return privacy.released["hospitals"]


@contextmanager
def summing(folder: Path, **settings: Any) -> Iterator[Summing]:
    """Yield a running study with a published helper's offer."""
    helper = make_helper(folder / "helper")
    study = summed(helper.identity, **settings)
    store = store_with(folder / "store", study)
    key = folder / "key"
    key.write_text(KEY.hex() + "\n")
    key.chmod(0o600)
    public = public_study(study)
    offer, _ = join(helper, public, public.lines[0], leader_identity(KEY))
    store.studies.publish_offer(STUDY, "main", offer)
    with running_ingest(folder / "store", folder / "landing", "--workers", "1") as server, helper_server(helper) as way:
        wait_until(lambda: "offer" in server.ask(f"/models/{STUDY}/study.json")["lines"][0])
        yield Summing(study, helper, server, way, folder)
