"""Information about an experiment's settings that types lack: labels, order, and which are rarely needed.

Settings that are not listed here appear with their own names in the last group.
"""

from __future__ import annotations

GROUPS: dict[str, tuple[str, ...]] = {
    "What is learned, and from what": ("model", "data", "partition"),
    "How": (
        "training", "upload", "sampling", "server", "lateness", "clock", "co_op", "gossip", "hierarchy", "clusters",
        "privacy", "randomised_response", "limits", "attack",
    ),
    "How long, where, and how it is judged": (
        "rounds", "seeds", "where", "engine", "evaluation", "early_stopping", "name",
    ),
}  # fmt: skip
"""The cards of the laboratory's form, with the tables and settings of each."""

GROUPS_OF_STUDY: dict[str, tuple[str, ...]] = {
    "Which study, and who takes part": ("study", "clients", "seed"),
    "How long": ("optimization", "evaluation", "start", "tick_minutes"),
    "What users do": ("users", "activity", "gradient", "attack"),
}
"""The cards of the form of a study's experiment."""

LABELS: dict[str, str] = {
    "model": "Model",
    "data": "Data",
    "partition": "Who has which examples",
    "training": "What a client does",
    "upload": "How an update is sent",
    "server": "What the server does",
    "server.optimizer": "Optimizer",
    "server.aggregate": "How updates are combined",
    "server.staleness": "Late pings",
    "server.clip": "Long updates",
    "server.bucketing": "Clients averaged first",
    "server.most_votes": "Most votes of a client",
    "server.weighting": "One vote is",
    "server.min_clients": "Minimum clients per round",
    "sampling": "Who takes part in a round",
    "lateness": "Slow clients",
    "clock": "Simulated time",
    "clock.asynchronous": "A version of each full buffer (FedBuff)",
    "clock.hours": "Hours of a run",
    "co_op": "Clients merged as they arrive (CO-OP)",
    "gossip": "Clients averaged over a graph, without a server",
    "hierarchy": "Edge servers between the clients and a cloud",
    "clusters": "Several models, each for the clients that it fits",
    "attack": "Hostile clients",
    "privacy": "Privacy",
    "randomised_response": "Targets by randomised response",
    "limits": "Limits of a ping's values",
    "attack.share": "Share of hostile clients",
    "attack.clients": "Number of hostile clients",
    "attack.invented": "Invented ids, times the clients",
    "rounds": "Rounds",
    "seeds": "Seeds",
    "where": "Where it runs",
    "engine": "Engine of the rounds",
    "evaluation": "Evaluation",
    "evaluation.every": "Every … rounds",
    "evaluation.local": "Also on each client's own test examples",
    "early_stopping": "Early stopping",
    "name": "Name",
    "study": "The study's file",
    "tick_minutes": "Minutes per tick",
    "optimization.length": "An iteration ends",
    "optimization.early_stopping": "Early stopping",
    "users": "Users",
    "activity": "When users search",
    "gradient": "Gradient",
    "model.l2": "L2 penalty",
    "model.integer": "Whole numbers as weights",
    "data.name": "Data set",
    "data.file": "File",
    "data.folder": "Folder of its files",
    "data.users": "Synthetic users",
    "data.test": "Share for the test",
    "data.validation": "Share for validation",
    "data.population": "How users search",
    "data.groups": "Groups of users",
    "data.standardise": "Standardise",
    "training.sign": "Send only the signs",
    "training.proximal": "Proximal term μ (FedProx)",
    "partition.alpha": "α",
}

