"""Settings of a training's examples and of their preparation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import NODEFAULT, Meta, Struct
from msgspec.structs import fields, replace

from fedping.client_sim.data.bins import Discretise
from fedping.client_sim.data.missing import MissingRule, Module
from fedping.client_sim.data.originals import check_original, is_downloaded
from fedping.client_sim.data.scores import Select
from fedping.client_sim.population.settings import PopulationSettings
from fedping.client_sim.rehearsal.settings import Rehearsal
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.location import local_path

Share: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]

AUTHORS = "authors"
"""The value of ``test`` for the test examples of the data set's authors."""


class UserGroup(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Some of the synthetic users, such as those of a region: their ``share``, and how they search."""

    digest_name: ClassVar[str] = "UserGroup"

    share: Annotated[float, Meta(gt=0, le=1)]
    population: PopulationSettings = PopulationSettings()


class Data(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A data set by ``name``, your own ``file`` (CSV, Parquet or Arrow) with its ``target`` column, or ``users``.

    ``users`` is a number of synthetic users (thesis 7.3) of a model that ranks pages. Each round brings new searches,
    which are learned from once; the way that users search is ``population``. The first ``judges`` of them search twice
    more, for the validation and the test examples. No other setting is theirs.

    Users of a model of features see ``lists`` of a product's items instead, described as the rehearsal of a fleet. Each
    sees a number of lists in a round between the two ``examples``. The lists are in the order of the round's version,
    or, unless ``applies``, always in the order of the start weights.

    For a file, ``features`` are the columns to predict from, all others if None; ``client`` the one with the owner of
    each row, for a partition by key; ``kind`` whether the target is a class or a number, if that is not apparent.
    ``choice`` is the column with the choice that each row is a candidate of: the target is then 1 for the chosen one.

    ``test`` and ``validation`` are the shares of every client's examples that are set aside, stratified by class unless
    ``stratified`` is false. With ``folds`` every seed is run that many times, each time with another part as the test
    examples (cross-validation), and ``test`` has no effect. With ``test = "authors"`` the test examples are those that
    the authors of the data set have set apart in their files, and ``validation`` is a share of the others.

    A data set that is an extension may have ``settings``. Its hash is ``code``, which is computed. ``folder`` has the
    files of a data set that is read as its authors publish it, such as ``femnist``; ``settings`` are then its own.

    ``most`` is the most training examples that a client learns from, drawn at random.

    ``missing`` is the rule for missing features of a file or of a data set: ``refuse`` the run; ``drop`` each such
    example; fill in the ``mean`` over all clients, from sums of their sums and counts; or ``indicator``, the mean and a
    further feature that is 1 where a column is missing. ``modules`` are groups of features that some records or clients
    lack.

    The other settings are computed from sums over the clients' training examples, and applied to all: ``clip`` cuts
    each feature at this quantile, such as 0.99; with ``clip_beyond`` only a feature whose largest value exceeds this
    multiple of its quantile. ``drop_constant`` leaves out features with a single value, ``standardise`` scales the
    others to mean 0 and deviation 1, ``class_weights`` gives rare classes as much weight as common ones. ``min_max``
    scales features to [0, 1] by a round of extremes, which are single examples' values rather than sums. ``discretise``
    cuts features into bins, and ``select`` keeps those that tell most about the target. The order is: missing,
    drop_constant, clip, discretise, select, standardise or min_max, class_weights.

    Raises:
        InvalidSettings: not exactly one source, settings of another source, or no examples left to train on.
    """

    digest_name: ClassVar[str] = "Data"

    name: str | None = None
    settings: dict[str, Any] = {}
    code: str = ""
    file: str | None = None
    folder: str | None = None
    users: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    population: PopulationSettings = PopulationSettings()
    groups: tuple[UserGroup, ...] = ()
    judges: Annotated[int, Meta(ge=1)] = 1000
    lists: Rehearsal | None = None
    examples: tuple[Annotated[int, Meta(ge=0, le=1_000_000)], Annotated[int, Meta(ge=1, le=1_000_000)]] = (5, 20)
    applies: bool = True
    target: str | None = None
    features: tuple[str, ...] | None = None
    client: str | None = None
    choice: str | None = None
    kind: Literal["class", "number"] | None = None
    test: Share | Literal["authors"] = 0.2
    validation: Share = 0.0
    folds: Annotated[int, Meta(ge=2, le=1000)] | None = None
    stratified: bool = True
    most: Annotated[int, Meta(ge=1)] | None = None
    missing: MissingRule = "refuse"
    modules: tuple[Module, ...] = ()
    clip: Annotated[float, Meta(gt=0, le=1)] | None = None
    clip_beyond: Annotated[float, Meta(gt=1)] | None = None
    drop_constant: bool = False
    discretise: Discretise | None = None
    select: Select | None = None
    standardise: bool = False
    min_max: bool = False
    class_weights: bool = False

    def __post_init__(self) -> None:
        if sum(source is not None for source in (self.name, self.file, self.users)) != 1:
            raise InvalidSettings("[data] needs exactly one of 'name', 'file' and 'users'")
        if self.users is not None:
            self._refuse_all_but("users", "population", "groups", "judges", "lists", "examples", "applies")
            self._check_groups()
            return
        if self.lists is not None or self.examples != (5, 20) or not self.applies:
            raise InvalidSettings(
                "[data] lists, examples and applies are of synthetic users. Set their number, such as users = 1000"
            )
        if self.folder is not None and self.file is not None:
            raise InvalidSettings("[data] has 'file' and 'folder', which is of a data set by 'name'. Remove one")
        if self.folder is not None or is_downloaded(self.name):
            check_original(self.name, self.settings)
        if self.file is not None and self.settings:
            raise InvalidSettings("[data] settings are for a data set by 'name'. Remove them")
        if self.file is not None and self.target is None:
            raise InvalidSettings(f"[data] file = \"{self.file}\" needs 'target', the column to predict")
        if self.standardise and self.min_max:
            raise InvalidSettings("[data] has 'standardise' and 'min_max', two scales for the same features; give one")
        if self.missing == "refuse" and any(each.missing and not each.only for each in self.modules):
            raise InvalidSettings(
                '[[data.modules]] has features that are missing, and [data] no rule for them. Set missing = "drop", '
                '"mean" or "indicator", or \'only\' of the module'
            )
        if self.clip_beyond is not None and self.clip is None:
            raise InvalidSettings("[data] clip_beyond needs 'clip', the quantile to cut at, such as clip = 0.99")
        if self.file is None and (self.target or self.features or self.client or self.choice or self.kind):
            raise InvalidSettings(
                "[data] target, features, client, choice and kind are of a 'file'; a data set has its own"
            )
        if self.choice is not None and self.kind is not None:
            raise InvalidSettings(
                "[data] has 'choice', whose target is the chosen candidate, and 'kind'. Remove 'kind'"
            )
        self._check_authors()
        if self.test_share + self.validation >= 1:
            raise InvalidSettings(
                f"test ({self.test_share:g}) and validation ({self.validation:g}) leave nothing to train on; lower one"
            )

    def _check_authors(self) -> None:
        if self.test != AUTHORS:
            return
        if self.folds is not None:
            raise InvalidSettings("[data] has test = \"authors\" and 'folds', which test on every example. Remove one")
        if self.file is not None:
            raise InvalidSettings(
                "[data] test = \"authors\" is of a data set by 'name'; a 'file' has no such split. Set a share, such "
                "as test = 0.2"
            )

    def _refuse_all_but(self, *names: str) -> None:
        for field in fields(self):
            default = {} if field.default is NODEFAULT else field.default
            if field.name not in names and getattr(self, field.name) != default:
                raise InvalidSettings(
                    f"[data] has '{field.name}', which is not a setting of synthetic users; "
                    f"they have {', '.join(names)}"
                )

    def _check_groups(self) -> None:
        if self.groups and self.population != PopulationSettings():
            raise InvalidSettings("[data] has 'population' and 'groups'; say how users search in the groups alone")
        if self.groups and abs(sum(group.share for group in self.groups) - 1) > 1e-9:
            raise InvalidSettings("the shares of [[data.groups]] do not sum to 1; make them")
        if self.lists is not None and self.searches:
            raise InvalidSettings(
                "[data] has 'lists', and 'population' or 'groups', whose users search among pages. Remove one"
            )
        if self.examples[0] > self.examples[1]:
            raise InvalidSettings(
                f"[data] examples = {list(self.examples)}: give the minimum number of a user's lists in a round, then "
                "the maximum"
            )

    @property
    def user_groups(self) -> tuple[UserGroup, ...]:
        """The groups of synthetic users; a single one with all users unless groups are given."""
        return self.groups or (UserGroup(share=1.0, population=self.population),)

    @property
    def searches(self) -> bool:
        """Whether the settings describe synthetic users who search among pages."""
        return bool(self.groups) or self.population != PopulationSettings()

    @property
    def drifts(self) -> bool:
        """Whether some synthetic users change over time."""
        of_lists = self.lists is not None and any(self.lists.drift.values())
        return of_lists or any(group.population.drift for group in self.user_groups)

    @property
    def changes_features(self) -> bool:
        """Whether the number of features is known only after the preparation."""
        one_hot = self.discretise is not None and self.discretise.encode == "one_hot"
        fewer = self.drop_constant or self.select is not None or any(each.only == "without" for each in self.modules)
        return fewer or one_hot or self.missing == "indicator"

    @property
    def computed(self) -> tuple[str, ...]:
        """The names of the settings that change features by values computed from all clients' examples."""
        names = ("drop_constant", "clip", "discretise", "select", "standardise", "min_max")
        filled = ("missing",) if self.missing in ("mean", "indicator") else ()
        return (*filled, *(name for name in names if getattr(self, name)))

    @property
    def test_share(self) -> float:
        """The share of the test examples, whether drawn or a fold; 0 if their authors set them apart."""
        if isinstance(self.test, str):
            return 0.0
        return self.test if self.folds is None else 1 / self.folds

    def at(self, folder: Path) -> Data:
        """Return the settings with files' paths that are relative to ``folder`` made relative to the current folder."""
        if self.lists is not None:
            return replace(self, lists=self.lists.at(folder))
        if self.folder is not None:
            return replace(self, folder=str(folder / local_path(self.folder)))
        return self if self.file is None else replace(self, file=str(folder / local_path(self.file)))
