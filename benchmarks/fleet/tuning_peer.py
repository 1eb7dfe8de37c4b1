"""Optuna's TPE with its Hyperband pruner, defaults, under the oracle of a log: the trial it calls best."""

import importlib
import json
import os
import sys
from typing import Any


def tune(np: Any, optuna: Any, log: Any, request: Any, seed: int) -> int:
    random = np.random.default_rng(seed)
    rounds, errors, weights, knobs = (log[name] for name in ("rounds", "errors", "weights", "knobs"))
    asked, epsilon = request["clients"], request["epsilon"]
    scale = 0.0 if epsilon is None else request["releases"] / (asked * epsilon)
    spent, nearest = 0.0, {}

    def look(configuration: int, rung: int) -> float:
        chosen = random.choice(len(weights), asked, replace=False)
        counted = weights[chosen] if epsilon is None else np.ones(len(chosen))
        value = float(errors[configuration, rung][chosen] @ counted / counted.sum())
        return min(max(value + (random.laplace(0.0, scale) if scale else 0.0), 0.0), 1.0)

    def objective(trial: Any) -> float:
        nonlocal spent
        point = np.array([trial.suggest_float(f"k{k}", 0, 1) for k in range(knobs.shape[1])])
        one = nearest[trial.number] = int(((knobs - point) ** 2).sum(1).argmin())
        value, before = 1.0, 0
        for rung, count in enumerate(rounds.tolist()):
            spent, before = spent + count - before + asked / 30, count
            value = look(one, rung)
            trial.report(value, count)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    sampler, pruner = optuna.samplers.TPESampler(seed=seed), optuna.pruners.HyperbandPruner()
    study = optuna.create_study(sampler=sampler, pruner=pruner)
    while spent < request["budget"]:
        study.optimize(objective, n_trials=1)
    complete = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    return nearest[study.best_trial.number] if complete else nearest[0]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            np, optuna = importlib.import_module("numpy"), importlib.import_module("optuna")
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            with np.load(request["data"]) as log:
                found: dict[str, Any] = {
                    "chosen": [tune(np, optuna, log, request, seed) for seed in range(request["seeds"])]
                }
        except (ImportError, OSError) as error:
            found = {"missing": str(error)[:200]}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


main()
