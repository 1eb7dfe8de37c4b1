"""Flower as a peer: its weighted mean of one round, and updates per CPU second of its simulation on Ray."""

import importlib
import json
import os
import sys
import time
from typing import Any


def mean(np: Any, data: Any) -> list[float]:
    aggregate = importlib.import_module("flwr.server.strategy.aggregate").aggregate
    results = [
        ([weights], int(count)) for weights, count in zip(data["weights"], data["counts"], strict=True)
    ]
    return [float(v) for v in aggregate(results)[0]]


def _step(np: Any, flat: Any, x: Any, y: Any, sizes: tuple[int, int, int], rate: float) -> Any:
    """One pass of the same net on one client, by NumPy."""
    f, h, c = sizes
    ends = np.cumsum([f * h, h, h * c, c])
    speed = np.zeros_like(flat)
    flat = flat.copy()
    for at in range(0, len(x), 32):
        a, b = x[at : at + 32], y[at : at + 32]
        w1, b1, w2, b2 = np.split(flat, ends[:-1])
        w1, w2 = w1.reshape(f, h), w2.reshape(h, c)
        hidden = np.maximum(a @ w1 + b1, 0)
        scores = hidden @ w2 + b2
        chance = np.exp(scores - scores.max(1, keepdims=True))
        chance /= chance.sum(1, keepdims=True)
        chance[np.arange(len(b)), b] -= 1
        chance /= len(b)
        back = (chance @ w2.T) * (hidden > 0)
        parts = ((a.T @ back).ravel(), back.sum(0), (hidden.T @ chance).ravel(), chance.sum(0))
        speed = 0.9 * speed + np.concatenate(parts)
        flat -= rate * speed
    return flat


def speed(np: Any, data: Any, request: Any) -> dict[str, Any]:
    """CPU seconds of simulated rounds, workers of Ray included, from the end of the first one on."""
    flwr = importlib.import_module("flwr")
    psutil = importlib.import_module("psutil")
    x, y, sizes = data["x"], data["y"], tuple(request["sizes"])
    begin = np.zeros(request["size"], np.float32)
    marks: list[float] = []

    def spent() -> float:
        here = psutil.Process()
        return float(sum(sum(one.cpu_times()[:2]) for one in [here, *here.children(recursive=True)]))

    class Client(flwr.client.NumPyClient):  # type: ignore[misc, name-defined]
        def fit(self, parameters: Any, config: Any) -> Any:
            return [_step(np, parameters[0], x, y, sizes, 0.05)], len(x), {}

    class Strategy(flwr.server.strategy.FedAvg):  # type: ignore[misc, name-defined]
        def aggregate_fit(self, number: int, results: Any, failures: Any) -> Any:
            marks.append(spent())
            return super().aggregate_fit(number, results, failures)

    strategy = Strategy(
        fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=request["clients"],
        min_available_clients=request["clients"],
        initial_parameters=flwr.common.ndarrays_to_parameters([begin]),
    )  # fmt: skip
    flwr.simulation.start_simulation(
        client_fn=lambda _: Client().to_client(), num_clients=request["clients"],
        config=flwr.server.ServerConfig(num_rounds=request["rounds"]), strategy=strategy,
        client_resources={"num_cpus": 1}, ray_init_args={"num_cpus": 1, "include_dashboard": False},
    )  # fmt: skip
    return {"seconds": marks[-1] - marks[0], "updates": request["clients"] * (len(marks) - 1)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        begun = time.monotonic()
        try:
            np = importlib.import_module("numpy")
            with np.load(request["data"]) as read:
                data = dict(read)
            found: dict[str, Any] = (
                {"mean": mean(np, data)} if request["ask"] == "mean" else speed(np, data, request)
            )
        except (ImportError, OSError, AttributeError) as error:
            found = {"missing": str(error)[:200]}
        found["wall"] = time.monotonic() - begun
        answers.write(json.dumps(found) + "\n")
        answers.flush()


main()
