"""One rule for what a buffer is for: eager traces agree with planned ones."""

from collections import Counter

import pytest
from test_categories import BATCH, by_plan, kinds, layered, of_the_loss

from tightrope.core import Category, Trace
from tightrope_trace import record_eager


@pytest.fixture(scope="module")
def eager() -> Trace:
    model = layered()
    with record_eager(model) as recording:
        model(*BATCH).backward()
    return recording.trace


def test_eager_and_planned_say_the_same(eager: Trace) -> None:
    planned = by_plan(overwrite=False).trace
    # the gradient of the loss, which the backward starts from, is given to a planned step
    assert kinds(eager) - kinds(planned) == Counter({(4, Category.GRADIENT): 1})
    assert kinds(planned) - kinds(eager) == Counter()


def test_gradients_of_activations_are_gradients(eager: Trace) -> None:
    assert of_the_loss(eager) == {Category.GRADIENT}


def test_what_the_model_hands_back_is_output(eager: Trace) -> None:
    assert [b.bytes for b in eager.buffers if b.category is Category.OUTPUT] == [4]
