"""The model store: studies and the versions of their lines, in a folder or a bucket.

    <study>/study.json                     the study, as created                                         ``studies``
    <study>/history/<n>.json               declarations and changes: author, time, reason, settings      ``history``
    <study>/notes/<n>.json                 users' notes on the study, pinned to dates and versions       ``notes``
    <study>/state.json                     running, paused or ended; running if absent. It follows the
                                           history, which older stores don't have                        ``studies``
    <study>/<line>/offer.json              the helper's offer; clients send nothing before it exists     ``studies``
    <study>/<line>/versions/<n>.json       version n: weights, state, lineage; the source of the rest    ``versions``
    <study>/<line>/fences/<n>.json         marks that a fence is in the place of version n               ``versions``
    <study>/<line>/held/<n>.json           a version held by a round, until the operator or the stage's
                                           results decide; or the version that replaces it               ``held``
    <study>/<line>/held/<n>.heard.json     the stage as read by the last round; for status pages         ``held``
    <study>/<line>/asked/                  requests to the helper of a two-server line, and answers
                                           (:mod:`fedping.model_store.helper_requests`)
    <study>/<line>/public/<n>.json         version n for clients, on a static file server; derived       ``public``
    <study>/<line>/public/latest.json      the head for clients; derived                                 ``public``
    <study>/<line>/public/staged-<n>.json  a staged version for its share of the clients; derived        ``public``

The last column names the part of :class:`ModelStore` that reads and writes the file.

The head of a line is the newest version of an unbroken chain: each file is named by its document's number, belongs to
this study, line and model spec, and names its parent and the parent's digest. A version's file is only created, never
replaced, so two publishers of versions with the same parent can't both succeed. Numbers are consecutive, except after a
fence, which names the next number (:func:`fedping.model_store.decisions.continue_at`). All files except the public
files and the markers below ``fences`` have a checksum (:mod:`fedping.model_store.documents`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fedping.model_store.documents import Documents, MissingStore, StoreError, headers, sealed
from fedping.model_store.held import HeldVersions
from fedping.model_store.helper_requests import StoredRequest
from fedping.model_store.history import History
from fedping.model_store.lines import Lines, lost, unfinished
from fedping.model_store.notes import StudyNotes
from fedping.model_store.public_documents import PublicDocuments
from fedping.model_store.studies import Studies
from fedping.model_store.version import Fence, PublicPart, Version
from fedping.model_store.versions import MissingVersion, Versions, marker_key, version_key
from fedping.protocol.errors import FedpingError
from fedping.protocol.extensions import with_recorded_code
from fedping.protocol.formats import with_format
from fedping.protocol.location import Bucket, Place
from fedping.protocol.model import UnfitModel, validate_document
from fedping.protocol.storage import Storage, open_storage
from fedping.protocol.study import Line, Study

__all__ = ["MissingVersion", "ModelStore", "StoreError", "VersionConflict", "lost", "open_store", "store_at"]

_NO_STORE = (
    "there is no model store at {}; give the store's folder or address with --store or FEDPING_STORE, or make a new "
    "one with 'fedping study create FILE'"
)


class VersionConflict(FedpingError):
    """Another publisher was first: the version exists, and nothing was written."""


class ModelStore:
    """Studies and the versions of their lines, over any :class:`fedping.protocol.storage.Storage`.

    Each part reads and writes one kind of file. Creating a study, publishing a version and holding a version involve
    several parts, and are methods of the store.

    Attributes:
        where: the store's name in messages.
        documents: the files by key, with checksums.
        history: the entries of each study's history.
        notes: users' notes about each study.
        studies: settings, declared states and offers.
        versions: the versions as stored, and the chains that they form.
        lines: the heads of lines, and lost versions.
        held: held and staged versions.
        public: the documents that clients fetch.
    """

    def __init__(self, storage: Storage, where: str) -> None:
        self.where = where
        self.documents = Documents(storage, where)
        self.history = History(self.documents)
        self.notes = StudyNotes(self.documents)
        self.studies = Studies(self.documents, self.history)
        self.versions = Versions(self.documents, self.studies)
        self.lines = Lines(self.documents, self.studies, self.versions)
        self.held = HeldVersions(self.documents, self.versions, self.lines)
        self.public = PublicDocuments(self.documents, self.versions, self.held)

    @property
    def is_near(self) -> bool:
        """Whether the store is in a folder, so that a look-up costs next to nothing."""
        return not self.documents.storage.far

    def is_empty(self) -> bool:
        """Return whether nothing exists at the store's place."""
        return not (self.documents.folders() or self.documents.names(""))

    def check_publishing(self) -> None:
        """Check that versions can be published; called before the work on a version.

        Raises:
            FedpingError: nothing can be written, or this place can't create a file completely and only once.
        """
        self.documents.check_writing()

    def study(self, name: str) -> Study:
        """Return a study with its present settings; raise :class:`StoreError` if it doesn't exist."""
        return self.studies.study(name)

    def version(self, study: str, line: str, iteration: int) -> Version:
        """Return a version; raise :class:`StoreError` if it doesn't exist, can't be read, or doesn't match its key."""
        return self.versions.version(study, line, iteration)

    def iterations(self, study: str, line: str) -> list[int]:
        """Return the numbers of the published versions of a line, in numeric order."""
        return self.versions.iterations(study, line)

    def head(self, study: str, line: str, noted: int = -1) -> Version:
        """Return the newest version of a line; see :meth:`fedping.model_store.lines.Lines.head`."""
        return self.lines.head(study, line, noted)

    def helper_request(self, study: str, line: str) -> StoredRequest:
        """Return the requests to the helper of a two-server line."""
        return StoredRequest(self.documents, study, line)

    def create_study(
        self, study: Study, first_versions: tuple[Version, ...], noted: Mapping[str, int] | None = None
    ) -> bool:
        """Store a study and version 0 of each of its lines; return False if exactly this study already existed.

        The call can be repeated: it adds everything that an interrupted call left out.

        Args:
            study: the study.
            first_versions: version 0 of each of its lines.
            noted: the newest version known to have been published, by line; -1 for none.

        Raises:
            StoreError: a different study of this name exists; version 0 of a line was lost, and would be published a
                second time, or exists with other weights than it should take over; or another study accepts telemetry
                of the same type. Nothing was written.
        """
        if study.telemetry:
            self.studies.refuse_second_taker(study)
        for version in first_versions:
            traces = self.lines.has_traces(study.name, version.line, (noted or {}).get(version.line, -1))
            if traces and not self._exists(version):  # checked last: another process may create it too
                raise StoreError(self.lines.without_its_versions(study.name, version.line))
            self._refuse_another_beginning(version)
        if not self.is_near:  # without conditional writes, the study would replace an existing one
            self.check_publishing()
        created = self.studies.create(study)
        if not created and (there := self.study(study.name)) != with_recorded_code(study, there):
            raise StoreError(
                f"the store {self.where} already has a study '{study.name}' with other settings; versions and pings "
                "depend on them, so give the changed study a new name, or check with 'fedping study change FILE "
                "--dry-run' whether a running study allows this change"
            )
        for version in first_versions:
            if self.documents.create(_key(version), sealed(msgspec.json.encode(version))):
                created = True
            self.public.refresh(study.name, version.line)
        return created

    def _refuse_another_beginning(self, first: Version) -> None:
        """Raise :class:`StoreError` if version 0 exists with a different warm start."""
        wanted = first.lineage.warm_start
        if wanted is None or not self._exists(first):
            return
        there = self.version(first.study, first.line, 0).lineage.warm_start
        if there is None or (there.taken.digest, there.renamed) != (wanted.taken.digest, wanted.renamed):
            began = "the start values of its spec"
            if there is not None:
                others = ", by other names" if there.taken.digest == wanted.taken.digest else ""
                began = f"weights of {there.taken.told}{others}"
            raise StoreError(
                f"line '{first.line}' of study '{first.study}' has begun already, with {began}, and clients may have "
                f"its version 0; to begin with {wanted.taken.told}, give the study a new name"
            )

    def publish(self, version: Version) -> None:
        """Publish a version if its parent is still the head: the compare-and-swap of a line.

        First, the version is read as a client and as the next round will read it.

        Raises:
            VersionConflict: the head is no longer the version's parent; nothing was written.
            UnfitModel: no client could read the version.
            StoreError: the version doesn't fit its study, versions after the head were lost, or a stray file has its
                name; nothing was written.
        """
        line = self.study(version.study).line(version.line)
        head = self.head(version.study, version.line)
        if version.spec_digest != line.spec.digest:
            raise StoreError(f"version {version.iteration} was computed for another model spec of line '{line.name}'")
        if (version.parent, version.parent_digest) != (head.iteration, head.digest):
            raise _conflict(version, head.iteration)
        if loss := self.lines.loss(version.study, version.line, version.iteration):
            raise StoreError(loss)
        self._refuse_a_staged_number(version)
        data = msgspec.json.encode(version)
        _refuse_unfit(version, data, line)
        if version.iteration > head.iteration + 1 and version.lineage.origin == "continued":
            self._fence_off(version, head)
        elif version.iteration != head.iteration + 1:
            raise StoreError(f"version {version.iteration} cannot follow version {head.iteration}")
        if not self.documents.create(_key(version), sealed(data)):
            raise _conflict(version, version.iteration)
        self.lines.accept(version, head.iteration)
        self.public.refresh(version.study, version.line)

    def hold(self, version: Version) -> None:
        """Hold a version until the decision whether to publish it; a version already held for its parent stays.

        If it is staged, clients get it once the public documents are refreshed.

        Raises:
            VersionConflict: the head is no longer the version's parent; nothing was written.
            UnfitModel: no client could read the version.
        """
        head = self.head(version.study, version.line)
        if (version.parent, version.parent_digest) != (head.iteration, head.digest):
            raise _conflict(version, head.iteration)
        data = msgspec.json.encode(version)
        _refuse_unfit(version, data, self.study(version.study).line(version.line))
        self.held.keep(version, data)

    def _refuse_a_staged_number(self, version: Version) -> None:
        held = self.held.held_version(version.study, version.line)
        if held is not None and held.staged and held.iteration == version.iteration and held.model != version.model:
            where = f"{version.study} {version.line}"
            raise StoreError(
                f"version {held.iteration} of line '{version.line}' of study '{version.study}' is staged, and some "
                f"clients have it, so no other can have its number. Decide first: 'fedping round {where} --release' "
                "or --discard"
            )

    def _fence_off(self, version: Version, head: Version) -> None:
        """Create a fence under the number after the head; raise an error if this or the version's number is taken."""
        if self._exists(version):
            raise StoreError(
                f"{self.where}/{_key(version)} exists, but is not a version of the line. Move it away, or give a "
                "larger number"
            )
        fence = Fence(
            study=version.study,
            line=version.line,
            after=head.iteration,
            after_digest=head.digest,
            goes_on_at=version.iteration,
            created=version.created,
            code_version=version.lineage.code_version,
        )
        study, line, slot = version.study, version.line, head.iteration + 1
        if not self.documents.create(version_key(study, line, slot), sealed(with_format(msgspec.json.encode(fence)))):
            begun = self.versions.fence(study, line, slot)
            if begun is None:
                raise _conflict(version, slot)
            if begun.goes_on_at != version.iteration:
                raise StoreError(unfinished(study, line, begun.goes_on_at))
        self.documents.create(marker_key(study, line, slot), b"{}")

    def _exists(self, version: Version) -> bool:
        return self.documents.stamp(_key(version)) is not None


