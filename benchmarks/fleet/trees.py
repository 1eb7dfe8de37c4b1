"""T1 to T7: boosted trees over parties, beside XGBoost and FedTree.

Data: scikit-learn's breast cancer; a9a and credit are read from the folder ``TIGHTROPE_FLEET_DATA`` in the
layout of FedTree's repository (``a9a_horizontal_p0``, ``_p1``, ``_test``;
``credit_vertical_p0_withlabel.csv``, ``credit_vertical_p1.csv``) and left out where they are not. Credit is
divided 24,000 to 6,000 and breast 400 to 169, seed 0. All times are CPU seconds of all parties together, one
thread, beside the peer in turns, medians.
"""

import os
import tempfile
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.fleet.peer import PeerMissingError, peer
from benchmarks.micro.rows import Row
from tightrope_fleet.judge.trees import ledger_problems, padded_bytes
from tightrope_fleet.secure import expand
from tightrope_fleet.trees.columns import train_over_columns
from tightrope_fleet.trees.params import Boosting, Protection
from tightrope_fleet.trees.parties import PartyTable
from tightrope_fleet.trees.private import Privacy, PrivateChoice
from tightrope_fleet.trees.quality import auc
from tightrope_fleet.trees.rows import share_rows, train_over_rows
from tightrope_fleet.trees.table import read_table
from tightrope_fleet.trees.wire import Wire, forecast_grow

INSTALL = "pip install xgboost-cpu==3.2.0 fedtree==1.0.5 scikit-learn; TIGHTROPE_PEERS=its python"
_TURNS = 5


@dataclass(frozen=True, slots=True)
class Split:
    """A data set, divided."""

    name: str
    table: NDArray[np.float32]
    labels: NDArray[np.float64]
    test: NDArray[np.float32]
    test_labels: NDArray[np.float64]

    @property
    def whole(self) -> list[PartyTable]:
        return [PartyTable("all", self.table, self.labels)]

    @property
    def columns(self) -> list[PartyTable]:
        half = self.table.shape[1] // 2
        return [PartyTable("a", self.table[:, :half], self.labels), PartyTable("b", self.table[:, half:])]


def _divided(name: str, table: NDArray[Any], labels: NDArray[Any], *, train: int) -> Split:
    order = np.random.default_rng(0).permutation(len(labels))
    table, labels = table[order].astype(np.float32), labels[order].astype(np.float64)
    return Split(name, table[:train], labels[:train], table[train:], labels[train:])


@cache
def splits() -> tuple[Split, ...]:
    from sklearn.datasets import load_breast_cancer

    found = [_divided("breast", *load_breast_cancer(return_X_y=True), train=400)]
    folder = Path(os.environ.get("TIGHTROPE_FLEET_DATA", "."))
    if (folder / "a9a_horizontal_p0").exists():
        read = [read_table(folder / f"a9a_horizontal_{part}", width=124) for part in ("p0", "p1", "test")]
        labels = [one.labels for one in read if one.labels is not None]
        table = np.concatenate([read[0].table, read[1].table])
        found.append(Split("a9a", table, np.concatenate(labels[:2]), read[2].table, labels[2]))
    if (folder / "credit_vertical_p1.csv").exists():
        first = read_table(folder / "credit_vertical_p0_withlabel.csv")
        second = read_table(folder / "credit_vertical_p1.csv")
        assert first.ids == second.ids
        assert first.labels is not None
        found.append(
            _divided("credit", np.concatenate([first.table, second.table], 1), first.labels, train=24_000)
        )
    return tuple(found)


def _absent() -> str:
    lacking = {"breast", "a9a", "credit"} - {one.name for one in splits()}
    return f"; no files for {', '.join(sorted(lacking))} (TIGHTROPE_FLEET_DATA)" if lacking else ""