OPTIONS: dict[str, dict[str, str]] = {
    "training": {
        "gradient": "one gradient (FedSGD, FedGD)",
        "local": "several local steps (FedAvg, FedGD+; FedProx with a proximal term)",
    },
    "partition": {
        "iid": "at random, evenly",
        "shards": "by label: shards",
        "labels": "by label: a number of labels each",
        "dirichlet": "by label: shares of Dirichlet(α)",
        "key": "by a column: user, country",
        "power_law": "at random, sizes by a power law",
        "random_sizes": "at random, in random sizes",
        "fixed_size": "at random, a fixed number each",
    },
    "sampling": {
        "all": "everybody",
        "uniform": "a fixed number, at random",
        "bernoulli": "each with a probability",
        "by_size": "in proportion to their examples",
        "stratified": "a share of each stratum",
        "cluster": "all clients of some clusters",
        "power_of_choice": "those with the largest losses of some candidates",
        "oort": "by their losses and speed, some of them new",
    },
    "server.aggregate": {
        "mean": "their mean",
        "mean_of_signs": "the mean of their signs (majority)",
        "recluster": "centroids, clustered again",
        "median": "the median of each weight",
        "trimmed_mean": "the mean of each weight without the tails",
        "geometric_median": "the point with the least distances",
        "krum": "those with the nearest neighbours (Krum)",
        "centered_clip": "the updates near the last direction",
    },
    "server.clip": {
        "none": "stay as they are",
        "norm": "are clipped to a norm",
        "quantile": "are clipped to a quantile",
    },
    "where": {
        "memory": "local: in memory, in this one process",
        "files": "local: through Parquet files, as they land",
        "http": "distributed: over HTTP to an ingest, which lands them in Parquet",
    },
    "attack": {
        "": "nobody",
        "label_flip": "flip labels",
        "poison": "poison examples",
        "backdoor": "plant a backdoor",
        "sign_flip": "flip the signs of updates",
        "scale": "scale updates",
        "noise": "send noise",
        "constant": "send a constant",
        "target_weights": "drag some weights to values",
        "inner_product": "collude against the mean",
        "little_is_enough": "collude within the spread (a little is enough)",
        "free_rider": "ride free",
        "reconstruction": "reconstruct a victim's update",
    },
    "optimization.length": {
        "time": "after a number of ticks",
        "clients": "when enough clients have sent an update",
        "signs": "when the signs of the mean update are stable",
    },
    "engine": {"numpy": "NumPy", "spark": "Spark", "jax": "JAX", "auto": "JAX if it sees an accelerator, else NumPy"},
    "server.weighting": {"client": "a client's", "ping": "a ping's", "examples": "an example's"},
}
"""Labels of values by setting; other values appear as in the file."""

FEATURES = (
    "Rank items by your own features, learned from a file of lists: a row for each item, with a column for its list, "
    "a column for whether it was chosen, and a column for each field that a feature reads."
)
"""Description of the model of features."""

EXAMPLE_OF_FEATURES = '[{ kind = "number", name = "shop_score", start = 1 }, { kind = "flag", name = "in_stock" }]'

OF_FEATURES = {
    "features": "A table for each feature: its kind, its name, and the settings of its kind.",
    "loss": "The loss of a list from which an item was chosen.",
    "places": "Number of places with a learned offset, against position bias; 0 for none.",
    "explore": "Share of lists with two neighbours swapped.",
    "hidden": "Units of a hidden layer; 0 for none.",
    "margin": "Margin of the loss hinge: required lead of the chosen item's score.",
    "gradient": "How updates are computed.",
    "constraints": "Constraints of weights.",
}
"""Help for the settings of the model of features, as far as they are in the form."""

OF_A_FILE = ("file", "target", "features", "client", "choice", "kind")
OF_USERS = ("users", "judges", "population", "groups", "lists", "examples", "applies")
"""The settings of [data] for synthetic users; the other settings are for data sets and files."""

RARE = frozenset({
    "partition.least", "training.sign", "upload", "server.staleness", "server.aggregate", "server.min_clients",
    "server.clip", "server.bucketing", "server.most_votes",
    "lateness", "clock", "co_op", "gossip", "hierarchy", "clusters", "training.optimizer", "attack", "privacy",
    "limits", "randomised_response", "model.step", "model.start", "model.spread", "model.integer",
    "model.constraints", "model.margin", "model.epsilon", "model.features", "model.classes", "model.seed",
    "data.population", "data.groups", "data.folds", "data.lists", "data.examples", "data.applies",
    "data.most", "data.missing", "data.modules", "data.clip", "data.clip_beyond", "data.drop_constant",
    "data.discretise", "data.select", "data.class_weights", "data.stratified",
    "evaluation.task", "evaluation.metric", "evaluation.baseline_iterations", "evaluation.baselines", "engine",
    "data.client", "data.choice", "data.kind",
    "users", "activity", "gradient", "start", "tick_minutes", "optimization.length", "optimization.early_stopping",
})  # fmt: skip
"""Settings that are folded in the form at first."""