def store_at(where: Place) -> ModelStore:
    """Return the store at a place, which needn't exist; nothing is read or written."""
    return ModelStore(open_storage(where, headers), str(where))


def open_store(where: Place, *, create: bool = False) -> ModelStore:
    """Open the store in a local folder or in a bucket.

    Raises:
        StoreError: the folder doesn't exist or the bucket's folder is empty, and ``create`` is False; or the path is a
            file.
        FedpingError: the object store doesn't answer.
    """
    if isinstance(where, Bucket):
        store = store_at(where)
        if not create and store.is_empty():
            raise MissingStore(_NO_STORE.format(where))
        return store
    if where.exists() and not where.is_dir():
        raise MissingStore(f"the model store {where} is a file; give the folder of a store")
    if not where.is_dir() and not create:
        raise MissingStore(_NO_STORE.format(where))
    return store_at(where)


def _key(version: Version) -> str:
    return version_key(version.study, version.line, version.iteration)


def _refuse_unfit(version: Version, data: bytes, line: Line) -> None:
    public = msgspec.json.encode(msgspec.json.decode(data, type=PublicPart))
    trouble = validate_document(public, version.model, line.spec)
    if trouble is None and (where := version.unreadable):
        trouble = f"its {where} is not a number that can be written"
    if trouble:
        raise UnfitModel(
            f"version {version.iteration} of line '{line.name}' of study '{version.study}' was not published, because "
            f"no client could read it: {trouble}",
            trouble,
        )


def _conflict(version: Version, there: int) -> VersionConflict:
    return VersionConflict(
        f"another round was first: line '{version.line}' of study '{version.study}' is already at version {there}, so "
        f"this version {version.iteration} was not published; nothing is lost and nothing needs doing"
    )
