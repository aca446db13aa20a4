"""The work as a Flower simulation: a client app, a server app with federated averaging, and Ray as the backend."""

# mypy: ignore-errors
from __future__ import annotations

import os
import sys
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # for the processes that Ray starts
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import work
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

task = work.task_from_arguments()


# --- what a user writes
client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    x, y = work.load_data(task.data)
    k = int(context.node_config["partition-id"])
    weights = message.content["arrays"].to_numpy_ndarrays()
    after = work.one_client_step(task.model, weights, x[k], y[k])
    return Message(
        RecordDict({"arrays": ArrayRecord(after), "metrics": MetricRecord({"num-examples": len(y[k])})}),
        reply_to=message,
    )


server_app = ServerApp()
ends: list[float] = []
final: list[object] = []


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    def after_round(number: int, arrays: ArrayRecord) -> MetricRecord:
        ends.append(time.perf_counter())
        return MetricRecord({})

    everyone = task.clients  # else the first round takes only the clients that have registered by then
    result = FedAvg(fraction_evaluate=0.0, min_train_nodes=everyone, min_available_nodes=everyone).start(
        grid, ArrayRecord(work.start_weights(task.model)), num_rounds=task.rounds, evaluate_fn=after_round
    )
    final.extend(result.arrays.to_numpy_ndarrays())


# --- to here


run_simulation(
    server_app,
    client_app,
    num_supernodes=task.clients,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
)
digest, norm = work.digest_of_weights(final)
rounds = [b - a for a, b in pairwise(ends)]
work.report(work.Measured(rounds[1:], 0.0, digest, norm))
