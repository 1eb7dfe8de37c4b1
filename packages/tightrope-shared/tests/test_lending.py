"""What a thread is lent counts until that thread has let go of it, and no longer."""

import threading
import time

import pytest
import torch

from tightrope_shared import lending
from tightrope_shared.lending import Lent


def test_back_waits_for_a_thread_that_holds_on() -> None:
    lent = Lent(torch.ones(4), torch.zeros(2))
    let_go: list[float] = []

    def hold(tensors: list[torch.Tensor]) -> None:
        time.sleep(0.2)
        tensors.clear()
        let_go.append(time.monotonic())

    thread = threading.Thread(target=hold, args=(lent.take(),))
    thread.start()
    lent.back()
    back = time.monotonic()
    thread.join()
    assert let_go
    assert back >= let_go[0] - 0.01


def test_it_is_the_same_memory_and_the_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "PATIENCE", 0.05)
    mine = torch.zeros(3)
    lent = Lent(mine)
    (theirs,) = lent.take()
    theirs.fill_(2.0)
    start = time.monotonic()
    lent.back()
    assert 0.04 <= time.monotonic() - start < 5.0
    assert mine.tolist() == [2.0, 2.0, 2.0]
    del theirs
    lent.back()
