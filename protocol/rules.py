"""The one list of which parts of a line, a study or a laboratory's file go together.

A part says what it is by ``traits``. A line, a study and an experiment add up those of their parts, and facts of their
own. A rule is a condition on that sum and a sentence for where it holds. Rules are checked in groups, because they
become known at different moments: what a stored study may have stays readable, whatever a new study may not have.

Nothing else decides what goes together. A part of another package has the traits that its registered class declares.
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
    "adds the mean",  # relies on the mean of the updates being added as it is
    "own training",  # of another package: the settings say nothing of what it sends
    # a client's optimizer
    "steps along gradients",  # is another than plain gradient descent
    "keeps memory",  # lasts from one training to the next
    "uneven steps",  # has another rate for each weight
    # personalization
    "personal",  # something of the model is a client's own
    "local blocks",  # blocks of the model are never sent
    "vector",  # clients train a vector and the weights in turn
    "in step",  # all clients have the same turn
    "frozen weights",  # some weights of the client's own model stay those of the version
    "leaves at once",  # the client's own model leaves the shared one before that has learned anything
    "not in browsers",  # the browser module does not personalize so
    # an upload link
    "encodes",  # makes bytes, so that no link can follow
    "sends bits",  # sends the signs alone, as bits
    "equal lengths",  # leaves updates that are all equally long; 'signs' is the same, but lines of it may clip
    "inexact",  # does not send exactly what the client has learned
    "leaves zeros",  # leaves most weights at zero
    "low rank",  # sends a product of each matrix
    "within",  # clients can train within what it sends
    "alone",  # the line has no link before the one that encodes
    "private vector",  # sends a private line's vector
    "other upload",  # the line has other links than the one of its privacy
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
    "chosen arms",  # clients are enrolled elsewhere
    "telemetry",
    "metrics",
    "segments",
    "study limits",
    "usual limits",
    "limit of ranks",
    "limit of examples",
    "tickets",
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
    "lateness",
    "attack",
    "not in memory",
    "spark",
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
    "other coin",  # the guarantee counts on another coin than the sampling's
    "begins too late",  # the last round is over before anything is personal
]
Traits: TypeAlias = frozenset[Trait]

Group: TypeAlias = Literal[
    "training",
    "pipeline",
    "privacy",
    "private line",
    "line",
    "study",
    "private study",
    "line of a study",
    "guard of a study",
    "written study",
    "server's end",
    "clients' end",
    "clients' end of low rank",
    "mean",
    "reclustering",
    "model",
    "advice",
    "advice on training",
    "advice on browsers",
    "server of a file",
    "engine",
    "votes of a file",
    "lateness",
    "private file",
    "personal file",
    "co_op",
    "gossip",
    "file",
]
"""The moment at which rules are checked, or what they are about."""


def traits_of(part: object) -> Traits:
    """Return the traits that a part declares; none if it declares none."""
    found: Traits = getattr(part, "traits", frozenset())
    return found


def traits_where(facts: Mapping[Trait, bool]) -> Traits:
    """Return the traits of which it is true that a part has them."""
    return frozenset(trait for trait, is_so in facts.items() if is_so)


@dataclass(frozen=True, slots=True)
class Parts:
    """The traits of all parts of a line, a study or an experiment, and words for the sentences by ``$name``."""

    traits: Traits
    words: Mapping[str, str] = field(default_factory=dict)

    def has(self, *traits: Trait) -> bool:
        """Return whether all these are among the traits."""
        return self.traits.issuperset(traits)

    def has_any(self, *traits: Trait) -> bool:
        """Return whether one of these is among the traits."""
        return not self.traits.isdisjoint(traits)

    def lacks(self, *traits: Trait) -> bool:
        """Return whether none of these is among the traits."""
        return self.traits.isdisjoint(traits)


class Rule(NamedTuple):
    """A condition on parts, and the sentence for where it holds."""

    group: Group
    condition: Callable[[Parts], bool]
    sentence: str


_ONLY_ADDED = "noise is added to the sum of bounded vectors, so leave 'aggregate', 'clip' and 'bucketing' out"
_NO_CLIP_BEFORE = "so 'clip' cannot shorten updates before it; leave out 'clip', or set another 'aggregate'"
_NO_BUCKETS = (
    "so 'bucketing' is of no use; leave it out, or set another 'aggregate', such as aggregate = { by = \"median\" }"
)
_MOVES_ITSELF = "but the model moves its weights by a rule of its own, as k-means does; leave"
_CENTROIDS = "reclusters, for which an update has to say how far centroids have moved, but its"
_NOT_IN_BROWSERS = "but the browser module refuses to take part"

RULES: tuple[Rule, ...] = (
    # -- one training ------------------------------------------------------------------------------------------------
    Rule(
        "training",
        lambda p: p.has("structured", "sends signs"),
        "local training has structured = true and sign = true, but signs of what a link sends are not within that; "
        "leave one of them out",
    ),
    Rule(
        "training",
        lambda p: p.has("structured", "keeps memory"),
        "local training has structured = true and an 'optimizer' with keep = true, whose memory is of other weights "
        "than the next update sends; leave one of them out",
    ),
    Rule(
        "training",
        lambda p: p.has("structured", "local blocks"),
        "local training has structured = true and a 'personal' model with 'local' blocks, which are in nothing that a "
        "link sends; leave 'structured' out",
    ),
    # -- one pipeline ------------------------------------------------------------------------------------------------
    Rule(
        "pipeline",
        lambda p: p.has("most votes", "votes of clients"),
        "every client has one vote, so 'most_votes' has nothing to bound; leave it out, or set weighting = "
        '"examples" or "ping"',
    ),
    Rule(
        "pipeline",
        lambda p: p.has("late pings", "centroids"),
        "reclustering needs the centroids that a movement began at, which late pings do not have; leave out "
        "'staleness', or set another 'aggregate'",
    ),
    Rule(
        "pipeline",
        lambda p: p.has("late steps", "takes signs"),
        "a sign has no length, so 'staleness' cannot weight the step of one; set on = \"votes\", or another "
        "'aggregate'",
    ),
    Rule("pipeline", lambda p: p.has("clips", "centroids"), f"reclustering moves centroids, {_NO_CLIP_BEFORE}"),
    Rule("pipeline", lambda p: p.has("clips", "takes signs"), f"a sign has no length, {_NO_CLIP_BEFORE}"),
    Rule(
        "pipeline",
        lambda p: p.has("quorum") and not p.has("clips", "mean"),
        "the 'quorum' of rprop is a share of what a clip lets through to a mean; set clip = { by = "
        '"quantile", units = "step", multiple = 0.1 } and aggregate = { by = "mean" }, or leave out \'quorum\'',
    ),
    Rule(
        "pipeline",
        lambda p: p.has("buckets", "mean"),
        f"the mean of the means of buckets is the mean of all, {_NO_BUCKETS}",
    ),
    Rule(
        "pipeline",
        lambda p: p.has("buckets", "centroids"),
        f"reclustering averages no centroids by their position, {_NO_BUCKETS}",
    ),
    # -- one guarantee -----------------------------------------------------------------------------------------------
    Rule(
        "privacy",
        lambda p: p.lacks("central", "local noise", "shared"),
        "'privacy' says neither how the operator protects clients nor how they protect themselves; give "
        "'central', 'local', 'shared', or several of them",
    ),
    Rule(
        "privacy",
        lambda p: p.has("shared", "sampled"),
        "both servers of 'shared' see which clients count, so 'sampling' would protect nobody from them; leave "
        "it out, and the noise is that which its absence takes",
    ),
    Rule(
        "privacy",
        lambda p: p.has("proofs") and (p.has("local noise") or p.lacks("votes alone")),
        "clients can prove votes alone: leave 'local' and 'contribution' of 'privacy' out, or 'proofs' of 'shared'",
    ),
    Rule(
        "privacy",
        lambda p: p.has("one sign") and p.lacks("votes alone"),
        "clients that send one sign have nothing to clip; leave 'contribution' of 'privacy' out, or set "
        'local = { mechanism = "gaussian", ... }',
    ),
    # -- a private line ----------------------------------------------------------------------------------------------
    Rule(
        "private line",
        lambda p: p.has("other upload"),
        "a client sends one bounded vector and nothing else, so leave 'upload' out",
    ),
    Rule(
        "private line",
        lambda p: p.lacks("votes of clients"),
        'one client may have one vote only, so set weighting = "client"',
    ),
    Rule("private line", lambda p: p.lacks("mean") or p.has_any("clips", "buckets"), _ONLY_ADDED),
    Rule(
        "private line",
        lambda p: p.has("late pings"),
        "what is released is never added to, so late pings cannot count: leave 'staleness' out",
    ),
    Rule(
        "private line",
        lambda p: p.has("guard"),
        "a guard looks at exact figures, which are not kept; leave 'guard' out",
    ),
    Rule(
        "private line",
        lambda p: p.has("participation"),
        "'contributions' of 'privacy' says how often a client sends; leave 'participation' out",
    ),
    Rule(
        "private line",
        lambda p: p.has("line limits"),
        "'contribution' of 'privacy' bounds an update; leave 'limits' out",
    ),
    Rule(
        "private line",
        lambda p: p.has("ends by updates"),
        'when a round is made may not depend on who has sent; set length = { by = "time" }',
    ),
    Rule(
        "private line",
        lambda p: p.has("local noise", "early stopping"),
        "its clients protect themselves and tell no loss to stop by; leave 'early_stopping' out",
    ),
    Rule(
        "private line",
        lambda p: p.has("sends signs"),
        "'contribution' of 'privacy' says whether signs are sent; leave 'sign' out of 'training'",
    ),
    # -- a line ------------------------------------------------------------------------------------------------------
    Rule(
        "line",
        lambda p: p.has("private vector") and p.lacks("private"),
        "line '$line' sends private vectors, but has no 'privacy'; say which, or leave the link out",
    ),
    Rule(
        "line",
        lambda p: p.has("clips") and p.has_any("sends signs", "equal lengths"),
        "clients of line '$line' send signs, which are all equally long, so 'clip' has nothing to shorten; leave it "
        'out, or set clip = { by = "none" }',
    ),
    Rule(
        "line",
        lambda p: p.has("clips by steps") and p.lacks("gradient"),
        "clients of line '$line' send how far weights have moved, which step sizes are no units of; leave 'units' out "
        "of 'clip'",
    ),
    # -- a study -----------------------------------------------------------------------------------------------------
    Rule(
        "private study",
        lambda p: p.lacks("private pings"),
        '$pings pings tell more than a guarantee covers; set pings = "private-update"',
    ),
    Rule(
        "private study",
        lambda p: p.has("open line"),
        "line '$open' is not, and one study has one type of ping; give it 'privacy', or put it into a study of its own",
    ),
    Rule(
        "private study",
        lambda p: p.has("arm without line"),
        "arm '$arm' follows no line, so nothing would protect its clients; give it 'line', without 'applies' if it is "
        "to rank as before",
    ),
    Rule(
        "private study",
        lambda p: p.has("chosen arms", "several lines"),
        "a client that chooses its arm could contribute to several lines, and the guarantee is for one; set "
        'enrolment = "hash", or leave one line in the study',
    ),
    Rule(
        "private study",
        lambda p: p.has("telemetry"),
        "the envelope of Firefox tells more of a client; leave 'telemetry' out",
    ),
    Rule(
        "private study",
        lambda p: p.has("metrics"),
        "its pings have no other columns to compare arms by; leave 'metrics' out",
    ),
    Rule(
        "private study",
        lambda p: p.has("segments"),
        "its pings have no columns to divide clients by; leave 'segments' out",
    ),
    Rule(
        "private study",
        lambda p: p.has("study limits"),
        "'privacy' bounds what a ping says; leave 'limits' out",
    ),
    Rule(
        "private study",
        lambda p: p.has("tickets"),
        "a client has another id with every version, which no ticket can be for beforehand; leave 'tickets' out",
    ),
    Rule(
        "study",
        lambda p: p.has("private pings") and p.lacks("private line"),
        "study '$study' takes $pings pings, but has no private line; give its lines 'privacy', or leave 'pings' out",
    ),
    Rule(
        "study",
        lambda p: p.has("limit of ranks") and p.lacks("ranked pings"),
        "the limits of study '$study' have a 'rank', which $pings pings do not have; leave it out",
    ),
    Rule(
        "study",
        lambda p: p.has("limit of examples", "ranked pings"),
        "the limits of study '$study' have 'examples', but each of its $pings pings is of one at most; leave it out",
    ),
    # -- a line and the arms of its study ----------------------------------------------------------------------------
    Rule(
        "line of a study",
        lambda p: p.has("participation") and p.lacks("draws participants"),
        "line '$line' of study '$study' has a 'participation', and clients that send $pings pings do not draw who "
        "takes part; leave it out, or give arms smaller shares",
    ),
    Rule(
        "line of a study",
        lambda p: p.has("personal arm") and p.lacks("personal", "own training"),
        "arm '$personal' is personal, but nothing in the training of line '$line' is a client's own; add "
        "[lines.training.personal], or leave 'personal' out",
    ),
    Rule(
        "line of a study",
        lambda p: p.has("personal") and p.lacks("personal arm"),
        "the training of line '$line' makes models of clients' own, and no arm applies them; set 'personal = true' on "
        "an arm that follows the line, or leave [lines.training.personal] out",
    ),
    Rule(
        "guard of a study",
        lambda p: p.has("staged") and p.lacks("applied"),
        "versions of line '$line' are to be staged, and no arm of study '$study' applies them as they are; set "
        "'applies = true' on an arm that follows the line and is not personal, or leave 'stage' out",
    ),
    Rule(
        "guard of a study",
        lambda p: p.has("guardrail") and not p.has("applied", "control"),
        "the guardrail of line '$line' compares arms that apply its versions with arms that do not, and study "
        "'$study' has only one of the two, personal ones aside; add the other, with line = \"$line\", or leave "
        "'guardrail' out",
    ),
    Rule(
        "guard of a study",
        lambda p: p.has("guardrail of ranks") and p.lacks("ranked pings"),
        "the guardrail of line '$line' is about 'rank_selected', which $pings pings do not have; choose the loss, or "
        "leave 'guardrail' out",
    ),
    # Not a rule of every line: the laboratory has such lines, whose rounds end whoever sends.
    Rule(
        "written study",
        lambda p: p.has("in step"),
        "clients of line '$line' would all train their vector on every second version and send nothing, so "
        "that no round could follow; leave 'in_step' out, and each client takes turns of its own",
    ),
    # -- the two ends of upload links --------------------------------------------------------------------------------
    Rule(
        "server's end",
        lambda p: p.has("leaves zeros", "zeros up"),
        "counts zeros as upward votes, and the upload link 'mask' leaves most weights at zero; set "
        'aggregate = { by = "mean_of_signs", zero = "abstain" }, or leave out the link',
    ),
    Rule(
        "server's end",
        lambda p: p.has("leaves zeros", "compares"),
        'has aggregate = { by = "$aggregate" }, which compares the clients\' numbers of a weight, and the upload link '
        "'mask' leaves most of them at zero; take another aggregate, or leave out the link",
    ),
    Rule(
        "server's end",
        lambda p: p.has("centroids", "inexact"),
        "reclusters, for which an update has to say how far each centroid has moved, and the upload link '$inexact' "
        "does not say it exactly; leave it out, or take 'float32'",
    ),
    Rule(
        "clients' end",
        lambda p: p.has("structured") and not p.has("within", "alone"),
        "has structured = true, which trains within what the line's upload link sends; set upload to the link 'mask' "
        "or 'low-rank' alone, or leave out 'structured'",
    ),
    Rule(
        "clients' end of low rank",
        lambda p: p.has("structured", "uneven steps", "low rank"),
        "has structured = true and an 'optimizer' that steps by another rate for each weight, which leads out of what "
        "the link 'low-rank' sends; take gradient descent or momentum, or the link 'mask'",
    ),
    # -- a training that relies on the mean, in a study and in the laboratory -----------------------------------------
    Rule(
        "mean",
        lambda p: p.has("adds the mean", "private"),
        "a private line bounds updates and adds noise; leave the guarantee out, or train otherwise",
    ),
    Rule(
        "mean",
        lambda p: p.has("adds the mean") and p.lacks("as it is"),
        'the server has another optimizer; set optimizer = { optimizer = "gradient_descent", rate = 1.0 }',
    ),
    Rule(
        "mean",
        lambda p: p.has("adds the mean") and p.lacks("mean"),
        "the server has another 'aggregate'; leave it out",
    ),
    Rule(
        "mean",
        lambda p: p.has("adds the mean", "clips"),
        'the server clips updates; set clip = { by = "none" }',
    ),
    Rule(
        "mean",
        lambda p: p.has("adds the mean", "late pings"),
        "with 'staleness' the server adds late updates too; leave it out",
    ),
    Rule(
        "mean",
        lambda p: p.has("adds the mean", "sends bits"),
        "'upload' sends signs alone; leave that link out",
    ),
    # -- what clients of a new study can do --------------------------------------------------------------------------
    Rule(
        "reclustering",
        lambda p: p.has("centroids", "gradient"),
        f'{_CENTROIDS} [lines.training] sends a gradient; set training = {{ algorithm = "local", epochs = 1, '
        "rate = 1.0 }",
    ),
    Rule(
        "reclustering",
        lambda p: p.has("centroids", "sends signs"),
        f"{_CENTROIDS} [lines.training] sends signs alone; leave out 'sign'",
    ),
    Rule(
        "reclustering",
        lambda p: p.has("centroids", "sends bits"),
        f"{_CENTROIDS} 'upload' sends signs alone; leave out the link '$bits'",
    ),
    Rule(
        "reclustering",
        lambda p: p.has("centroids", "integer weights"),
        "reclusters, but its [lines.spec] has integer weights, and centroids are no whole numbers; leave out 'integer'",
    ),
    Rule(
        "model",
        lambda p: p.has("steps along gradients", "moves itself"),
        f"the training has an 'optimizer', which steps along gradients, {_MOVES_ITSELF} 'optimizer' out",
    ),
    Rule(
        "model",
        lambda p: p.has("structured", "moves itself"),
        "the training has structured = true, which leaves out a part of each gradient, "
        f"{_MOVES_ITSELF} 'structured' out",
    ),
    Rule(
        "model",
        lambda p: p.has("frozen weights", "moves itself"),
        "the training keeps weights 'frozen', for which a step leaves out a part of the gradient, "
        f"{_MOVES_ITSELF} 'frozen' out",
    ),
    Rule(
        "model",
        lambda p: p.has("keeps state", "no store"),
        "the training '$training' keeps state with its clients between rounds, and users of a simulated study keep "
        "none; run it in the laboratory, or with 'fedping fleet'",
    ),
    # -- advice before a study is created ----------------------------------------------------------------------------
    Rule(
        "advice",
        lambda p: p.has("centroids") and p.lacks("as it is"),
        "[lines.pipeline] of line '$line' reclusters, but its optimizer does not go all the way to the new centroids; "
        '{ optimizer = "gradient_descent", rate = 1.0 } does',
    ),
    Rule(
        "advice",
        lambda p: p.has("majority") and p.lacks("votes of clients"),
        "[lines.pipeline] of line '$line' has an 'aggregate' that withstands a minority of the votes, but with "
        'weighting = "$weighting" a single client that $votes can have most of them; set weighting = "client"',
    ),
    Rule(
        "advice",
        lambda p: p.has("mean") and p.lacks("clips", "bounded", "sends bits", "private", "adds the mean"),
        "[lines.pipeline] of line '$line' takes the mean of updates that may have any length, so a single hostile "
        "client can ruin the model; leave 'clip' out for the usual bound, or set a 'norm' in [lines.limits]",
    ),
    Rule(
        "advice",
        lambda p: p.has("mean", "adds the mean") and p.lacks("clips", "bounded", "sends bits", "private"),
        "[lines.pipeline] of line '$line' takes the mean of updates that may have any length, so a single hostile "
        "client can ruin the model; set a 'norm' in [lines.limits]",
    ),
    Rule(
        "advice",
        lambda p: p.has("example votes counted") and p.lacks("limit of examples", "most votes"),
        "[lines.pipeline] of line '$line' has weighting = \"examples\", and no limit on the examples that a ping "
        "claims, so that a single client can have most of the votes; set 'examples' in [limits] to the most that an "
        "honest client has",
    ),
    Rule(
        "advice",
        lambda p: p.has("example votes counted", "usual limits"),
        "[lines.pipeline] of line '$line' has weighting = \"examples\", and a ping counts as $examples examples at "
        "most: a client with more weighs less than it would in the laboratory; set 'examples' in [limits] to the most "
        "that an honest client has",
    ),
    Rule(
        "advice",
        lambda p: p.has("sends signs", "zeros up"),
        "[lines.training] of line '$line' has sign = true, which sends each sign as a number of 4 bytes; leave it out "
        'and set upload = [{ link = "signs", zero = "up" }], which sends eight weights a byte',
    ),
    Rule(
        "advice",
        lambda p: p.has("sends signs") and p.lacks("zeros up"),
        "[lines.training] of line '$line' has sign = true, which sends each sign as a number of 4 bytes; leave it out "
        'and set upload = [{ link = "signs", zero = "abstain" }], which sends five weights a byte',
    ),
    Rule(
        "advice",
        lambda p: p.has("adds the mean"),
        "[lines.training] of line '$line' is '$training', which adds up the means of all rounds: that ends beside the "
        "minimum where a client counts for more in one round than in another, as in a study, whose rounds differ in "
        "how many send",
    ),
    Rule(
        "advice on training",
        lambda p: p.has("leaves at once"),
        "clients fine-tune from_version = 0, so a client of the first round goes on from the start model and never "
        "sees what others learned; set from_version to a version at which the shared model is good, or 'proximal'",
    ),
    Rule(
        "advice on browsers",
        lambda p: p.has("ranked pings") and p.lacks("gradient"),
        "[lines.training] of line '$line' is '$training': simulated browsers train so on each interaction, "
        f"{_NOT_IN_BROWSERS}; leave it out to send gradients",
    ),
    Rule(
        "advice on browsers",
        lambda p: p.has_any("ranked pings", "private pings") and p.has("gradient", "not in browsers"),
        "[lines.training.personal] of line '$line' has $personalization: simulated browsers do so, "
        f"{_NOT_IN_BROWSERS}; "
        'it has by = "fine_tune" and "vector", with the optimizers "gradient_descent" and "rprop"',
    ),
    Rule(
        "advice on browsers",
        lambda p: p.has("ranked pings", "other draws"),
        f"'upload' of line '$line' has the link $draws: simulated browsers send so, {_NOT_IN_BROWSERS}; 'levels' and "
        "'steps' are small as well, with or without a mask of blocks",
    ),
    # -- a file of the laboratory ------------------------------------------------------------------------------------
    Rule(
        "server of a file",
        lambda p: p.has("co_op"),
        "[co_op] merges clients one by one, without the steps of a [server]; leave out one of them",
    ),
    Rule(
        "server of a file",
        lambda p: p.has("gossip") and p.lacks("co_op"),
        "[gossip] averages models among clients, without a [server]; leave out one of them",
    ),
    Rule(
        "engine",
        lambda p: p.has("spark") and p.lacks("not in memory"),
        'where = "memory" and engine = "spark" exclude each other; set where = "files" or "http" for Spark',
    ),
    Rule(
        "votes of a file",
        lambda p: (
            p.has("adds the mean")
            and not (
                p.lacks("lateness")
                and (p.has("all clients") or (p.has("equal parts") and p.lacks("votes of examples")))
            )
        ),
        "the training '$training' adds up the means of all rounds, which is wrong where a client counts for more in "
        'one round than in another; leave out [lateness], set sampling = "uniform" or "all" in [sampling], and '
        'weighting = "client" in [server]',
    ),
    Rule(
        "lateness",
        lambda p: p.has("lateness", "several clients needed"),
        "[lateness] needs min_clients = 1, so that every round takes what has come",
    ),
    Rule(
        "private file",
        lambda p: p.has("not in memory"),
        "the laboratory's private rounds are in memory, so leave 'where' out",
    ),
    Rule(
        "private file",
        lambda p: p.has("co_op"),
        "merging clients one by one releases each of them, so leave [co_op] out",
    ),
    Rule(
        "private file",
        lambda p: p.has("gossip"),
        "every neighbour of a node would see its model, so leave [gossip] out",
    ),
    Rule(
        "private file",
        lambda p: p.has("lateness"),
        "what is released is never added to, so leave [lateness] out",
    ),
    Rule(
        "private file",
        lambda p: p.has("other upload"),
        "a client sends one bounded vector and nothing else, so leave 'upload' out",
    ),
    Rule(
        "private file",
        lambda p: p.has("shared"),
        "shares are for two servers, of which the laboratory has none, so leave 'shared' out: the sums are of the "
        "same whole numbers, and have the noise of one server, where the two have √2 times as much",
    ),
    Rule(
        "private file",
        lambda p: p.has("attack"),
        "an [attack] has no rounds of this kind; leave out one of them",
    ),
    Rule(
        "private file",
        lambda p: p.lacks("all clients", "by coin"),
        "what is guaranteed holds for clients that take part by a coin of their own, which depends on nobody else; "
        'set sampling = { sampling = "bernoulli", share = 0.1 } or leave [sampling] out',
    ),
    Rule(
        "private file",
        lambda p: p.has("other coin"),
        "'sampling' in [privacy.central] counts on a coin by which $counted of the clients take part, and by "
        "[sampling] it is $drawn; set both alike, or leave the former out for a guarantee without the coin",
    ),
    Rule(
        "personal file",
        lambda p: p.has("co_op"),
        "[co_op] gives every client a model that it goes on with anyway; leave out one of them",
    ),
    Rule(
        "personal file",
        lambda p: p.has("centroids"),
        "the server clusters centroids again, which then stand in another order than a client's own; leave out "
        "one of them",
    ),
    Rule(
        "personal file",
        lambda p: p.has("vector", "lateness"),
        "whose turn it is, the vector's or the weights', is not defined for clients with an older version; leave "
        "out [lateness]",
    ),
    Rule(
        "personal file",
        lambda p: p.has("trained"),
        "'trained' in [evaluation] measures what the clients of a round send before it is merged; leave it out, "
        "for 'personal' is measured anyway",
    ),
    Rule(
        "personal file",
        lambda p: p.has("begins too late"),
        "it begins from_version = $begins, and the last of $rounds rounds trains on version $last; lower "
        "'from_version', or raise 'rounds'",
    ),
    Rule(
        "co_op",
        lambda p: p.has("decided personally"),
        '[co_op] measures the merged model alone; leave out it, or decided_by = "personal" in [evaluation]',
    ),
    Rule(
        "co_op",
        lambda p: p.has("newcomers"),
        "[co_op] merges every client; leave out it, or 'newcomers' in [evaluation]",
    ),
    Rule(
        "co_op",
        lambda p: p.has("attack"),
        "[co_op] has no rounds that an [attack] could be on; leave out one of them",
    ),
    Rule(
        "co_op",
        lambda p: p.has_any("not in memory", "lateness", "other upload") or p.lacks("all clients"),
        "[co_op] merges clients one by one, in memory, with ages of its own; leave out 'where', [lateness], "
        "[sampling] and 'upload'",
    ),
    Rule(
        "co_op",
        lambda p: p.has_any("gradient", "sends signs"),
        "[co_op] mixes the clients' models, and this training sends none; set training = { algorithm = "
        '"local", epochs = 1, rate = 0.1 } or another that moves the weights',
    ),
    Rule(
        "co_op",
        lambda p: p.has("adds the mean"),
        "[co_op] mixes the clients' models one by one, and this training needs a server that adds the mean of "
        'their updates; leave out [co_op], or set training = { algorithm = "local", ... }',
    ),
    Rule(
        "gossip",
        lambda p: p.has("co_op"),
        "its nodes have no global model to merge with, so leave [co_op] out",
    ),
    Rule(
        "gossip",
        lambda p: p.has("newcomers"),
        "every client is a node, so leave 'newcomers' out of [evaluation]",
    ),
    Rule(
        "gossip",
        lambda p: p.has("drift"),
        "its nodes' own models are judged by examples that stay, so leave 'drift' out of [data]",
    ),
    Rule("gossip", lambda p: p.has("attack"), "an [attack] is on a server's rounds, so leave it out"),
    Rule("gossip", lambda p: p.has("not in memory"), "its nodes exchange models in memory, so leave 'where' out"),
    Rule("gossip", lambda p: p.has("lateness"), "there are no versions to be late for, so leave [lateness] out"),
    Rule(
        "gossip",
        lambda p: p.has("other upload"),
        "nodes send each other their models as they are, so leave 'upload' out",
    ),
    Rule(
        "gossip",
        lambda p: p.lacks("all clients"),
        "who is away is drawn by 'failures', so leave [sampling] out",
    ),
    Rule(
        "gossip",
        lambda p: p.lacks("local steps") or p.has("sends signs"),
        "every node trains its own model by local steps and sends it whole; set training = { algorithm = "
        "\"local\", steps = 1, rate = 0.1 }, without 'sign'",
    ),
    Rule(
        "gossip",
        lambda p: p.has_any("personal", "decided personally"),
        "every node has a model of its own anyway, so leave 'personal' out of [training], and 'decided_by' of "
        "[evaluation]",
    ),
    Rule(
        "file",
        lambda p: p.has("ping limits") and p.has_any("private", "co_op", "gossip"),
        "[limits] are of the pings of rounds that count examples, which [privacy], [co_op] and [gossip] do "
        "not; leave [limits] out",
    ),
    Rule(
        "file",
        lambda p: p.has("trained") and p.has_any("co_op", "gossip", "gradient", "sends signs"),
        "[evaluation] trained measures the models that clients have after local training, before a round "
        'merges them; set training = { algorithm = "local", ... }, and leave out [co_op] and '
        "[gossip], which measures its nodes' models anyway",
    ),
    Rule(
        "file",
        lambda p: p.has("drift") and p.has_any("trained", "attack"),
        "where users drift, every round is judged by searches of its own, which 'trained' in [evaluation] and "
        "the figures of an [attack] are not made for; leave out 'drift' or these",
    ),
    Rule(
        "file",
        lambda p: p.has("early stopping") and p.lacks("validation", "users"),
        "[early_stopping] needs validation examples; set 'validation' in [data], such as validation = 0.2",
    ),
)
"""What does not go together, in the order in which the rules of a group are checked."""


def sentences(group: Group, parts: Parts) -> Iterator[str]:
    """Yield the sentences of the rules of a group that hold for parts."""
    for rule in RULES:
        if rule.group == group and rule.condition(parts):
            yield Template(rule.sentence).safe_substitute(parts.words)


def check(group: Group, parts: Parts, where: str = "", error: type[InvalidSettings] = InvalidSettings) -> None:
    """Raise an error with the first sentence of a group that holds for parts.

    Args:
        group: the rules to check.
        parts: what goes together or not.
        where: begins the sentence.
        error: the class of the error.
    """
    for sentence in sentences(group, parts):
        raise error(f"{where}{sentence}")
