"""A learned agent that chooses one edit after another, as X-RLflow does.

Idea        Messages along the ops of a form give each a vector. An edit is scored by the ops that it takes
            and makes, by the vectors where it takes place, and by what it saves; to stop is an edit of
            nothing. Rewards are shares of the first cost that are saved. The policy is trained by PPO.
Source      X-RLflow (MLSys 2023), PPO (Schulman et al., 2017), generalised advantages (ICLR 2016)
Guarantee   The cheapest form of all episodes is returned, so never one that is worse than the input.
            A policy is numbers in JSON, and reading one runs nothing.
Complexity  Edits are scored alone, so any number fits, and a policy fits forms of any size.
Gaps        Messages are means, without the attention of X-RLflow. Costs are modelled and never measured.
"""

import math
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from tightrope.core import TightropeError
from tightrope_forms.rewrite.egraph import ClassId, ENode
from tightrope_forms.rewrite.extract import FormCosts
from tightrope_forms.rewrite.substitute import GraphForm

_OPS, _WIDTH, _ROUNDS = 32, 48, 3
_FEATURES: Final = _OPS + 3
_BATCH, _EPOCHS, _MINIBATCH = 10, 4, 16  # of episodes, rounds, forms; as X-RLflow
_GAMMA, _LAMBDA, _CLIP, _ENTROPY, _VALUE, _NORM, _KL = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5, 0.05
_RATE: Final = 2e-3
_REWARD: Final = 10.0
_LARGEST_FILE: Final = 1 << 22  # a policy has about 34,000 numbers


class Sight(NamedTuple):
    """What the agent sees of one form, or of several behind each other."""

    ops: Tensor  # [ops, features]
    edges: Tensor  # [2, reads]: what is read, and by what
    of_form: Tensor  # [ops]: the form of each
    edits: Tensor  # [edits, features]: what is added, removed, and saved
    sites: Tensor  # [2, sites]: the edit, and the op
    of_edit: Tensor  # [edits]: the form of each


def sight(form: GraphForm) -> Sight:
    """Look at a form; the edit that comes first stops."""
    at = {one: number for number, one in enumerate(form.order)}
    mean = form.cost / len(at)
    ops = [_op(form.costs, one, form.choice[one], mean) for one in form.order]
    edges = [(at[child], at[one]) for one in form.order for child in form.choice[one].children]
    edits, sites = [[0.0] * (2 * _FEATURES + 1)], list[tuple[int, int]]()
    for number, edit in enumerate(form.edits, 1):
        bags = [
            [sum(column) for column in zip(*(_op(edit.costs, *one, mean) for one in some), strict=True)]
            or [0.0] * _FEATURES
            for some in (edit.added, edit.removed)
        ]
        edits.append([*bags[0], *bags[1], (form.cost - edit.cost) / mean])
        sites += ((number, at[one]) for one in edit.sites if one in at)
    pairs = [torch.tensor(some, dtype=torch.int64).reshape(-1, 2).T for some in (edges, sites)]
    zeros = [torch.zeros(len(some), dtype=torch.int64) for some in (ops, edits)]
    return Sight(torch.tensor(ops), pairs[0], zeros[0], torch.tensor(edits), pairs[1], zeros[1])


def _op(costs: FormCosts, one: ClassId, node: ENode, mean: float) -> list[float]:
    """Describe an op by its name and its cost; costs are over those of the mean op of the form."""
    name = [0.0] * _OPS
    name[zlib.crc32(str(node.op).encode()) % _OPS] = 1.0
    return [*name, costs.own(one, node) / mean, float(one in costs.once), float(node.op == "leaf")]


def joined(sights: Sequence[Sight]) -> Sight:
    """Put forms behind each other."""
    ops = edits = 0
    moved = list[Sight]()
    for number, one in enumerate(sights):
        shift = torch.tensor([[edits], [ops]])
        moved.append(
            Sight(
                one.ops,
                one.edges + ops,
                one.of_form + number,
                one.edits,
                one.sites + shift,
                one.of_edit + number,
            )
        )
        ops, edits = ops + len(one.ops), edits + len(one.edits)
    return Sight(
        *(
            torch.cat(parts, -1 if parts[0].ndim == 2 and not parts[0].is_floating_point() else 0)
            for parts in zip(*moved, strict=True)
        )
    )


