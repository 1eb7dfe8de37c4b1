"""Families of transformers and diffusers, from the configurations in ``families.toml``."""

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.families.registry import FAMILIES, Family, Given, Made, ids, library


def _text(rows: int, length: int) -> Given:
    x = ids(300, rows, length)
    return {"input_ids": x, "labels": x.clone()}


def _padded(rows: int, length: int) -> Given:
    lengths = torch.randint(length // 2, length, (rows, 1))
    return _text(rows, length) | {"attention_mask": (torch.arange(length) < lengths).long()}


def _pictures(rows: int, size: int) -> Given:
    return {"pixel_values": torch.randn(rows, 3, size, size)}


def _classified(rows: int, size: int) -> Given:
    return _pictures(rows, size) | {"labels": torch.randint(0, 2, (rows,))}


def _segmented(rows: int, size: int) -> Given:
    return _pictures(rows, size) | {"labels": torch.randint(0, 5, (rows, size, size))}


def _drawn(rows: int) -> list[Tensor]:
    return [torch.randint(0, 5, (int(torch.randint(1, 4, ())),)) for _ in range(rows)]


def _boxes(rows: int, size: int) -> Given:
    labels = [{"class_labels": one, "boxes": torch.rand(len(one), 4) * 0.4 + 0.3} for one in _drawn(rows)]
    return _pictures(rows, size) | {"labels": labels}


def _masks(rows: int, size: int) -> Given:
    classes = _drawn(rows)
    masks = [(torch.rand(len(one), size, size) > 0.5).float() for one in classes]
    return _pictures(rows, size) | {"mask_labels": masks, "class_labels": classes}


def _noisy(rows: int, channels: int, size: int, *context: int) -> Given:
    given = {"sample": torch.randn(rows, channels, size, size), "timestep": torch.randint(0, 1000, (rows,))}
    return given | ({"encoder_hidden_states": torch.randn(rows, *context)} if context else {})


def _labelled(rows: int, channels: int, size: int) -> Given:
    given = {"timestep": torch.randint(0, 1000, (rows,)), "class_labels": torch.randint(0, 10, (rows,))}
    return given | {"hidden_states": torch.randn(rows, channels, size, size)}


def _series() -> Given:
    told = {f"{when}_values": torch.randn(16, size) for when, size in (("past", 40), ("future", 16))}
    times = {
        f"{when}_time_features": torch.randn(16, size, 2) for when, size in (("past", 40), ("future", 16))
    }
    return told | times | {"past_observed_mask": torch.ones(16, 40)}


def _captioned() -> Given:
    """Places in a text to which features of pictures are scattered."""
    x = ids(298, 4, 64)
    x[:, 4:20] = 299
    labels = x.masked_fill(x == 299, -100)
    return {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": labels} | _pictures(4, 32)


_FUNCTIONS = (_text, _padded, _pictures, _classified, _segmented, _boxes, _masks, _noisy, _labelled, _series)
_INPUTS: Final[dict[str, Callable[..., Given]]] = {
    **{one.__name__[1:]: one for one in (*_FUNCTIONS, _captioned)},
    "latent": lambda rows, size: {"sample": torch.randn(rows, 3, size, size), "sample_posterior": True},
    "paired": lambda: {"input_ids": ids(299, 8, 24), "return_loss": True} | _pictures(8, 64),
    "voices": lambda: {"input_values": torch.randn(3, 4000), "labels": torch.randint(1, 30, (3, 8))},
    "heard": lambda: {"input_features": torch.randn(4, 40, 128), "labels": ids(300, 4, 32)},
    "forecast": lambda: {"past_values": torch.randn(8, 96, 4), "future_values": torch.randn(8, 16, 4)},
}


def _loss(model: Any, given: Given) -> Any:
    found = model(**given)
    return found.loss if "loss" in found else found.sample.square().mean()


def _made(package: str, model: str, inputs: list[Any], settings: Given) -> Made:
    kind = getattr(library(package), model)
    made = kind(kind.config_class(**settings)) if package == "transformers" else kind(**settings)
    maker, *sizes = inputs
    return Made(made.train(), lambda step: _INPUTS[maker](*sizes), _loss)


def _listed() -> None:
    told = tomllib.loads(Path(__file__).with_name("families.toml").read_text())
    for package in ("transformers", "diffusers"):
        for name, given in told[package].items():
            settings = told["bases"].get(given.pop("from", ""), {}) | given
            model, inputs = settings.pop("model"), settings.pop("inputs")
            FAMILIES[name] = Family(partial(_made, package, model, inputs, settings), package)


_listed()
