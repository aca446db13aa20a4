"""Rules about which parts of a line, a study or a laboratory's file can be combined.

A part declares ``traits``. A line, a study and an experiment have their parts' traits and some of their own. A rule is
a condition on these traits, with the error's sentence if the condition is met. Rules are in groups, which are checked
at different times: some apply to every stored study, others only to new studies or to experiments.

Three checks are made in other modules, because traits don't suffice for them: the order of upload links
(`fedping.protocol.links`), whether a link of another package can be undone at its position (`fedping.protocol.upload`),
and whether a spec's weights fit (`fedping.protocol.study.centroids_of`, `fedping.protocol.privacy.frame_of`). A
training of another package has the traits that its registered class declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from string import Template
from typing import Literal, NamedTuple, TypeAlias

from fedping.protocol.errors import InvalidSettings

Trait: TypeAlias = Literal[
    # a training
    "gradient",  # sends a gradient at the fetched model
    "local steps",  # sends how far local steps have moved the weights
    "sends signs",  # sends the signs alone, each as a number
    "structured",  # trains within what the upload link sends
    "proximal",  # pulls the weights back to the fetched ones
    "adds the mean",  # relies on the mean of the updates being added as it is
    "own training",  # of another package: the settings say nothing of what it sends
    # a client's optimizer
    "steps along gradients",  # is another than plain gradient descent
    "keeps memory",  # of one training for the next
    "uneven steps",  # has another rate for each weight
    # personalization
    "personal",  # something of the model is a client's own
    "local blocks",  # blocks of the model are never sent
    "vector",  # clients train a vector and the weights in turn
    "in step",  # all clients have the same turn
    "frozen weights",  # some weights of the client's own model stay those of the version
    "leaves at once",  # the client's own model leaves the shared one before that has learned anything
    "not in browsers",  # the browser module does not personalize so
    # an upload link, or the list of them
    "encodes",  # makes bytes, so that no link can follow
    "sends bits",  # sends the signs alone, as bits
    "equal lengths",  # no line of it may clip: its updates are equally long; so are those of 'signs', which may
    "inexact",  # does not send exactly what the client has learned
    "leaves zeros",  # leaves most weights at zero
    "low rank",  # sends a product of each matrix
    "one factor",  # of that product, as the other follows from a seed
    "both factors",  # of that product
    "follows a mask",  # may encode what a mask has kept
    "within",  # clients can train within what it sends
    "alone",  # the line has no link before the one that encodes
    "private vector",  # sends a private line's vector
    "other upload",  # the line has other links than the one of its privacy
    "feeds back",  # sends later what it has left out, which its client keeps
    "other draws",  # draws as the browser module cannot, or encodes as it cannot
    # an optimizer
    "as it is",  # adds the direction of a round as it is
    "quorum",  # follows a sign only if enough votes are behind it
    # an aggregation
    "mean",  # takes the mean of the updates
    "takes signs",  # takes the signs of the updates
    "zeros up",  # counts zeros as upward votes
    "centroids",  # clusters the clients' centroids again
    "compares",  # compares the clients' numbers of a weight
    "majority",  # withstands a minority of the votes
    # a pipeline
    "clips",
    "clips by steps",  # measures an update by the weights' step sizes
    "late pings",
    "late steps",  # weights the step of late pings
    "buckets",
    "votes of clients",
    "votes of examples",
    "most votes",
    # privacy
    "private",
    "central",
    "local noise",
    "one sign",
    "shared",
    "proofs",
    "sampled",  # counts on a coin of the server
    "row sums",  # protects each row in a sum of institutions
    "votes alone",  # contributes the signs of an update
    # a line
    "line limits",
    "bounded",  # limits say how large an update may be
    "guard",
    "staged",
    "guardrail",
    "guardrail of ranks",
    "participation",
    "ends by updates",  # an iteration's length depends on what was sent
    "reads each update",
    "early stopping",
    "integer weights",
    # a study and its arms
    "private pings",
    "draws participants",  # clients that send pings of the type draw who takes part
    "ranked pings",
    "example votes counted",  # examples are votes, and pings claim how many they are of
    "open line",  # a line without privacy
    "private line",
    "several lines",
    "arm without line",
    "half arm",  # applies or submits, and not both
    "chosen arms",  # clients are enrolled elsewhere
    "telemetry",
    "metrics",
    "segments",
    "study limits",
    "usual limits",
    "limit of ranks",
    "limit of examples",
    "tickets",
    "lists",  # pings are of lists of candidates
    "outcomes",  # clients report what followed a choice
    "outcomes at the choice",
    "personal arm",
    "applied",  # an arm applies the line's model as it is
    "control",  # an arm of the line does not apply it
    # a client's model
    "moves itself",  # moves its weights by a rule of its own
    "keeps state",  # the training keeps state with its clients
    "no store",  # clients have no store for it
    # an experiment of the laboratory
    "co_op",
    "gossip",
    "hierarchy",
    "clusters",
    "divides",  # a model of clusters, by all updates of a round
    "lateness",
    "clock",  # has simulated time
    "asynchronous",  # makes a version of each full buffer of answers
    "counts late answers",  # merges updates from older versions, as they arrive
    "loses answers",  # a client's answer may not be among those of its round
    "attack",
    "not in memory",
    "spark",
    "jax",
    "newcomers",
    "trained",
    "decided personally",
    "drift",
    "users",
    "validation",
    "ping limits",
    "several clients needed",
    "all clients",  # a sampling: every client takes part
    "by coin",  # a sampling: each client by a coin of its own
    "equal parts",  # a sampling: a client counts for the same in every round, if examples are no votes
    "by duration",  # a sampling: by the time that clients' answers take
    "other coin",  # the guarantee counts on another coin than the sampling's
    "begins too late",  # the last round is over before anything is personal
]
Traits: TypeAlias = frozenset[Trait]


def traits_of(part: object) -> Traits:
    """Return the traits that a part declares, which may be none."""
    found: Traits = getattr(part, "traits", frozenset())
    return found


def traits_where(facts: Mapping[Trait, bool]) -> Traits:
    """Return the names of the traits whose value is true."""
    return frozenset(trait for trait, is_so in facts.items() if is_so)


@dataclass(frozen=True, slots=True)
class Parts:
    """The traits of all parts of a line, a study or an experiment, and words that replace ``$name`` in sentences."""

    traits: Traits
    words: Mapping[str, str] = field(default_factory=dict)

    def has(self, *traits: Trait) -> bool:
        """Return whether all of the given traits are present."""
        return self.traits.issuperset(traits)

    def has_any(self, *traits: Trait) -> bool:
        """Return whether any of the given traits is present."""
        return not self.traits.isdisjoint(traits)

    def lacks(self, *traits: Trait) -> bool:
        """Return whether all of the given traits are absent."""
        return self.traits.isdisjoint(traits)


class Rule(NamedTuple):
    """A forbidden condition on parts, and the error's sentence, or its end if :func:`check` gets the start."""

    condition: Callable[[Parts], bool]
    sentence: str