def hashes() -> list[Row]:
    """T1: one forest, whoever holds what."""
    rows = []
    for data in splits():
        params = Boosting(trees=10, depth=6)
        central = train_over_rows(data.whole, params)[0].hash
        found = {
            f"{count} parties{' masked' * masks}{' skewed' * skewed}": train_over_rows(
                share_rows(data.table, data.labels, count, seed=count, skewed=skewed), params, masks=masks
            )[0].hash
            for count in (1, 2, 4, 8)
            for masks in (False, True)[: 1 + (count > 1)]
            for skewed in (False, True)
        }
        found["columns"] = train_over_columns(data.columns, params)[0].hash
        wrong = [name for name, one in found.items() if one != central]
        small = Boosting(trees=1, depth=3 if data.name != "breast" else 6, bins=32)
        due = train_over_rows(data.whole, small)[0].hash
        sealed = train_over_columns(data.columns, small, protection="paillier")[0].hash
        wrong += ["columns encrypted"] * (sealed != due)
        text = f"{data.name}: {len(found) + 1 - len(wrong)} of {len(found) + 1} ways equal, {central[:12]}"
        claim = (
            "hash of central = 1, 2, 4, 8 parties = masked = columns = columns encrypted (1 tree, 32 bins)"
        )
        rows.append(Row("T1", claim, text + _absent() * (data is splits()[-1]), not wrong))
    return rows


def _saved(data: Split, folder: str) -> str:
    path = f"{folder}/{data.name}.npz"
    np.savez(path, X=data.table, y=data.labels, XT=data.test, yT=data.test_labels)
    return path


def quality() -> list[Row]:
    """T2: test AUC beside XGBoost with the same knobs."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, peer("tree_peer.py", INSTALL) as other:
        for data in splits():
            params = Boosting(trees=20 if data.name == "credit" else 50)
            forest = train_over_rows(data.whole, params)[0]
            ours, train = (
                auc(data.test_labels, forest.margin(data.test)),
                auc(data.labels, forest.margin(data.table)),
            )
            text = f"{data.name}: test AUC {ours:.4f}, train {train:.4f}"
            held = data.name != "a9a" or train >= 0.914
            try:
                asked = {"library": "xgboost", "data": _saved(data, folder), "bins": 255, "depth": 6}
                found = other.ask(**asked, trees=params.trees)
                theirs = auc(data.test_labels, np.array(found["test"]))
                held, said = held and abs(ours - theirs) <= 0.002, f"XGBoost {theirs:.4f}"
            except PeerMissingError as error:
                said = str(error)
            claim = "within 0.002 of XGBoost" + "; a9a train AUC >= 0.914" * (data.name == "a9a")
            rows.append(Row("T2", claim, text, held, said))
    return rows


def _cpu(train: Any) -> float:
    begun = time.process_time()
    train()
    return time.process_time() - begun


def speed() -> list[Row]:
    """T3: CPU seconds per tree, in turns with the peer."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, peer("tree_peer.py", INSTALL) as other:
        for data in splits():
            trees, fed = (50, False) if data.name == "a9a" else (20, True)
            params, parties = Boosting(trees=trees), share_rows(data.table, data.labels, 2)
            asked: dict[str, Any] = {"data": _saved(data, folder), "bins": 255, "depth": 6, "trees": trees}
            asked |= (
                {"library": "fedtree", "mode": "horizontal", "tech": "sa"} if fed else {"library": "xgboost"}
            )
            ours, theirs, said = [], [], ""
            for _ in range(2 if fed else _TURNS):
                ours.append(_cpu(lambda p=parties, q=params: train_over_rows(p, q, masks=True)) / trees)
                try:
                    theirs.append(other.ask(**asked)["seconds"] / trees)
                except PeerMissingError as error:
                    said = str(error)
                    break
            text = f"{data.name}, 2 parties, masked: {median(ours):.4f} CPU s a tree"
            held = not said
            if theirs:
                ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
                held = ratio <= (1.0 if fed else 5.0)
                text += f", {ratio:.2f} times {'FedTree' if fed else 'XGBoost on one thread'}"
                said = f"{median(theirs):.4f}"
            claim = (
                "at most FedTree's (its own secure aggregation)"
                if fed
                else "at most 5 times XGBoost's (stretch 3)"
            )
            rows.append(Row("T3", claim, text, held, said))
    return rows


