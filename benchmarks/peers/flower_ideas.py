"""Ideas of docs/papers.md written in Flower, run for two rounds in its simulation, and the lines that each needs.

    python -m venv build/peers/ideas && build/peers/ideas/bin/pip install "flwr[simulation]==1.42.0"
    build/peers/ideas/bin/python benchmarks/peers/flower_ideas.py

Lines are counted as in the table of ideas: one per statement, without imports, docstrings and comments. They are the
lines of a whole client and strategy; the first idea is a client that only trains, with the built-in FedAvg.
"""

# mypy: ignore-errors
# ruff: noqa: D102
from __future__ import annotations

import ast
import os
import sys
import time
from pathlib import Path

os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # for the processes that Ray starts
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from flwr.simulation import run_simulation

CLIENTS, FEATURES, ROUNDS, RATE = 6, 4, 2, 0.5


def data_of(context: Context):
    """Return the rows of a client; clients differ in their number of rows and in the location of their features."""
    number = int(context.node_config["partition-id"])
    random = np.random.default_rng(number)
    x = random.normal(number / 4, 1.0, (10 * (number + 1), FEATURES))
    return x, (x.sum(axis=1) > FEATURES * number / 4) * 1.0


def gradient(weights, x, y):
    """Return the gradient of the mean cross-entropy of a logistic regression."""
    return x.T @ (1 / (1 + np.exp(-x @ weights)) - y) / len(y)


def loss(weights, x, y):
    """Return the mean cross-entropy of a logistic regression."""
    scores = x @ weights
    return float(np.mean(np.logaddexp(0, scores) - y * scores))


def trained(weights, x, y, steps=3):
    """Return a client's weights after some steps of gradient descent."""
    for _ in range(steps):
        weights = weights - RATE * gradient(weights, x, y)
    return weights


EVERYONE = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS, "fraction_evaluate": 0.0}


# --- FedAvg
plain = ClientApp()


@plain.train()
def train(message: Message, context: Context) -> Message:
    """Train, and send the weights."""
    x, y = data_of(context)
    [weights] = message.content["arrays"].to_numpy_ndarrays()
    metrics = MetricRecord({"num-examples": len(y)})
    arrays = ArrayRecord([trained(weights, x, y)])
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


# --- client selection by loss
choice = ClientApp()
choice.train()(train)


@choice.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Send the loss at the newest weights."""
    [weights] = message.content["arrays"].to_numpy_ndarrays()
    metrics = MetricRecord({"loss": loss(weights, *data_of(context))})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


class PowerOfChoice(FedAvg):
    """Selects the clients with the largest losses among candidates, drawn evenly because the server knows no sizes."""

    clients, candidates = 2, 4

    def configure_train(self, server_round, arrays, config, grid):
        nodes, _ = sample_nodes(grid, self.min_available_nodes, self.candidates)
        asked = RecordDict({"arrays": arrays, "config": config})
        messages = self._construct_messages(asked, nodes, MessageType.EVALUATE)
        replies = [reply for reply in grid.send_and_receive(messages) if not reply.has_error()]
        replies.sort(key=lambda reply: -reply.content["metrics"]["loss"])
        largest = [reply.metadata.src_node_id for reply in replies[: self.clients]]
        config["server-round"] = server_round
        return self._construct_messages(RecordDict({"arrays": arrays, "config": config}), largest, MessageType.TRAIN)


# --- FedNova
nova = ClientApp()


@nova.train()
def train_any_steps(message: Message, context: Context) -> Message:
    """Take a number of steps that depends on the examples, and send the mean movement per step."""
    x, y = data_of(context)
    [weights] = message.content["arrays"].to_numpy_ndarrays()
    steps = len(y) // 10
    metrics = MetricRecord({"num-examples": len(y), "steps": steps})
    arrays = ArrayRecord([(trained(weights, x, y, steps) - weights) / steps])
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


class FedNova(FedAvg):
    """Adds the mean of normalised movements, times the mean number of steps, to the weights (Wang et al. 2020)."""

    def configure_train(self, server_round, arrays, config, grid):
        self.weights = arrays.to_numpy_ndarrays()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is not None:
            moved = [w + metrics["steps"] * d for w, d in zip(self.weights, arrays.to_numpy_ndarrays(), strict=True)]
            arrays = ArrayRecord(moved)
        return arrays, metrics


# --- error feedback
feedback = ClientApp()


@feedback.train()
def train_sparsely(message: Message, context: Context) -> Message:
    """Send the two largest numbers of a movement, and keep the others for the next round."""
    x, y = data_of(context)
    [weights] = message.content["arrays"].to_numpy_ndarrays()
    kept = context.state["kept"].to_numpy_ndarrays()[0] if "kept" in context.state else np.zeros_like(weights)
    wanted = trained(weights, x, y) - weights + kept
    sent = np.where(np.abs(wanted) >= np.sort(np.abs(wanted))[-2], wanted, 0.0)
    context.state["kept"] = ArrayRecord([wanted - sent])
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord([sent]), "metrics": metrics}), reply_to=message)


class Movements(FedAvg):
    """Adds the mean of the clients' movements to the weights."""

    def configure_train(self, server_round, arrays, config, grid):
        self.weights = arrays.to_numpy_ndarrays()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is not None:
            arrays = ArrayRecord([w + d for w, d in zip(self.weights, arrays.to_numpy_ndarrays(), strict=True)])
        return arrays, metrics


# --- clustered: IFCA
clustered = ClientApp()


