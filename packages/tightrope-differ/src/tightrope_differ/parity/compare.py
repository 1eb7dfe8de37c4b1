"""Compare lowerings of one pipeline over images: distances of logits, changed answers, significance.

Idea        Every lowering answers for the same images. A second run of the reference, which must not change
            one bit, and batches that are divided in another way say what chance alone does.
Guarantee   Where two runs of the reference differ, nothing is judged. A lowering is flagged if its answers
            change significantly, corrected for all that was judged, or its logits move ten times more than in
            batches that are divided in another way.
Complexity  Images times lowerings; preprocessing that returns equal bits takes no second run of the net.
Gaps        The test asks whether answers change at all. Whether accuracy falls is said, and not judged.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from tightrope.core import TightropeError
from tightrope_differ.images.noises import IMAGE_NOISES
from tightrope_differ.images.places import COLOUR, DECODE, CallPlaces
from tightrope_differ.parity.graphs import GRAPH_NOISES, Call, capture_net, with_noise
from tightrope_differ.parity.locate import RunLowering, locate
from tightrope_differ.parity.lowerings import PRECISIONS, OnnxCall, lowering, names, quiet, run
from tightrope_differ.parity.pipeline import ImageNet, where_it_failed
from tightrope_differ.parity.statistics import holm, mcnemar
from tightrope_differ.values.parity import FLAGGED, LoweringDifference, ParityReport

_TIMES_NULL: Final = 10.0
_SMALLEST_FLOOR: Final = 16 * 2.0**-23
"""Of rounding in float32, relative to the largest logit."""
_POSITIONS: Final = 0.01
"""Share of an image's positions, such as pixels of a map, that have to change for its answer to count."""
_NAMED: Final = 10
_NULL_FLIPS: Final = 0
"""Answers that changed in the null run: where its bits differ, nothing is judged."""


@dataclass(frozen=True, slots=True)
class ParityOptions:
    """Knobs of a comparison.

    Attributes:
        batch: images at once.
        alpha: chance of one false flag among all tests.
        accepted: names or groups whose differences are never flagged.
        walk: whether to look for the op at which values part.
    """

    batch: int = 32
    alpha: float = 0.01
    accepted: tuple[str, ...] = ()
    walk: bool = True


def groups() -> dict[str, tuple[str, ...]]:
    """List what can be compared with, by groups."""
    kinds: dict[str, list[str]] = {}
    for name, noise in IMAGE_NOISES.items():
        kinds.setdefault(noise.kind, []).append(name)
    kinds["graph"] = list(GRAPH_NOISES)
    kinds["precision"] = [name for name in names() if name in PRECISIONS]
    kinds["backends"] = [name for name in names() if name not in (*PRECISIONS, "eager")]
    return {kind: tuple(members) for kind, members in kinds.items()}


def asked_for(text: str) -> tuple[str, ...]:
    """Read names and groups, apart by commas; ``all`` is every group. Files and targets stay as they are.

    Raises:
        TightropeError: a name is not known.
    """
    known = groups()
    every = [name for members in known.values() for name in members]
    found: list[str] = []
    for word in filter(None, (one.strip() for one in text.split(","))):
        if not (word in ("all", "eager", *known, *every) or word.endswith(".onnx") or ".py:" in word):
            raise TightropeError(
                f"{word!r:.100} is no lowering. Groups: {', '.join(known)}, all. Names: {', '.join(every)}. "
                "Others: FILE.onnx, FILE.py:FUNCTION."
            )
        found += every if word == "all" else known.get(word, (word,))
    return tuple(dict.fromkeys(found))