EXAMPLES: dict[str, str] = {
    "data.file": "/home/me/rows.csv",
    "data.folder": "/home/me/leaf/data/femnist",
    "data.features": '["length", "recency"]',
    "seeds": "5, or [7, 11]",
    "upload": '[{ link = "signs", zero = "up" }]',
    "model.step": "{ start = 0.1, min = 1e-6, max = 50.0 }",
    "model.constraints": '[{ constraint = "non_negative" }]',
    "data.groups": "[{ share = 0.3, population = { … } }, …]",
    "data.modules": '[{ features = ["balance", "overdue"], missing = 0.46 }]',
    "lateness.shares": "[0.6, 0.3, 0.1]",
    "clock.seconds_per_example": "{ median = 0.1, sigma = 1.5 }",
    "co_op.speeds": "[1.0, 1.0, 0.1]",
    "gossip.file": "/home/me/edges.csv",
    "attack.weights": "{ typedVisitBonus = 0 }",
    "attack.features": "[0, 3]",
    "evaluation.metric": "accuracy",
    "study": "demo.toml",
    "start": "2018-06-20T00:00:00Z",
}

HELPS: dict[str, str] = {
    "study": (
        "Name of a shipped file, such as demo.toml, or the absolute path of another. It defines the arms and the "
        "training of their lines."
    ),
    "optimization.searches_per_day": "Mean per enrolled client.",
    "evaluation.searches_per_day": "Mean per enrolled client.",
    "optimization.activity_shape": "Evenness of clients' activity (gamma distribution); lower is more unequal.",
    "evaluation.activity_shape": "Evenness of clients' activity (gamma distribution); lower is more unequal.",
    "optimization.iterations": "Number of rounds; each publishes a version.",
    "evaluation.ticks": "Number of ticks; the version does not change during them.",
    "name": "The file's name if empty.",
    "seeds": "Number of repetitions, or a list of seeds. Variants are paired seed by seed.",
    "data.file": (
        "A path on the machine that runs the dashboard, below a folder that it was started with (--data): CSV, Parquet "
        "or Arrow."
    ),
    "data.folder": (
        "For a data set in its authors' files, such as femnist: a path below a folder that the dashboard was started "
        "with (--data)."
    ),
    "data.target": "The column to predict.",
    "data.features": "The columns to predict from; all others if empty.",
    "data.client": "The column with a row's client, for a partition by a column.",
    "data.choice": "The column with the choice that a row is a candidate of.",
    "data.kind": "Whether the target is a class or a number, if the data do not show it.",
    "data.users": "Number of users. In each round they make new searches and learn from them once (thesis 7.3).",
    "data.test": "Share of every client's examples, or \"authors\", in quotes, for the authors' test examples.",
    "data.validation": "Share of every client's examples; early stopping needs some.",
    "training.epochs": "Number of passes of a client over its examples (FedAvg); or give steps.",
    "training.steps": "Number of steps of a client (FedGD+, if it has no batch); or give epochs.",
    "training.batch": "Number of examples in a batch; all at once if empty.",
    "training.proximal": "Pulls the weights back to the fetched model (Li et al. 2020); 0 turns this off.",
    "data.missing": "What happens to features that are missing; the mean is over all clients, from sums.",
    "data.modules": "Groups of features that some records or clients lack.",
    "data.standardise": "To mean 0 and deviation 1, from sums over the clients.",
    "model.function": (
        "Your own Python as module:function, in a module that the dashboard was started with (FEDPING_EXTENSIONS). It "
        "runs on the machine of the dashboard."
    ),
}
"""Help for settings whose docstrings have none."""


def label(path: str) -> str:
    """Return the label of a setting or a table."""
    return LABELS.get(path) or path.rpartition(".")[2].replace("_", " ").capitalize()


def option(path: str, value: str) -> str:
    """Return the label of a setting's value."""
    return OPTIONS.get(path, {}).get(value, value.replace("_", " "))
