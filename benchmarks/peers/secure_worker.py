"""Runs a round of Flower's SecAgg+ on a file of vectors, for `benchmarks.peers.secure`.

Flower's own workflow and mod communicate over a grid that passes every message on at once, in Flower's serialized form.
So no simulation engine, polling or network is involved.
"""

# mypy: ignore-errors
from __future__ import annotations

import json
import logging
import random
import sys
import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageBytes
from flwr.server import LegacyContext, ServerConfig
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

logging.getLogger("flwr").setLevel(logging.ERROR)
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2**62 + 1, 1
STAGES = 4


class Clients(NumPyClient):
    """A client whose vector is given."""

    def __init__(self, vector):
        self.vector = vector

    def fit(self, parameters, config):
        """Return the vector as the result of the training."""
        return [self.vector], 1, {}


class DirectGrid(Grid):
    """Passes messages to clients and their answers back as bytes, and records sizes and times.

    Absent clients answer only the first two stages: they have distributed shares of their keys, and the others must
    compensate for them.
    """

    def __init__(self, vectors, gone):
        ids = random.Random(1)
        self.places = {ids.getrandbits(63): place for place in range(len(vectors))}
        self.contexts = {
            node: Context(1, node, {"place": place}, RecordDict(), {}) for node, place in self.places.items()
        }
        self.app = ClientApp(
            client_fn=lambda context: Clients(vectors[context.node_config["place"]]).to_client(), mods=[secaggplus_mod]
        )
        self.gone = {node for node, place in self.places.items() if place < gone}
        self.down, self.up, self.seconds = [], [], 0.0

    def send_and_receive(self, messages, *, timeout=None):
        """Return the clients' answers to the messages of a stage."""
        stage, replies = len(self.down), []
        self.down.append(0)
        self.up.append(0)
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"{stage:032x}{node:032x}"
            sent = message_to_proto(message).SerializeToString()
            self.down[stage] += len(sent)
            if stage < 2 or node not in self.gone:
                answer = self._of_client(node, sent)
                self.up[stage] += len(answer)
                replies.append(message_from_proto(MessageBytes.FromString(answer)))
        return replies

    def _of_client(self, node, sent):
        began = time.process_time()
        answer = self.app(message_from_proto(MessageBytes.FromString(sent)), self.contexts[node])
        answer.metadata.__dict__["_message_id"] = "f" * 64
        found = message_to_proto(answer).SerializeToString()
        self.seconds += time.process_time() - began
        return found

    run = property(lambda self: Run.create_empty(1))

    def get_node_ids(self):
        """Return the ids of all clients, including the absent ones."""
        return list(self.places)

    def set_run(self, run):
        """Raise an error, because the workflow doesn't call this method."""
        raise NotImplementedError

    create_message = push_messages = pull_messages = set_run


def a_round(vectors, shares, threshold, gone):
    """Return the mean, seconds of the server and of all clients, and the bytes of each stage, down and up.

    None if Flower aborts the round because too few of a client's neighbours are left.
    """
    grid = DirectGrid(vectors, gone)
    context = LegacyContext(
        Context(1, 0, {}, RecordDict(), {}),
        config=ServerConfig(num_rounds=1),
        strategy=FedAvg(min_fit_clients=len(vectors), min_available_clients=len(vectors)),
    )
    for node in grid.places:
        context.client_manager.register(GridClientProxy(node, grid, 1))
    context.state[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1, Key.START_TIME: 0.0})
    context.state[MAIN_PARAMS_RECORD] = ArrayRecord([np.zeros(1)])  # no model, since its transfer is not measured
    workflow = SecAggPlusWorkflow(shares, threshold, max_weight=1, timeout=0.0)
    began = time.process_time()
    workflow(grid, context)
    whole = time.process_time() - began
    if len(grid.down) < STAGES:
        return None
    [mean] = context.state[MAIN_PARAMS_RECORD].to_numpy_ndarrays()
    return mean, whole - grid.seconds, grid.seconds, grid.down, grid.up


def main(told):
    """Run a round to warm up and a measured one; write the result of the latter to a file."""
    task = json.loads(told)
    vectors = np.load(task["vectors"])
    a_round(vectors[:5], 3, 2, 0)
    found = a_round(vectors, task["shares"], task["threshold"], task["gone"])
    np.savez(task["found"], **dict(zip(("mean", "server", "clients", "down", "up"), found or (), strict=False)))


if __name__ == "__main__":
    main(*sys.argv[1:])