def _means(values: Tensor, into: Tensor, num: int) -> Tensor:
    count = torch.zeros(num).index_add_(0, into, torch.ones(len(into))).clamp_(min=1)
    return values.new_zeros(num, values.shape[1]).index_add(0, into, values) / count[:, None]


class EditPolicy(nn.Module):
    """Scores of edits, and the value of forms."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(_FEATURES, _WIDTH)
        self.rounds = nn.ModuleList(nn.Linear(3 * _WIDTH, _WIDTH) for _ in range(_ROUNDS))
        self.edit = nn.Sequential(nn.Linear(_WIDTH + 2 * _FEATURES + 1, 64), nn.Tanh(), nn.Linear(64, 1))
        self.value = nn.Sequential(nn.Linear(_WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, seen: Sight) -> tuple[Tensor, Tensor]:
        """Return the scores of all edits, and the value of each form."""
        read, by = seen.edges
        ops = torch.relu(self.first(seen.ops))
        for one in self.rounds:
            both = _means(ops[read], by, len(ops)), _means(ops[by], read, len(ops))
            ops = ops + torch.relu(one(torch.cat((ops, *both), 1)))
        edit, site = seen.sites
        near = _means(ops[site], edit, len(seen.edits))
        values = _means(self.value(ops), seen.of_form, int(seen.of_form[-1]) + 1)
        return self.edit(torch.cat((near, seen.edits), 1))[:, 0], values[:, 0]


class EditStep(NamedTuple):
    """What the agent saw, chose and got."""

    seen: Sight
    open: Tensor  # edits that led to no form of this episode before
    choice: int
    log_share: float
    reward: float
    value: float


class EpisodeWalker:
    """Walks from one form; forms that were seen are looked at once."""

    def __init__(self, start: GraphForm) -> None:
        self.start = self.best = start
        self._known: dict[Any, tuple[GraphForm, Sight, dict[int, GraphForm | None]]] = {}

    def episode(self, policy: EditPolicy, *, sure: bool = False, end: float = math.inf) -> list[EditStep]:
        """Walk until the agent stops; ``sure`` takes what scores best, rather than a draw."""
        steps, been, form = list[EditStep](), {self.start.key}, self.start
        while len(steps) < len(self.start.order) and time.monotonic() < end:
            form, seen, after = self._known.setdefault(form.key, (form, sight(form), {}))
            with torch.no_grad():
                scores, value = policy(seen)
            free = torch.ones(len(scores), dtype=torch.bool)
            while True:
                shares = scores.masked_fill(~free, -math.inf).log_softmax(0)
                choice = int(shares.argmax() if sure else shares.exp().multinomial(1))
                if choice and choice not in after:
                    after[choice] = form.edited(form.edits[choice - 1])
                new = after[choice] if choice else form
                if not choice or (new is not None and new.key not in been):
                    break
                free[choice] = False
            assert new is not None
            reward = _REWARD * (form.cost - new.cost) / self.start.cost
            steps.append(EditStep(seen, free, choice, float(shares[choice]), reward, float(value)))
            if not choice:
                break
            form = new
            been.add(form.key)
            self.best = min(self.best, form, key=lambda one: one.cost)
        return steps


class TrainedAgent(NamedTuple):
    """A policy, and the cheapest form of every start after each episode."""

    policy: EditPolicy
    best: list[GraphForm]
    costs: list[float]  # sums over starts


def train(
    starts: Iterable[GraphForm], *, episodes: int = 200, seed: int = 0, end: float = math.inf
) -> TrainedAgent:
    """Train by PPO on forms in turn; the numbers of torch's generator stay as they were."""
    walkers, costs = [EpisodeWalker(one) for one in starts], list[float]()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        policy = EditPolicy()
        optimizer = torch.optim.Adam(policy.parameters(), lr=_RATE)
        batch = list[list[EditStep]]()
        for number in range(episodes):
            if time.monotonic() > end:
                break
            batch.append(walkers[number % len(walkers)].episode(policy, end=end))
            costs.append(sum(one.best.cost for one in walkers))
            if len(batch) == _BATCH:
                _update(policy, optimizer, batch)
                batch = []
    return TrainedAgent(policy, [one.best for one in walkers], costs)