def wire_bytes() -> list[Row]:
    """T4: bytes per party and tree, forecast and observed."""
    rows = []
    for data in splits():
        for leaves in (0, 31):
            params = Boosting(trees=5, leaves=leaves)
            _, cuts, wire = train_over_rows(share_rows(data.table, data.labels, 2), params, masks=True)
            bins = int(cuts.starts[-1])
            due, seen = forecast_grow(params, bins), wire.bytes_of("party0")
            judged = padded_bytes(params.trees, params.depth, params.leaves, bins)
            small = data.name != "a9a" or seen / params.trees <= 0.5e6
            text = (
                f"{data.name}{', by leaf' * bool(leaves)}: {seen / params.trees / 1e6:.3f} MB a party "
                "and tree, "
                f"forecast {due / params.trees / 1e6:.3f}, {bins} bins; agreeing on cuts "
                f"{wire.bytes_of('party0', 'agree') / 1e6:.2f} MB once"
            )
            claim = "forecast = observed" + ", at most 0.5 MB" * (data.name == "a9a")
            rows.append(Row("T4", claim, text, due == seen == judged and small))
    return rows


def secrecy() -> list[Row]:
    """T5: what masks look like, and what the server can tell from them."""
    from scipy import stats

    words = expand(b"\1" * 32, 200_000, 7)
    distinct = len(np.unique(words)) == len(words)
    random, seen = np.random.default_rng(0), []
    for scale in (1.0, 50.0):
        table = (random.normal(size=(500, 8)) * scale).astype(np.float32)
        wire = Wire(keep=True)
        labels = (table[:, 0] * scale > 3).astype(np.float64)
        train_over_rows(share_rows(table, labels, 2), Boosting(trees=2, bins=16), masks=True, wire=wire)
        seen.append(np.concatenate([part for name, part in wire.seen if name == "party0"]) / 2.0**64)
    same, uniform = stats.ks_2samp(*seen).pvalue, min(stats.kstest(one, "uniform").pvalue for one in seen)
    try:
        train_over_columns(splits()[0].columns, Boosting(trees=1), protection="paillier", key_bits=1024)
        short = False
    except Exception:
        short = True
    text = (
        f"{len(words)} words distinct: {distinct}; histograms uniform p = {uniform:.2f}; two data sets alike "
        f"p = {same:.2f}; equal numbers of words: {len(seen[0]) == len(seen[1])}; 1024-bit key "
        f"refused: {short}"
    )
    held = distinct and uniform > 0.01 and same > 0.01 and short and len(seen[0]) == len(seen[1])
    return [Row("T5", "distinct, uniform and alike at p > 0.01; no key below 2048 bits", text, held)]


def encrypted() -> list[Row]:
    """T6: columns encrypted with 2048 bits, beside FedTree's 512."""
    data, rows = splits()[0], []
    protection: Protection = "paillier"
    for bins in (32, 255):
        params = Boosting(trees=3, bins=bins)
        seconds = _cpu(lambda p=params: train_over_columns(data.columns, p, protection=protection)) / 3
        text = f"breast, 2 parties, {bins} bins, making the key included: {seconds:.2f} CPU s a tree"
        said = ""
        if bins == 32:
            with tempfile.TemporaryDirectory() as folder, peer("tree_peer.py", INSTALL) as other:
                try:
                    found = other.ask(
                        library="fedtree", data=_saved(data, folder), bins=32, depth=6, trees=1,
                        mode="vertical", tech="he",
                    )  # fmt: skip
                    said = f"FedTree, 512 bits: {found['seconds']:.2f}"
                except PeerMissingError as error:
                    said = str(error)
        rows.append(Row("T6", "at most 5 CPU s a tree with 2048 bits", text, seconds <= 5, said))
    return rows


