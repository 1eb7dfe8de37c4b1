"""Random module trees: random nesting, lists, shared modules, functions between children, loops.

A recipe is drawn for every class: which children it has, in which order they are defined, and a program
that calls them and does things of its own. All modules of a class run the same program, as real ones do.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import nn

from benchmarks.recorder.families.case import Case, numbers

_WIDTH: Final = 8


class Scaled(nn.Module):
    """A leaf that nobody knows: numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(_WIDTH)), nn.Parameter(torch.zeros(_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.shift


class Mixed(nn.Module):
    """Another one: a matrix of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.matrix) + x


_WEIGHTED: Final[tuple[Callable[[], nn.Module], ...]] = (
    lambda: nn.Linear(_WIDTH, _WIDTH),
    lambda: nn.Linear(_WIDTH, _WIDTH, bias=False),
    lambda: nn.LayerNorm(_WIDTH),
    lambda: nn.BatchNorm1d(_WIDTH),
    lambda: nn.RMSNorm(_WIDTH),
)
_LIGHT: Final[tuple[Callable[[], nn.Module], ...]] = (nn.ReLU, nn.GELU, nn.Tanh, lambda: nn.Dropout(0.1))
_UNKNOWN: Final[tuple[Callable[[], nn.Module], ...]] = (Scaled, Mixed)

_OWN: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "relu": torch.relu,
    "gate": lambda x: x * torch.sigmoid(x),
    "scale": lambda x: x * 0.5,
    "center": lambda x: x - x.mean(-1, keepdim=True),
    "attend": lambda x: torch.softmax(x @ x.t(), -1) @ x,
    "roll": lambda x: torch.cat([x[:, 3:], x[:, :3]], 1),
    "fold": lambda x: x.view(-1, 2, _WIDTH // 2).transpose(1, 2).reshape(-1, _WIDTH),
    "drop": lambda x: nn.functional.dropout(x, 0.1),
    "pick": lambda x: x.index_select(0, torch.arange(len(x) - 1, -1, -1)),
}
Do = Literal["call", "own", "keep", "add"]


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a program does: call a child, run a function, keep a value, or add the kept one."""

    do: Do
    what: str = ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A class: its children in order of definition, and what it does with them."""

    name: str
    children: tuple[tuple[str, "Recipe | Callable[[], nn.Module]"], ...]
    program: tuple[Act, ...]
    kind: Literal["own", "sequence", "list"] = "own"
    shared: bool = False

    def make(self) -> nn.Module:
        """A module of this class."""
        made = [(name, one.make() if isinstance(one, Recipe) else one()) for name, one in self.children]
        if self.shared and len(made) > 1:
            made = [(name, made[0][1]) for name, _ in made]
        if self.kind == "sequence":
            return nn.Sequential(*(one for _, one in made))
        if self.kind == "list":
            return nn.ModuleList([one for _, one in made])
        module: Drawn = type(self.name, (Drawn,), {})()
        module.program = self.program
        for name, one in made:
            setattr(module, name, one)
        return module


class Drawn(nn.Module):
    """Runs a program."""

    program: Sequence[Act]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x
        for act in self.program:
            if act.do == "keep":
                kept = x
            elif act.do == "add":
                x = x + kept
            elif act.do == "own":
                x = _OWN[act.what](x)
            else:
                child = getattr(self, act.what)
                for one in child if isinstance(child, nn.ModuleList) else (child,):
                    x = one(x)
        return x


class _Drawer:
    """Draws recipes."""

    def __init__(self, rng: random.Random, *, permuted: bool) -> None:
        self.rng, self.permuted, self.count = rng, permuted, 0

    def recipe(self, depth: int) -> Recipe:
        """Draw a class that nests so deep."""
        rng = self.rng
        drawn = [self._child(depth - 1) for _ in range(rng.randint(2, 5))]
        children = [(f"{'abcdefgh'[number]}{rng.choice(('', '_layer', '_block'))}", one)
                    for number, one in enumerate(drawn)]  # fmt: skip
        acts: list[Act] = []
        for name, _ in children:
            acts += self._own(0.3)
            acts += [Act("call", name)] * (2 if rng.random() < 0.08 else 1)
        acts += self._own(0.3)
        if rng.random() < 0.15:
            acts.append(Act("call", rng.choice(children)[0]))
        if rng.random() < 0.4:
            start = rng.randrange(len(acts))
            acts.insert(rng.randrange(start + 1, len(acts) + 1), Act("add"))
            acts.insert(start, Act("keep"))
        if self.permuted and rng.random() < 0.5:
            rng.shuffle(children)
        self.count += 1
        return Recipe(f"Kind{self.count}", tuple(children), tuple(acts))

    def _child(self, depth: int) -> "Recipe | Callable[[], nn.Module]":
        rng, chance = self.rng, self.rng.random()
        if depth <= 0 or chance < 0.45:
            pool = rng.choice((_WEIGHTED, _WEIGHTED, _WEIGHTED, _LIGHT, _LIGHT, _UNKNOWN))
            return rng.choice(pool)
        if chance < 0.6:
            leaves = [rng.choice(rng.choice((_WEIGHTED, _LIGHT))) for _ in range(rng.randint(2, 4))]
            return Recipe("", tuple((str(k), one) for k, one in enumerate(leaves)), (), "sequence")
        inner = self.recipe(depth)
        if chance < 0.8:
            rows = tuple((str(k), inner) for k in range(rng.randint(2, 4)))
            return Recipe("", rows, (), "list", shared=rng.random() < 0.1)
        return inner

    def _own(self, chance: float) -> list[Act]:
        rng, found = self.rng, []
        while rng.random() < chance:
            found.append(Act("own", rng.choice(list(_OWN))))
        return found


def _tree(rng: random.Random, *, permuted: bool) -> Case:
    recipe = _Drawer(rng, permuted=permuted).recipe(rng.randint(1, 3))
    model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), recipe.make(), nn.Linear(_WIDTH, 3))
    return numbers(model, (torch.randn(6, _WIDTH),), rng, permuted=permuted)


def tree(rng: random.Random) -> Case:
    """Children run in the order in which they are defined, some of them twice."""
    return _tree(rng, permuted=False)


def permuted_tree(rng: random.Random) -> Case:
    """Children of half of the classes are defined in any order."""
    return _tree(rng, permuted=True)