def _update(
    policy: EditPolicy, optimizer: torch.optim.Optimizer, batch: Sequence[Sequence[EditStep]]
) -> None:
    steps, gains = [one for episode in batch for one in episode], list[float]()
    for episode in batch:  # generalised advantages, from the end
        gain, after, own = 0.0, 0.0, list[float]()
        for one in reversed(episode):
            gain = one.reward + _GAMMA * after - one.value + _GAMMA * _LAMBDA * gain
            own.append(gain)
            after = one.value
        gains += reversed(own)
    gain_of, old, value_of = (
        torch.tensor(some) for some in (gains, [x.log_share for x in steps], [x.value for x in steps])
    )
    returns, scaled = gain_of + value_of, (gain_of - gain_of.mean()) / (gain_of.std() + 1e-6)
    for _ in range(_EPOCHS):
        order = torch.randperm(len(steps))
        for at in range(0, len(steps), _MINIBATCH):
            part = order[at : at + _MINIBATCH]
            some = [steps[number] for number in part]
            scores, values = policy(joined([one.seen for one in some]))
            shares = [
                one.masked_fill(~step.open, -math.inf).log_softmax(0)
                for one, step in zip(scores.split_with_sizes([len(x.open) for x in some]), some, strict=True)
            ]
            new = torch.stack([one[step.choice] for one, step in zip(shares, some, strict=True)])
            entropy = torch.stack([-(one.exp() * one.clamp(min=-50)).sum() for one in shares]).mean()
            ratio, weight = (new - old[part]).exp(), scaled[part]
            clipped = torch.minimum(ratio * weight, ratio.clamp(1 - _CLIP, 1 + _CLIP) * weight).mean()
            loss = _VALUE * (values - returns[part]).square().mean() - clipped - _ENTROPY * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), _NORM)
            optimizer.step()
            if float((old[part] - new.detach()).mean()) > _KL:
                return


def walked(
    start: GraphForm,
    *,
    policy: EditPolicy | None = None,
    draws: int = 4,
    seed: int = 0,
    end: float = math.inf,
) -> GraphForm:
    """Return the cheapest form that the agent sees, in training or by a policy.

    Args:
        start: where it begins.
        policy: walks once as it scores, and ``draws`` times at random; None = one is trained here.
        draws: walks at random.
        seed: of all draws.
        end: in time.
    """
    if policy is None:
        return train([start], seed=seed, end=end).best[0]
    walker = EpisodeWalker(start)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for number in range(draws + 1):
            walker.episode(policy, sure=not number, end=end)
    return walker.best


def save_policy(policy: EditPolicy, path: str | Path) -> None:
    """Write a policy as JSON."""
    numbers = {name: one.tolist() for name, one in policy.state_dict().items()}
    Path(path).write_bytes(msgspec.json.encode(numbers))


def load_policy(path: str | Path) -> EditPolicy:
    """Read a policy.

    Raises:
        TightropeError: it is none, of other sizes, or larger than any policy.
    """
    made = EditPolicy()
    try:
        if (size := Path(path).stat().st_size) > _LARGEST_FILE:
            raise ValueError(f"it has {size} bytes")
        found = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, list[Any]])
        made.load_state_dict({name: torch.tensor(one, dtype=torch.float32) for name, one in found.items()})
    except (OSError, msgspec.MsgspecError, TypeError, ValueError, RuntimeError) as error:
        raise TightropeError(f"{path} is no policy of rewriting: {error!s:.200}") from error
    if not all(bool(one.isfinite().all()) for one in made.parameters()):
        raise TightropeError(f"{path} is no policy of rewriting: it has numbers that are not finite.")
    return made