def privacy() -> list[Row]:
    """T7: the mechanisms, the ledger, and quality over epsilon."""
    from scipy import stats

    base = Boosting(trees=10, depth=3, bins=16, l2=500.0, hessian="one", child_weight=0.0)
    choice = PrivateChoice(Privacy(8.0, ((0.0, 1.0),), seed=1), base)
    choice.begin_tree()
    noise = choice.worth(np.zeros(50_000), np.zeros(50_000))
    laplace = stats.kstest(noise, "laplace", args=(0, choice.ledger[-1].scale)).pvalue
    gain = np.arange(6.0) * 20
    picked = np.bincount(choice.choose(np.tile(gain, (50_000, 1))), minlength=6)
    weights = np.exp(gain * choice.per_level / (2 * choice.gain_sensitivity))
    drawn = stats.chisquare(picked, 50_000 * weights / weights.sum()).pvalue
    rows = [
        Row("T7", "draws are Laplace and exponential, p > 0.01",
            f"Laplace p = {laplace:.2f}, exponential p = {drawn:.2f}", min(laplace, drawn) > 0.01)
    ]  # fmt: skip
    data = next((one for one in splits() if one.name == "a9a"), splits()[0])
    low, high = data.table.min(0), data.table.max(0)
    ranges = tuple((float(a), float(b) + 1e-3) for a, b in zip(low, high, strict=True))
    mean, spread = [], []
    for epsilon in (1.0, 2.0, 4.0, 8.0):
        found = []
        for seed in range(7):
            forest = train_over_rows(data.whole, base, privacy=Privacy(epsilon, ranges, seed=seed))[0]
            found.append(auc(data.test_labels, forest.margin(data.test)))
        mean.append(float(np.mean(found)))
        spread.append(float(np.std(found) / np.sqrt(len(found))))
    rises = all(b >= a - 2 * (s + t) for a, b, s, t in zip(mean, mean[1:], spread, spread[1:], strict=False))
    said = ", ".join(f"{m:.3f}" for m in mean)
    rows.append(
        Row(
            "T7",
            "AUC does not fall with epsilon beyond noise",
            f"{data.name}, epsilon 1, 2, 4, 8: {said}",
            rises,
        )
    )
    endless = train_over_rows(data.whole, base, privacy=Privacy(float("inf"), ranges))[0].hash
    again = train_over_rows(share_rows(data.table, data.labels, 4), base, masks=True,
                            privacy=Privacy(float("inf"), ranges, seed=3))[0].hash  # fmt: skip
    spent = _ledger(base, 4.0)
    problems = ledger_problems(spent, 4.0, base.trees, base.depth)
    total = sum(line.epsilon for line in spent)
    rows.append(
        Row("T7", "the ledger adds up to epsilon; infinite epsilon is the hash without noise",
            f"epsilon 4: {total:.12f} over {len(spent)} lines; hashes equal: {endless == again}",
            not problems and abs(total - 4.0) < 1e-9 and endless == again)
    )  # fmt: skip
    return rows


def _ledger(params: Boosting, epsilon: float) -> Any:
    choice = PrivateChoice(Privacy(epsilon, ((0.0, 1.0),)), replace(params))
    for _ in range(params.trees):
        choice.begin_tree()
        for _ in range(params.depth):
            choice.choose(np.zeros((1, 2)))
        choice.worth(np.zeros(1), np.zeros(1))
    return choice.ledger


def rows(console: Console) -> dict[str, Any]:
    """Bars by name."""
    return {
        "T1": hashes, "T2": quality, "T3": speed, "T4": wire_bytes, "T5": secrecy, "T6": encrypted, "T7":
        privacy,
    }  # fmt: skip