@dataclass
class _Track(RunLowering):
    """One lowering while images run: distances, changed answers, right answers of both, per image."""

    gaps: list[NDArray[np.float64]] = field(default_factory=list)
    flipped: list[NDArray[np.bool_]] = field(default_factory=list)
    right: list[NDArray[np.bool_]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


class Comparison:
    """A reference, and lowerings that are compared with it.

    Args:
        reference: preprocessing and net.
        asked: names as `asked_for` gives them.
        others: what other targets built, by name; an error where building failed.
        places: in force since before the user's file was imported.
        options: batch, level, what is accepted.
    """

    def __init__(
        self,
        reference: ImageNet,
        asked: Sequence[str],
        others: Mapping[str, ImageNet | TightropeError],
        places: CallPlaces,
        options: ParityOptions,
    ) -> None:
        self.reference, self.others, self.places, self.options = reference, others, places, options
        self.tracks = [self._track(name) for name in asked]
        self.call = reference.call()
        self.graph: fx.GraphModule | TightropeError | None = None
        self.example: Tensor | None = None
        self.scales: list[float] = []
        self.floor = _SMALLEST_FLOOR
        self.right: list[NDArray[np.bool_]] = []
        self.unread: list[str] = []
        self.num_images = 0

    def run(self, paths: Sequence[Path], labels: Sequence[int] | None) -> ParityReport:
        """Compare over all images, a batch at a time.

        Raises:
            TightropeError: the reference reads no image, or two runs of it differ.
        """
        kept: list[tuple[str, Tensor, int]] = []
        for at, path in enumerate(map(str, paths)):
            try:
                kept.append((path, self.reference.sample(path), labels[at] if labels else -1))
            except Exception as error:  # of the user's function or of a decoder
                self.unread.append(f"{path}: {where_it_failed(error)}")
            if len(kept) == self.options.batch or (at == len(paths) - 1 and kept):
                self._batch(*zip(*kept, strict=True), labelled=labels is not None)
                kept = []
        if not self.num_images:
            first = self.unread[0] if self.unread else "none was given"
            raise TightropeError(f"no image can be read. First: {first}.")
        return self._report(labelled=labels is not None)

    def _track(self, name: str) -> _Track:
        group = next((group for group, members in groups().items() if name in members), "other")
        accepted = bool({name, group} & set(self.options.accepted))
        found = LoweringDifference(name=name, group=group, status="equal", accepted=accepted)
        noise = IMAGE_NOISES.get(name)
        if noise and (missing := [one for one in noise.needs if not find_spec(one)]):
            found.status = "missing"
            found.note = f"needs {missing[0]}: pip install 'tightrope-differ[images]'"
        other = self.others.get(name)
        if isinstance(other, TightropeError):
            found.status, found.note, other = "stopped", str(other), None
        return _Track(found, noise, other)

    def _batch(
        self, paths: tuple[str, ...], samples: tuple[Tensor, ...], labels: tuple[int, ...], *, labelled: bool
    ) -> None:
        shapes = {tuple(one.shape) for one in samples}
        if self.example is not None:
            shapes.add(tuple(self.example.shape[1:]))
        if len(shapes) > 1:
            said = ", ".join(map(str, sorted(shapes)))
            raise TightropeError(f"preprocess returns shapes {said}: return one shape for all images.")
        batch = torch.stack(samples)
        if self.example is None:
            self.example = self._whole(batch)
            with quiet():
                self._start()
        try:
            results = self._results(self.call, batch)
            answers = self.reference.answers(results)
        except Exception as error:  # of the user's net or of what reads answers from it
            raise TightropeError(
                f"{self.reference.name!r} fails on a batch of shape {tuple(batch.shape)}: "
                f"{where_it_failed(error)}."
            ) from error
        self._check_null(paths, batch, results)
        for path, *rows in zip(paths, *results, strict=True):
            if not all(row.isfinite().all() for row in rows):
                raise TightropeError(f"the net returns NaN or infinity for {path!r}: nothing was judged.")
        known = self.scales or [1e-30] * len(results)
        self.scales = [max(float(r.abs().max()), scale) for r, scale in zip(results, known, strict=True)]
        self.num_images += len(batch)
        right = (answers == torch.tensor(labels)[:, None]).all(1).numpy() & labelled
        self.right.append(right)
        for track in self.tracks:
            if track.found.status == "equal":
                try:
                    self._one(track, paths, batch, results, answers, labels)
                except Exception as error:  # of a library: what was found before is kept
                    track.found.status, track.found.note = "stopped", where_it_failed(error)

    def _whole(self, batch: Tensor) -> Tensor:
        """Fill a batch up with its last image: lowerings are compiled for one size."""
        return torch.cat([batch, batch[-1:].expand(self.options.batch - len(batch), *batch.shape[1:])])

    def _results(self, call: Call, batch: Tensor) -> tuple[Tensor, ...]:
        return tuple(one[: len(batch)] for one in run(call, self._whole(batch)))

    def _check_null(self, paths: Sequence[str], batch: Tensor, results: tuple[Tensor, ...]) -> None:
        again = torch.stack([self.reference.sample(path) for path in paths])
        same = _same(again, batch)
        if not same or not all(map(_same, results, self._results(self.call, again))):
            what = "the net" if same else "preprocess"
            raise TightropeError(
                f"two runs of {self.reference.name!r} differ: {what} is random. "
                "Nothing was judged. Fix its seed, or take the random part out."
            )
        parts = [run(self.call, part) for part in torch.split(batch, len(batch) // 3 + 1)]
        for one, *divided in zip(results, *parts, strict=True):
            gap = float((one.double() - torch.cat(divided).double()).abs().max())
            self.floor = max(self.floor, gap / max(float(one.abs().max()), 1e-30))

    def _start(self) -> None:
        """Make what runs each lowering of the net."""
        assert self.example is not None
        if isinstance(self.reference.net, nn.Module):
            try:
                self.graph = capture_net(self.reference.net, self.example)
            except TightropeError as error:
                self.graph = error
        for track in self.tracks:
            if track.found.status == "equal" and track.noise is None:
                try:
                    self._start_one(track, self.example)
                except Exception as error:  # of a compiler or an exporter
                    wanted = isinstance(error, TightropeError) and "pip install" in str(error)
                    track.found.status = "missing" if wanted else "stopped"
                    track.found.note = str(error) if wanted else where_it_failed(error)

    def _start_one(self, track: _Track, example: Tensor) -> None:
        found, name = track.found, track.found.name
        if track.other is not None:
            track.call = track.other.call()
        elif name.endswith(".onnx"):
            track.call = OnnxCall(name)
        elif not isinstance(self.reference.net, nn.Module):
            found.status, found.note = "no place", "the net is a file in ONNX, not a torch.nn.Module"
        elif name in GRAPH_NOISES:
            if not isinstance(self.graph, fx.GraphModule):
                raise self.graph or TightropeError(f"{name} needs a captured net.")
            track.call = track.graph = with_noise(self.graph, name)
            if not track.graph.meta["changed"]:
                found.status, found.note = "no place", "the net has no such op"
            found.line = track.graph.meta["changed"]
        else:
            track.call = lowering(name)(self.reference.net, example)
            found.note = getattr(track.call, "note", "")

    def _one(
        self, track: _Track, paths: tuple[str, ...], batch: Tensor, results: tuple[Tensor, ...],
        answers: Tensor, labels: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Run one lowering on one batch and keep what differs."""
        rows, given = list(range(len(batch))), batch
        if track.noise or track.other:
            rows, given = self._front(track, paths, batch)
        if not rows:
            return
        if track.noise and torch.equal(given, batch[rows]):
            made = tuple(one[rows] for one in results)
        else:
            made = self._results(self.call if track.call is None else track.call, given)
        gaps, flipped = np.full((len(rows), len(results)), np.inf), np.ones(len(rows), np.bool_)
        right = np.zeros(len(rows), np.bool_)
        if [one.shape[1:] for one in made] != [one.shape[1:] for one in results]:
            track.found.note = "its results have another shape"
        else:
            for at, (one, other) in enumerate(zip(made, results, strict=True)):
                gap = (one.double() - other[rows].double()).abs().reshape(len(rows), -1).amax(1)
                gaps[:, at] = torch.nan_to_num(gap, nan=torch.inf).numpy()
            mine = self.reference.answers(made)
            flipped = ((mine != answers[rows]).double().mean(1) > _POSITIONS).numpy()
            right = (mine == torch.tensor(labels)[rows][:, None]).all(1).numpy()
        track.gaps.append(gaps)
        track.flipped.append(flipped)
        track.right.append(np.stack([right, self.right[-1][rows]]))
        track.paths += [paths[row] for row in rows]

    def _front(self, track: _Track, paths: tuple[str, ...], batch: Tensor) -> tuple[list[int], Tensor]:
        """Preprocess a batch as a lowering does; images that it cannot read are left out and named."""
        found, noise, net = track.found, track.noise, track.other or self.reference
        rows: list[int] = []
        made: list[Tensor] = []
        with ExitStack() as stack:
            if noise:
                stack.enter_context(self.places.using(noise.swap))
            calls = stack.enter_context(self.places.watched()) if noise and not found.line else []
            for row, path in enumerate(paths):
                try:
                    made.append(net.sample(path))
                    rows.append(row)
                except Exception as error:  # of the user's function or of a decoder
                    found.undecoded.append(f"{path}: {where_it_failed(error)}")
                if noise and not found.line:
                    kind = DECODE if noise.kind == COLOUR else noise.kind
                    found.line = next((call.line or "?" for call in calls if call.kind == kind), "")
                    if made and not found.line:
                        found.status = "no place"
                        found.note = f"preprocess calls no {kind} of Pillow or OpenCV"
                        return [], batch
        return rows, torch.stack(made) if made else batch

    def _report(self, *, labelled: bool) -> ParityReport:
        for track in self.tracks:
            if track.gaps:
                self._figures(track, labelled=labelled)
            if track.found.undecoded:
                track.found.note += f"{len(track.found.undecoded)} images are not decoded"
                track.found.undecoded = track.found.undecoded[:_NAMED]
        judged = [t.found for t in self.tracks if t.found.status == "equal"]
        for found, adjusted in zip(judged, holm([one.p for one in judged]), strict=True):
            found.adjusted = adjusted
            if adjusted < self.options.alpha:
                found.status = "flips"
            elif found.undecoded or found.largest > _TIMES_NULL * self.floor:
                found.status = "differs"
            elif found.largest > 0:
                found.status = "rounding"
        for track in self.tracks:
            if self.options.walk and track.found.status in FLAGGED and track.gaps:
                worst = track.paths[int(self._relative(track).argmax())]
                locate(track, self.reference, self.graph, self.places, worst, self.options.batch)
        return ParityReport(
            target=self.reference.name,
            images=self.num_images,
            unread=self.unread,
            null_flips=_NULL_FLIPS,
            floor=self.floor,
            alpha=self.options.alpha,
            accuracy=float(np.concatenate(self.right).mean()) * 100 if labelled else None,
            differences=[track.found for track in self.tracks],
        )

    def _relative(self, track: _Track) -> NDArray[np.float64]:
        gaps: NDArray[np.float64] = (np.concatenate(track.gaps) / self.scales).max(1)
        return np.nan_to_num(gaps, posinf=1.0)

    def _figures(self, track: _Track, *, labelled: bool) -> None:
        found, gaps = track.found, self._relative(track)
        found.images, found.flips = len(gaps), int(np.concatenate(track.flipped).sum())
        found.distance, found.largest = float(gaps.mean()), float(gaps.max())
        found.p = mcnemar(found.flips, _NULL_FLIPS)
        if labelled:
            mine, theirs = np.concatenate(track.right, axis=1)
            found.accuracy = float(mine.mean() - theirs.mean()) * 100
            found.p_accuracy = mcnemar(int((mine & ~theirs).sum()), int((theirs & ~mine).sum()))


def _same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two results have the same bits; NaN equals NaN."""
    return one.shape == other.shape and torch.equal(one.nan_to_num(nan=1e30), other.nan_to_num(nan=1e30))


def compare(
    reference: ImageNet,
    asked: Sequence[str],
    paths: Sequence[Path],
    labels: Sequence[int] | None = None,
    *,
    options: ParityOptions | None = None,
) -> ParityReport:
    """Compare lowerings of a pipeline over images.

    Args:
        reference: preprocessing and net.
        asked: names of noises and lowerings, or files in ONNX.
        paths: of images.
        labels: number of the class of each image; None = unknown.
        options: batch, level, what is accepted.

    Raises:
        TightropeError: no image is read, two runs of the reference differ, or shapes differ.

    Example:
        >>> net = ImageNet("doubles", lambda path: np.full((3, 2, 2), len(path), np.float32), nn.Flatten())
        >>> report = compare(net, ["eager", "bf16"], [Path("a.jpg"), Path("bb.jpg")])
        >>> [(one.name, one.status, one.flips) for one in report.differences]
        [('eager', 'equal', 0), ('bf16', 'equal', 0)]
    """
    with CallPlaces() as places:
        return Comparison(reference, asked, {}, places, options or ParityOptions()).run(paths, labels)