@clustered.train()
def train_the_best(message: Message, context: Context) -> Message:
    """Train the model with the least loss; the rows of all other models have no weight."""
    x, y = data_of(context)
    [models] = message.content["arrays"].to_numpy_ndarrays()
    own = int(np.argmin([loss(weights, x, y) for weights in models]))
    sums, counts = np.zeros_like(models), np.zeros(len(models))
    sums[own], counts[own] = len(y) * trained(models[own], x, y), len(y)
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord([sums, counts]), "metrics": metrics}), reply_to=message)


class Ifca(FedAvg):
    """Averages each model over the clients that trained it (Ghosh et al. 2020); a model without clients is kept."""

    def configure_train(self, server_round, arrays, config, grid):
        self.models = arrays.to_numpy_ndarrays()[0]
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is not None:
            sums, counts = arrays.to_numpy_ndarrays()
            there = counts[:, None] > 0
            means = np.where(there, sums / np.where(there, counts[:, None], 1.0), self.models)
            arrays = ArrayRecord([means])
        return arrays, metrics


# --- unlearning, by training again
class AllBut(FedAvg):
    """Federated averaging over all nodes except one."""

    left_out = 0

    def _construct_messages(self, record, node_ids, message_type):
        others = [node for node in node_ids if node != self.left_out]
        return super()._construct_messages(record, others, message_type)


# --- to here


def lines() -> dict[str, int]:
    """Return the number of lines of each idea, by the title in its comment in this file."""
    parts = Path(__file__).read_text().split("\n# --- ")[1:]
    found = {}
    for part in parts[:-1]:
        name, _, code = part.partition("\n")
        tree = ast.parse(code)
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        found[name] = len([line for line in ast.unparse(tree).splitlines() if line.strip()])
    return found


def ended(client_app: ClientApp, strategy: FedAvg, start=None):
    """Return the weights after a simulation."""
    final, server_app = [], ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        if isinstance(strategy, AllBut):
            while len(nodes := sorted(grid.get_node_ids())) < CLIENTS:
                time.sleep(0.1)
            strategy.left_out = nodes[0]
        begin = np.zeros(FEATURES) if start is None else start
        result = strategy.start(grid, ArrayRecord([begin]), num_rounds=ROUNDS, train_config=ConfigRecord({}))
        final.append(result.arrays.to_numpy_ndarrays()[0])

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=resources)
    return final[0]


class Of:
    """A client's context, with the fields that :func:`data_of` needs."""

    def __init__(self, number: int) -> None:
        self.node_config = {"partition-id": number}


def by_hand() -> dict[str, list[np.ndarray]]:
    """Return the weights after the same rounds without Flower, for the ideas without random draws.

    The client of Flower's first node is unknown, so for the idea that leaves it out, the weights without each client
    are returned.
    """
    data = [data_of(Of(number)) for number in range(CLIENTS)]
    sizes = np.array([len(y) for _, y in data], float)
    share = sizes / sizes.sum()
    average, nova, sparse = (np.zeros(FEATURES) for _ in range(3))
    others = 1.0 - np.eye(CLIENTS)  # a row for each client that may be left out
    without = np.zeros((CLIENTS, FEATURES))
    kept, models = np.zeros((CLIENTS, FEATURES)), STARTS.copy()
    for _ in range(ROUNDS):
        average = share @ [trained(average, x, y) for x, y in data]
        each = np.array([[trained(weights, x, y) for x, y in data] for weights in without])
        without = np.array([np.average(e, axis=0, weights=o * sizes) for e, o in zip(each, others, strict=True)])
        steps = [len(y) // 10 for _, y in data]
        each = [(trained(nova, x, y, n) - nova) / n for (x, y), n in zip(data, steps, strict=True)]
        nova = nova + (share @ steps) * (share @ each)
        wanted = np.array([trained(sparse, x, y) - sparse for x, y in data]) + kept
        sent = np.where(np.abs(wanted) >= np.sort(np.abs(wanted), axis=1)[:, [-2]], wanted, 0.0)
        kept, sparse = wanted - sent, sparse + share @ sent
        own = np.array([np.argmin([loss(weights, x, y) for weights in models]) for x, y in data])
        after = np.array([trained(models[k], x, y) for k, (x, y) in zip(own, data, strict=True)])
        models = np.array([np.average(after[own == k], axis=0, weights=sizes[own == k]) for k in range(2)])
    found = {"FedAvg": [average], "FedNova": [nova], "error feedback": [sparse], "clustered: IFCA": [models]}
    return found | {"unlearning, by training again": list(without)}


STARTS = np.array([[1.0, 0.0, -1.0, 0.0], [-1.0, 0.0, 1.0, 0.5]])


def main() -> None:
    """Run each idea, and print its number of lines and whether its weights equal those without Flower."""
    two = {"min_train_nodes": 2, "min_available_nodes": CLIENTS, "fraction_train": 0.0, "fraction_evaluate": 0.0}
    runs = {
        "FedAvg": (plain, FedAvg(**EVERYONE)),
        "client selection by loss": (choice, PowerOfChoice(**{**two, "fraction_train": 1.0})),
        "FedNova": (nova, FedNova(**EVERYONE)),
        "error feedback": (feedback, Movements(**EVERYONE)),
        "clustered: IFCA": (clustered, Ifca(**EVERYONE), STARTS),
        "unlearning, by training again": (plain, AllBut(**EVERYONE)),
    }
    counted, expected = lines(), by_hand()
    for name in sys.argv[1:] or runs:
        weights = ended(*runs[name])
        same = min((np.abs(weights - each).max() for each in expected.get(name, ())), default=None)
        print(f"{name}: {counted[name]} lines; from those by hand {same}", weights.ravel().round(4), flush=True)


if __name__ == "__main__":
    main()
