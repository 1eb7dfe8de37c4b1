"""XGBoost and FedTree as peers: trains on a table in an ``.npz`` file, measures its own CPU seconds."""

import importlib
import json
import os
import sys
import time
from typing import Any


def xgboost(data: Any, request: Any) -> dict[str, Any]:
    xgb = importlib.import_module("xgboost")
    knobs = {
        "objective": "binary:logistic", "max_depth": request["depth"], "eta": 0.1, "reg_lambda": 1,
        "max_bin": request["bins"], "tree_method": "hist", "nthread": 1, "base_score": 0.5,
    }  # fmt: skip
    begun = time.process_time()
    train = xgb.DMatrix(data["X"], data["y"], nthread=1)
    model = xgb.train(knobs, train, request["trees"])
    seconds = time.process_time() - begun
    test = model.predict(xgb.DMatrix(data["XT"]), output_margin=True)
    return {
        "seconds": seconds,
        "train": model.predict(train, output_margin=True).tolist(),
        "test": test.tolist(),
    }


def fedtree(data: Any, request: Any) -> dict[str, Any]:
    library = importlib.import_module("fedtree")
    knobs = {
        "n_trees": request["trees"], "max_depth": request["depth"], "learning_rate": 0.1, "n_parties": 2,
        "mode": request["mode"], "partition_mode": request["mode"], "num_class": 2, "verbose": 0,
        "privacy_tech": request["tech"], "max_num_bin": request["bins"], "lambda_ft": 1, "gamma": 0,
        "objective": "binary:logistic",
    }  # fmt: skip
    model = library.FLClassifier(**knobs)
    begun = time.process_time()
    model.fit(data["X"], data["y"])
    return {"seconds": time.process_time() - begun}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print stays out of the answers
    for line in sys.stdin:
        request = json.loads(line)
        try:
            numpy = importlib.import_module("numpy")
            with numpy.load(request["data"]) as data:
                found = {"xgboost": xgboost, "fedtree": fedtree}[request["library"]](data, request)
        except (ImportError, OSError) as error:
            found = {"missing": str(error)[:200]}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


main()