_CENTROIDS = "reclusters, which needs updates with the distance that centroids moved, but its"
_MOVES_ITSELF = "but the model has its own update rule, as k-means does. Remove"
_ANY_LENGTH = (
    "[lines.pipeline] of line '$line' takes the mean of updates of any length, so a single hostile client can ruin the "
    "model."
)
_AS_NUMBERS = (
    "[lines.training] of line '$line' has sign = true, which sends each sign as a number of 4 bytes. Remove it"
)

RULES: Mapping[str, tuple[Rule, ...]] = {
    "training": (
        Rule(
            lambda p: p.has("structured", "sends signs"),
            "'structured' and 'sign' exclude each other: a link's output isn't within its subspace after taking "
            "signs. Remove one",
        ),
        Rule(
            lambda p: p.has("structured", "keeps memory"),
            "'structured' and keep = true of 'optimizer' exclude each other: the memory is of other weights than the "
            "next update sends. Remove one",
        ),
        Rule(
            lambda p: p.has("structured", "local blocks"),
            "'structured' and a 'personal' model with 'local' blocks exclude each other: no link sends these blocks. "
            "Remove 'structured'",
        ),
    ),
    "pipeline": (
        Rule(
            lambda p: p.has("most votes", "votes of clients"),
            "'most_votes' has nothing to bound, because every client has one vote. Remove it, or set weighting = "
            '"examples" or "ping"',
        ),
        Rule(
            lambda p: p.has("late pings", "centroids"),
            "'staleness' does not go with reclustering, because late pings lack the centroids that a movement began "
            "at. Remove it, or set another 'aggregate'",
        ),
        Rule(
            lambda p: p.has("late steps", "takes signs"),
            "'staleness' cannot weight the step of a sign, which has no length. Set on = \"votes\", or another "
            "'aggregate'",
        ),
        Rule(
            lambda p: p.has("clips", "centroids"),
            "'clip' cannot shorten updates before reclustering, which moves centroids. Remove it, or set another "
            "'aggregate'",
        ),
        Rule(
            lambda p: p.has("clips", "takes signs"),
            "'clip' cannot shorten updates of which only signs count. Remove it, or set another 'aggregate'",
        ),
        Rule(
            lambda p: p.has("quorum") and not p.has("clips", "mean"),
            "the 'quorum' of rprop needs a clip and a mean. Set clip = { by = "
            '"quantile", units = "step", multiple = 0.1 } and aggregate = { by = "mean" }, or remove \'quorum\'',
        ),
        Rule(
            lambda p: p.has("buckets", "mean"),
            "'bucketing' has no effect, because the mean of the buckets' means is the mean of all. Remove it, or set "
            "another 'aggregate', such as aggregate = { by = \"median\" }",
        ),
        Rule(
            lambda p: p.has("buckets", "centroids"),
            "'bucketing' does not go with reclustering, which averages no centroids by their position. Remove it, or "
            "set another 'aggregate', such as aggregate = { by = \"median\" }",
        ),
    ),
    "privacy": (
        Rule(
            lambda p: p.lacks("central", "local noise", "shared"),
            "'privacy' has no guarantee. Set 'central', 'local', 'shared', or several of them",
        ),
        Rule(
            lambda p: p.has("shared", "sampled"),
            "'sampling' gives no protection from the two servers of 'shared', since both see which clients count. "
            "Remove 'sampling'; the noise is then larger",
        ),
        Rule(
            lambda p: p.has("row sums") and p.lacks("shared"),
            "'rows' needs sums that no server can split into single institutions. Set 'shared', or remove 'rows'",
        ),
        Rule(
            lambda p: p.has("row sums") and (p.has_any("central", "local noise", "proofs") or p.lacks("votes alone")),
            "with 'rows' institutions bound each row and add the noise. Remove 'central', 'local', 'contribution', and "
            "'proofs' of 'shared'",
        ),
        Rule(
            lambda p: p.has("proofs") and (p.has("local noise") or p.lacks("votes alone")),
            "clients can prove votes alone. Remove 'local' and 'contribution' of 'privacy', or 'proofs' of 'shared'",
        ),
        Rule(
            lambda p: p.has("one sign") and p.lacks("votes alone"),
            "clients that send one sign have nothing to clip. Remove 'contribution' of 'privacy', or set "
            'local = { mechanism = "gaussian", ... }',
        ),
    ),
    "private line": (
        Rule(
            lambda p: p.has("feeds back"),
            "error feedback sends later what the bound cut off an update, so a client's contributions would have no "
            "bound. Remove 'upload'",
        ),
        Rule(
            lambda p: p.has("other upload"),
            "a client sends one bounded vector and nothing else. Remove 'upload'",
        ),
        Rule(
            lambda p: p.lacks("votes of clients"),
            'a client may have one vote only. Set weighting = "client"',
        ),
        Rule(
            lambda p: p.lacks("mean") or p.has_any("clips", "buckets"),
            "noise is added to the sum of bounded vectors. Remove 'aggregate', 'clip' and 'bucketing'",
        ),
        Rule(
            lambda p: p.has("late pings"),
            "a released sum is final, so late pings cannot count. Remove 'staleness'",
        ),
        Rule(
            lambda p: p.has("guard"),
            "a guard needs exact figures, which are not kept. Remove 'guard'",
        ),
        Rule(
            lambda p: p.has("participation"),
            "'contributions' of 'privacy' already sets how often a client sends. Remove 'participation'",
        ),
        Rule(
            lambda p: p.has("line limits"),
            "'contribution' of 'privacy' bounds an update. Remove 'limits'",
        ),
        Rule(
            lambda p: p.has("ends by updates"),
            'the time of a round may not depend on who has sent. Set length = { by = "time" }',
        ),
        Rule(
            lambda p: p.has("local noise", "early stopping"),
            "its clients protect themselves and send no loss to stop by. Remove 'early_stopping'",
        ),
        Rule(
            lambda p: p.has("sends signs"),
            "'contribution' of 'privacy' says whether signs are sent. Remove 'sign' of 'training'",
        ),
        Rule(
            lambda p: p.has("row sums") and (p.lacks("gradient") or p.has("personal")),
            "the noise of institutions adds up in one gradient a version, and in nothing that is computed from it. "
            "Set training = { algorithm = \"gradient\" }, without 'personal', or remove 'rows' of 'privacy'",
        ),
    ),
    "line": (
        Rule(
            lambda p: p.has("feeds back") and p.has_any("sends bits", "sends signs"),
            "clients of line '$line' send signs without a size, so they cannot know what 'error-feedback' would have "
            "to send later. Use the link 'scaled-signs', without 'sign' in the training",
        ),
        Rule(
            lambda p: p.has("feeds back", "structured"),
            "clients of line '$line' train within what the upload link sends, so it leaves nothing out. Remove "
            "'structured' or 'error-feedback'",
        ),
        Rule(
            lambda p: p.has("private vector") and p.lacks("private"),
            "line '$line' sends private vectors, but has no 'privacy'. Set 'privacy', or remove the link",
        ),
        Rule(
            lambda p: p.has("clips") and p.has_any("sends signs", "equal lengths"),
            "clients of line '$line' send signs, which are all equally long, so 'clip' has nothing to shorten. Remove "
            'it, or set clip = { by = "none" }',
        ),
        Rule(
            lambda p: p.has("clips by steps") and p.lacks("gradient"),
            "'units' of 'clip' needs gradients, but clients of line '$line' send weight differences. Remove 'units'",
        ),
    ),
    "private study": (
        Rule(
            lambda p: p.lacks("private pings"),
            '$pings pings have more in them than a guarantee covers. Set pings = "private-update"',
        ),
        Rule(
            lambda p: p.has("open line"),
            "line '$open' is not, and a study has one type of ping. Give line '$open' 'privacy', or put it into "
            "another study",
        ),
        Rule(
            lambda p: p.has("arm without line"),
            "arm '$arm' has no line, so nothing would protect its clients. Set its 'line', without 'applies' if it is "
            "to rank as before",
        ),
        Rule(
            lambda p: p.has("chosen arms", "several lines"),
            "a client that chooses its arm could contribute to several lines, and the guarantee is for one. Set "
            'enrolment = "hash", or remove all lines but one',
        ),
        Rule(
            lambda p: p.has("telemetry"),
            "the envelope of Firefox has more of a client in it. Remove 'telemetry'",
        ),
        Rule(
            lambda p: p.has("metrics"),
            "its pings have no other columns to compare arms by. Remove 'metrics'",
        ),
        Rule(
            lambda p: p.has("segments"),
            "its pings have no columns to divide clients by. Remove 'segments'",
        ),
        Rule(
            lambda p: p.has("study limits"),
            "'privacy' bounds a ping. Remove 'limits'",
        ),
        Rule(
            lambda p: p.has("outcomes"),
            "an outcome says openly what its client did, outside the bounded vector and its guarantee. Remove "
            "'outcomes', or put them into a study that is not private",
        ),
        Rule(
            lambda p: p.has("tickets"),
            "a client has a different id with every version, so it can't get a ticket in advance. Remove 'tickets'",
        ),
    ),
    "study": (
        Rule(
            lambda p: p.has("outcomes at the choice") and p.lacks("lists"),
            "outcome '$outcome' of study '$study' has no 'within', so it travels in the ping of its choice, and $pings "
            "pings have no such columns. Set pings = \"list-update\", or 'within' for a ping of its own",
        ),
        Rule(
            lambda p: p.has("private pings") and p.lacks("private line"),
            "study '$study' takes $pings pings, but has no private line. Give its lines 'privacy', or remove 'pings'",
        ),
        Rule(
            lambda p: p.has("limit of ranks") and p.lacks("ranked pings"),
            "the limits of study '$study' have a 'rank', which $pings pings do not have. Remove it",
        ),
        Rule(
            lambda p: p.has("limit of examples", "ranked pings"),
            "the limits of study '$study' have 'examples', but each of its $pings pings is of one at most. Remove it",
        ),
    ),
    "line of a study": (
        Rule(
            lambda p: p.has("participation") and p.lacks("draws participants"),
            "line '$line' of study '$study' has a 'participation', and clients that send $pings pings do not draw who "
            "takes part. Remove it, or give arms smaller shares",
        ),
        Rule(
            lambda p: p.has("personal arm") and p.lacks("personal", "own training"),
            "arm '$personal' is personal, but nothing in the training of line '$line' is a client's own. Add "
            "[lines.training.personal], or remove 'personal'",
        ),
        Rule(
            lambda p: p.has("personal") and p.lacks("personal arm"),
            "the training of line '$line' makes models of clients' own, and no arm applies them. Set 'personal = true' "
            "on an arm that follows the line, or remove [lines.training.personal]",
        ),
        Rule(
            lambda p: p.has("row sums", "half arm"),
            "the sums of institutions of line '$line' are of the version that is trained. Set 'applies' and 'submits' "
            "of each arm that follows it",
        ),
    ),
    "guard of a study": (
        Rule(
            lambda p: p.has("staged") and p.lacks("applied"),
            "versions of line '$line' are staged, but no arm of study '$study' applies them unchanged. Set "
            "'applies = true' on an arm that follows the line and is not personal, or remove 'stage'",
        ),
        Rule(
            lambda p: p.has("guardrail") and not p.has("applied", "control"),
            "the guardrail of line '$line' compares arms that apply its versions with arms that do not, and study "
            "'$study' has only one of the two, personal ones aside. Add the other, with line = \"$line\", or remove "
            "'guardrail'",
        ),
        Rule(
            lambda p: p.has("guardrail of ranks") and p.lacks("ranked pings"),
            "the guardrail of line '$line' is about 'rank_selected', which $pings pings do not have. Set the loss, or "
            "remove 'guardrail'",
        ),
    ),
    # Lines of the laboratory may be in step: their rounds end whoever sends.
    "written study": (
        Rule(
            lambda p: p.has("in step"),
            "clients of line '$line' would all train their vector on every second version and send nothing, so that "
            "the line would stop. Remove 'in_step', so that each client alternates on its own",
        ),
    ),
    "server's end": (
        Rule(
            lambda p: p.has("leaves zeros", "zeros up"),
            "counts zeros as upward votes, and the upload link '$sparse' leaves most weights at zero. Set "
            'aggregate = { by = "mean_of_signs", zero = "abstain" }, or remove the link',
        ),
        Rule(
            lambda p: p.has("leaves zeros", "compares"),
            'has aggregate = { by = "$aggregate" }, which compares the clients\' numbers of a weight, and the upload '
            "link '$sparse' leaves most of them at zero. Set another 'aggregate', or remove the link",
        ),
        Rule(
            lambda p: p.has("centroids", "inexact"),
            "reclusters, which needs the exact distance that each centroid moved, but the upload link '$inexact' is "
            "inexact. Remove it, or use 'float32'",
        ),
    ),
    "clients' end": (
        Rule(
            lambda p: p.has("structured") and not p.has("within", "alone"),
            "has structured = true, which trains within what the line's upload link sends. Set 'upload' to the link "
            "'mask' or 'low-rank' alone, or remove 'structured'",
        ),
    ),
    "clients' end of low rank": (
        Rule(
            lambda p: p.has("structured", "uneven steps", "one factor"),
            "has structured = true and an 'optimizer' with a different rate for each weight, whose steps the link "
            "'low-rank' can't send. Use gradient descent, momentum, or the link 'mask'",
        ),
        Rule(
            lambda p: p.has("structured", "personal", "both factors"),
            "has structured = true and a 'personal' model, and clients that train both factors of a low rank have no "
            "further weights of their own. Remove 'personal', or set 'fixed' of the link 'low-rank' to a side",
        ),
        Rule(
            lambda p: p.has("structured", "proximal", "both factors"),
            "has structured = true and 'proximal', which would pull at the factors of a low rank and not at the "
            "weights. Remove 'proximal', or set 'fixed' of the link 'low-rank' to a side",
        ),
    ),
    "mean": (
        Rule(
            lambda p: p.has("adds the mean", "private"),
            "a private line bounds updates and adds noise. Remove the guarantee, or set another training",
        ),
        Rule(
            lambda p: p.has("adds the mean") and p.lacks("as it is"),
            'the server has another optimizer. Set optimizer = { optimizer = "gradient_descent", rate = 1.0 }',
        ),
        Rule(
            lambda p: p.has("adds the mean") and p.lacks("mean"),
            "the server has another 'aggregate'. Remove it",
        ),
        Rule(
            lambda p: p.has("adds the mean", "clips"),
            'the server clips updates. Set clip = { by = "none" }',
        ),
        Rule(
            lambda p: p.has("adds the mean", "late pings"),
            "with 'staleness' the server adds late updates too. Remove it",
        ),
        Rule(
            lambda p: p.has("adds the mean", "sends bits"),
            "'upload' sends signs alone. Remove that link",
        ),
    ),
    "reclustering": (
        Rule(
            lambda p: p.has("centroids", "gradient"),
            f'{_CENTROIDS} [lines.training] sends a gradient. Set training = {{ algorithm = "local", epochs = 1, '
            "rate = 1.0 }",
        ),
        Rule(
            lambda p: p.has("centroids", "sends signs"),
            f"{_CENTROIDS} [lines.training] sends signs alone. Remove 'sign'",
        ),
        Rule(
            lambda p: p.has("centroids", "sends bits"),
            f"{_CENTROIDS} 'upload' sends signs alone. Remove the link '$bits'",
        ),
        Rule(
            lambda p: p.has("centroids", "integer weights"),
            "reclusters, but its [lines.spec] has integer weights, and centroids are not whole numbers. Remove "
            "'integer'",
        ),
    ),
    "model": (
        Rule(
            lambda p: p.has("steps along gradients", "moves itself"),
            f"the training has an 'optimizer', which steps along gradients, {_MOVES_ITSELF} 'optimizer'",
        ),
        Rule(
            lambda p: p.has("structured", "moves itself"),
            f"the training has structured = true, which sends a part of each gradient, {_MOVES_ITSELF} 'structured'",
        ),
        Rule(
            lambda p: p.has("frozen weights", "moves itself"),
            "the training keeps weights 'frozen', for which a step uses a part of the gradient, "
            f"{_MOVES_ITSELF} 'frozen'",
        ),
    ),
    "state": (
        Rule(
            lambda p: p.has("keeps state", "no store"),
            "the training '$training' keeps state with its clients between rounds, and users of a simulated study keep "
            "none. Run it in the laboratory, or with 'fedping fleet'",
        ),
    ),
    "advice": (
        Rule(
            lambda p: p.has("centroids") and p.lacks("as it is"),
            "[lines.pipeline] of line '$line' reclusters, but its optimizer does not go all the way to the new "
            'centroids. Set optimizer = { optimizer = "gradient_descent", rate = 1.0 }',
        ),
        Rule(
            lambda p: p.has("majority") and p.lacks("votes of clients"),
            "[lines.pipeline] of line '$line' has an 'aggregate' that withstands a minority of the votes, but with "
            'weighting = "$weighting" a single client that $votes can have most of them. Set weighting = "client"',
        ),
        Rule(
            lambda p: p.has("mean") and p.lacks("clips", "bounded", "sends bits", "private", "adds the mean"),
            f"{_ANY_LENGTH} Remove 'clip' for the usual bound, or set a 'norm' in [lines.limits]",
        ),
        Rule(
            lambda p: p.has("mean", "adds the mean") and p.lacks("clips", "bounded", "sends bits", "private"),
            f"{_ANY_LENGTH} Set a 'norm' in [lines.limits]",
        ),
        Rule(
            lambda p: p.has("example votes counted") and p.lacks("limit of examples", "most votes"),
            "[lines.pipeline] of line '$line' has weighting = \"examples\", and no limit on a ping's "
            "examples, so a single client can have most of the votes. Set 'examples' in [limits] to an honest client's "
            "maximum",
        ),
        Rule(
            lambda p: p.has("example votes counted", "usual limits"),
            "[lines.pipeline] of line '$line' has weighting = \"examples\", and a ping counts as $examples examples at "
            "most: a client with more weighs less than it would in the laboratory. Set 'examples' in [limits] to an "
            "honest client's maximum",
        ),
        Rule(
            lambda p: p.has("sends signs", "zeros up"),
            f'{_AS_NUMBERS} and set upload = [{{ link = "signs", zero = "up" }}], which sends eight weights a byte',
        ),
        Rule(
            lambda p: p.has("sends signs") and p.lacks("zeros up"),
            f'{_AS_NUMBERS} and set upload = [{{ link = "signs", zero = "abstain" }}], which sends five weights a byte',
        ),
        Rule(
            lambda p: p.has("adds the mean"),
            "[lines.training] of line '$line' is '$training', which adds up the means of all rounds. It misses the "
            "minimum if a client counts for more in one round than in another, as in a study, where the number of "
            "senders varies",
        ),
    ),
    "advice on training": (
        Rule(
            lambda p: p.has("leaves at once"),
            "clients fine-tune from_version = 0, so a client of the first round continues from the start model and "
            "never gets other clients' progress. Set from_version to a version at which the shared model is good, or "
            "'proximal'",
        ),
    ),
    "advice on browsers": (
        Rule(
            lambda p: p.has("ranked pings") and p.lacks("gradient"),
            "[lines.training] of line '$line' is '$training': simulated browsers train so on each interaction, but the "
            "browser module refuses to take part. Remove it to send gradients",
        ),
        Rule(
            lambda p: p.has_any("ranked pings", "private pings") and p.has("gradient", "not in browsers"),
            "[lines.training.personal] of line '$line' has $personalization: simulated browsers do so, but the browser "
            'module refuses to take part. It has by = "fine_tune" and "vector", with the optimizers '
            '"gradient_descent" and "rprop"',
        ),
        Rule(
            lambda p: p.has("ranked pings", "other draws"),
            "'upload' of line '$line' has the link $draws: simulated browsers send so, but the browser module refuses "
            "to take part. 'levels' and 'steps' are small as well, with or without a mask of blocks",
        ),
    ),
    "server of a file": (
        Rule(
            lambda p: p.has("co_op"),
            "[co_op] merges clients one by one, without the steps of a [server]. Remove one of them",
        ),
        Rule(
            lambda p: p.has("gossip") and p.lacks("co_op"),
            "[gossip] averages models among clients, without a [server]. Remove one of them",
        ),
    ),
    "engine": (
        Rule(
            lambda p: p.has("spark") and p.lacks("not in memory"),
            'where = "memory" and engine = "spark" exclude each other. Set where = "files" or "http" for Spark',
        ),
        Rule(
            lambda p: p.has("jax") and (p.has("not in memory") or p.has("co_op") or p.has("gossip")),
            'engine = "jax" is for the rounds of a server in memory. Set engine = "numpy", or where = "memory" without '
            "[co_op] and [gossip]",
        ),
        Rule(
            lambda p: p.has("jax") and p.has_any("hierarchy", "clusters"),
            'engine = "jax" compiles the rounds of one model, and [hierarchy] and [clusters] have several. Set '
            'engine = "numpy"',
        ),
    ),
    "votes of a file": (
        Rule(
            lambda p: (
                p.has("adds the mean")
                and (
                    p.has_any("lateness", "loses answers")
                    or not (p.has("all clients") or (p.has("equal parts") and p.lacks("votes of examples")))
                )
            ),
            "the training '$training' adds up the means of all rounds, which is wrong where a client counts for more "
            "in one round than in another. Remove [lateness] and the losses of answers in [clock], set "
            'sampling = "uniform" or "all" in [sampling], and '
            'weighting = "client" in [server]',
        ),
    ),
    "lateness": (
        Rule(
            lambda p: p.has("lateness", "several clients needed"),
            "[lateness] needs min_clients = 1, so that every round uses what has arrived",
        ),
    ),
    "clock": (
        Rule(lambda p: p.has("lateness"), "it already decides which updates are late. Remove [lateness]"),
        Rule(lambda p: p.has("co_op"), "[co_op] sets its own arrivals. Remove one of them"),
        Rule(lambda p: p.has("gossip"), "the nodes of [gossip] exchange in rounds without time. Remove one of them"),
        Rule(
            lambda p: p.has("private"),
            "a guarantee counts on clients that take part by a coin alone, and not by their speed. Remove one of "
            "[clock] and [privacy]",
        ),
        Rule(lambda p: p.has("attack"), "hostile clients have no speeds. Remove [attack] or [clock]"),
        Rule(
            lambda p: p.has("counts late answers") and p.lacks("late pings"),
            "answers from older versions arrive, and the server leaves them out. Set staleness = "
            '{ most = 20, on = "step" } in [server]',
        ),
        Rule(
            lambda p: p.has("counts late answers", "several clients needed"),
            "each answer arrives once, and a round without a version loses its answers. Set min_clients = 1 "
            "in [server]",
        ),
        Rule(
            lambda p: p.has("counts late answers", "vector"),
            'the turn of vector or weights is not defined for clients with an older version. Set late = "dropped", '
            "without 'asynchronous'",
        ),
        Rule(
            lambda p: p.has("asynchronous") and p.lacks("all clients"),
            "an asynchronous run draws each client evenly from those that are free. Remove [sampling]",
        ),
        Rule(
            lambda p: p.has("asynchronous", "not in memory"),
            "an asynchronous run is in memory. Remove 'where'",
        ),
    ),
    "private file": (
        Rule(
            lambda p: p.has("not in memory"),
            "the laboratory's private rounds are in memory. Remove 'where'",
        ),
        Rule(
            lambda p: p.has("co_op"),
            "merging clients one by one releases each of them. Remove [co_op]",
        ),
        Rule(
            lambda p: p.has("gossip"),
            "every neighbour of a node would get its model. Remove [gossip]",
        ),
        Rule(
            lambda p: p.has("lateness"),
            "a released sum is final. Remove [lateness]",
        ),
        Rule(
            lambda p: p.has("shared"),
            "the laboratory has no two servers. Remove 'shared': the sums are of the same whole numbers, and have the "
            "noise of one server, where the two have √2 times as much",
        ),
        Rule(
            lambda p: p.has("attack"),
            "an [attack] has no rounds of this kind. Remove one of them",
        ),
        Rule(
            lambda p: p.lacks("all clients", "by coin"),
            "the guarantee needs clients that are sampled independently of each other. "
            'Set sampling = { sampling = "bernoulli", share = 0.1 } or remove [sampling]',
        ),
        Rule(
            lambda p: p.has("other coin"),
            "'sampling' in [privacy.central] says that $counted of the clients take part, and [sampling] says $drawn. "
            "Set both to the same, or remove the former for a guarantee without the coin",
        ),
    ),
    "personal file": (
        Rule(
            lambda p: p.has("co_op"),
            "[co_op] gives every client a model that it continues with anyway. Remove one of them",
        ),
        Rule(
            lambda p: p.has("centroids"),
            "the server clusters centroids again, which then stand in another order than a client's own. Remove one of "
            "them",
        ),
        Rule(
            lambda p: p.has("vector", "lateness"),
            "the turn of vector or weights is not defined for clients with an older version. Remove [lateness]",
        ),
        Rule(
            lambda p: p.has("trained"),
            "'trained' in [evaluation] measures what the clients of a round send before it is merged. Remove it, "
            "because 'personal' is measured anyway",
        ),
        Rule(
            lambda p: p.has("begins too late"),
            "it begins from_version = $begins, and the last of $rounds rounds trains on version $last. Lower "
            "'from_version', or raise 'rounds'",
        ),
    ),
    "co_op": (
        Rule(
            lambda p: p.has("decided personally"),
            '[co_op] measures the merged model alone. Remove it, or decided_by = "personal" in [evaluation]',
        ),
        Rule(
            lambda p: p.has("newcomers"),
            "[co_op] merges every client. Remove it, or 'newcomers' in [evaluation]",
        ),
        Rule(
            lambda p: p.has("attack"),
            "[co_op] has no rounds that an [attack] could be on. Remove one of them",
        ),
        Rule(
            lambda p: p.has_any("not in memory", "lateness", "other upload") or p.lacks("all clients"),
            "[co_op] merges clients one by one, in memory, with ages of its own. Remove 'where', [lateness], "
            "[sampling] and 'upload'",
        ),
        Rule(
            lambda p: p.has_any("gradient", "sends signs"),
            "[co_op] mixes the clients' models, and this training sends none. Set training = { algorithm = "
            '"local", epochs = 1, rate = 0.1 } or another that moves the weights',
        ),
        Rule(
            lambda p: p.has("adds the mean"),
            "[co_op] mixes the clients' models one by one, and this training needs a server that adds the mean of "
            'their updates. Remove [co_op], or set training = { algorithm = "local", ... }',
        ),
    ),
    "gossip": (
        Rule(lambda p: p.has("co_op"), "its nodes have no global model to merge with. Remove [co_op]"),
        Rule(lambda p: p.has("newcomers"), "every client is a node. Remove 'newcomers' of [evaluation]"),
        Rule(
            lambda p: p.has("drift"),
            "its nodes' own models are tested on examples that stay. Remove 'drift' of [data]",
        ),
        Rule(lambda p: p.has("attack"), "an [attack] is on a server's rounds. Remove it"),
        Rule(lambda p: p.has("not in memory"), "its nodes exchange models in memory. Remove 'where'"),
        Rule(lambda p: p.has("lateness"), "it has no versions to be late for. Remove [lateness]"),
        Rule(lambda p: p.has("other upload"), "nodes send each other their models unchanged. Remove 'upload'"),
        Rule(lambda p: p.lacks("all clients"), "'failures' already sets which nodes are absent. Remove [sampling]"),
        Rule(
            lambda p: p.lacks("local steps") or p.has("sends signs"),
            "every node trains its own model by local steps and sends it whole. Set training = { algorithm = "
            "\"local\", steps = 1, rate = 0.1 }, without 'sign'",
        ),
        Rule(
            lambda p: p.has_any("personal", "decided personally"),
            "every node has its own model. Remove 'personal' of [training], and 'decided_by' of [evaluation]",
        ),
    ),
    "several models": (
        Rule(lambda p: p.has("hierarchy", "clusters"), "both divide the clients. Remove [hierarchy] or [clusters]"),
        Rule(
            lambda p: p.has_any("co_op", "gossip"),
            "each of its models has a server, and [co_op] and [gossip] have none. Remove these",
        ),
        Rule(lambda p: p.has("not in memory"), "the servers of its models are in memory. Remove 'where'"),
        Rule(
            lambda p: p.has("private"),
            "a guarantee is for the clients of one model, and the choice among several models would reveal something "
            "about a client. Remove [privacy]",
        ),
        Rule(lambda p: p.has("lateness"), "clients train the newest version of a model. Remove [lateness]"),
        Rule(lambda p: p.has("attack"), "an [attack] is on the rounds of one model. Remove it"),
        Rule(
            lambda p: p.has_any("personal", "adds the mean", "centroids"),
            "the training or 'aggregate' relies on one model, to which all updates are added. Set training = { "
            'algorithm = "local", ... } without \'personal\', and aggregate = { by = "mean" }',
        ),
        Rule(
            lambda p: p.has("users"),
            "its clients keep their examples, and users search again in every round. Use other [data]",
        ),
        Rule(
            lambda p: p.has("divides") and p.lacks("all clients"),
            "it divides clients by their updates of one round. Remove [sampling], so that all take part",
        ),
    ),
    "file": (
        Rule(
            lambda p: p.has("ping limits") and p.has_any("private", "co_op", "gossip"),
            "[limits] are of the pings of rounds that count examples, which [privacy], [co_op] and [gossip] do not. "
            "Remove [limits]",
        ),
        Rule(
            lambda p: p.has("trained") and p.has_any("co_op", "gossip", "gradient", "sends signs"),
            "[evaluation] trained measures the models that clients have after local training, before a round merges "
            'them. Set training = { algorithm = "local", ... }, and remove [co_op] and [gossip], which measures its '
            "nodes' models anyway",
        ),
        Rule(
            lambda p: p.has("drift") and p.has_any("trained", "attack"),
            "where users drift, every round is tested on different searches, which 'trained' in [evaluation] and the "
            "figures of an [attack] don't support. Remove 'drift' or these",
        ),
        Rule(
            lambda p: p.has("by duration") and p.lacks("clock"),
            "'seconds' in [sampling] compares the durations of answers, and the run has no simulated time. Add "
            "[clock], or remove 'seconds'",
        ),
        Rule(
            lambda p: p.has("early stopping") and p.lacks("validation", "users"),
            "[early_stopping] needs validation examples. Set 'validation' in [data], such as validation = 0.2",
        ),
    ),
}
"""Rules by group (a topic, or the time of the check), in the order in which they are checked."""


def sentences(group: str, parts: Parts) -> Iterator[str]:
    """Yield the sentences of the rules of a group that parts break."""
    for rule in RULES[group]:
        if rule.condition(parts):
            yield Template(rule.sentence).safe_substitute(parts.words)


def check(group: str, parts: Parts, where: str = "", error: type[InvalidSettings] = InvalidSettings) -> None:
    """Raise an error with the sentence of the first rule of a group that parts break.

    Args:
        group: the rules to check, a key of :data:`RULES`.
        parts: the parts to check.
        where: start of the sentence.
        error: the class of the error.
    """
    for sentence in sentences(group, parts):
        raise error(f"{where}{sentence}")
