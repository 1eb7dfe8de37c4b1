"""What a refusal says of bytes that are no part of the plan."""

import pytest

from tightrope.core import InfeasibleError
from tightrope.run.refusal import Refusal
from tightrope.run.room import RESERVE


@pytest.mark.parametrize(("beside", "said"), [(0, False), (900, False), (960, True), (8 << 20, True)])
def test_what_else_the_process_holds_is_named_where_it_is_half_of_the_bound(beside: int, said: bool) -> None:
    refusal = Refusal(budget=1000, others=RESERVE + beside, persistent=0)
    found = InfeasibleError(
        "too little", asked=1000, smallest_found=2000, lower_bound=960, op="aten.mm.default"
    )
    assert ("of which the process holds" in str(refusal.restated(found))) is said
    assert refusal.restated(found).lower_bound == 960 + beside
