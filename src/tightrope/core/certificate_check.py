"""Check the numbers of a certificate against what they stand for; whether they prove it, the judge says."""

from itertools import chain

from tightrope.core.certificate import (
    MAX_TREE,
    Barrier,
    Case,
    Certificate,
    Choice,
    Cover,
    Fixing,
    Split,
    StageCase,
    Stages,
)
from tightrope.core.checking import MAX_ID, few, within
from tightrope.core.units import StorageId


def check_certificate(claim: Certificate) -> None:
    """Check that a certificate is well formed by itself, without its graph.

    Raises:
        PlanFileError: names the field and quotes the value.
    """
    where = "plan: $.certificate"
    for name in ("lower_bound", "ns_bound", "seed"):
        within(getattr(claim, name), f"{where}.{name}")
    within(claim.witness, f"{where}.witness", low=-1, high=MAX_ID)
    for name, proof in (("cover", claim.cover), ("stages", claim.stages)):
        if proof is not None:
            _check_proof(proof, f"{where}.{name}")


def _check_proof(proof: Cover | Stages, where: str) -> None:
    within(proof.budget, f"{where}.budget")
    within(proof.scale, f"{where}.scale", low=1)
    few(proof.tree, f"{where}.tree", most=MAX_TREE)
    if isinstance(proof, Stages):
        _check_stages(proof, where)
    for position, node in enumerate(proof.tree):
        at = f"{where}.tree[{position}]"
        match node:
            case Choice(_, items, row, most):
                few(items, at)
                for number in (*items, row, most):
                    within(number, at, high=MAX_ID)
            case StageCase():
                _check_weights(node, at)
            case Fixing(case):
                _check_weights(case, at)
            case Split(storage, until):
                _check_gap(storage, until, at)
            case Case(weights, shares):
                few(weights, f"{at}.weights")
                few(shares, f"{at}.shares")
                for op, divisor, weight in weights:
                    within(op, f"{at}.weights", high=MAX_ID)
                    within(divisor, f"{at}.weights")
                    within(weight, f"{at}.weights")
                for storage, until, share in shares:
                    _check_gap(storage, until, f"{at}.shares")
                    within(share, f"{at}.shares")


def _check_stages(proof: Stages, where: str) -> None:
    within(proof.target, f"{where}.target")
    for op in proof.ops:
        within(op, f"{where}.ops", high=MAX_ID)
    few(proof.paths, f"{where}.paths")
    for position, path in enumerate(proof.paths):
        few(path.storages, f"{where}.paths[{position}]")
        for number in (path.row, path.last, *path.storages):
            within(number, f"{where}.paths[{position}]", high=MAX_ID)
    few(proof.barriers, f"{where}.barriers")
    for position, barrier in enumerate(proof.barriers):
        _check_barrier(barrier, f"{where}.barriers[{position}]")


def _check_barrier(barrier: Barrier, where: str) -> None:
    few(barrier.others, where)
    few(barrier.chains, where)
    for chains in barrier.chains:
        few(chains, where)
    for number in (barrier.op, barrier.row, *barrier.others):
        within(number, where, high=MAX_ID)
    for amount, storages in chain.from_iterable(barrier.chains):
        within(amount, where)
        few(storages, where)
        for storage in storages:
            within(storage, where, high=MAX_ID)


def _check_weights(case: StageCase, where: str) -> None:
    for field in StageCase.__struct_fields__:
        few(getattr(case, field), f"{where}.{field}")
        for number in chain.from_iterable(getattr(case, field)):
            within(number, f"{where}.{field}")


def _check_gap(storage: StorageId, until: int, where: str) -> None:
    within(storage, where, high=MAX_ID)
    within(until, where, low=-1, high=MAX_ID)
