"""Another user attacks the cache: nothing of his is believed, and no file of the victim changes."""

import pytest
from other_users import OtherUsers, refusal

pytestmark = pytest.mark.skipif(bool(refusal()), reason=refusal() or "-")
RUN = "import cache_attacks\nfound.update(cache_attacks.run({top!r}, sabotage={sabotage}))"


def test_no_attack_on_the_cache_reaches_a_file_of_its_user(users: OtherUsers) -> None:
    (top := users.folder / "attacks").mkdir()
    answer = users.run(RUN.format(top=str(top), sabotage=False), user=0)
    assert answer["error"] == ""
    assert answer["found"]["wrong"] == []
    assert answer["found"]["num_trials"] >= 200


@pytest.mark.slow
def test_attacks_on_a_cache_without_checks_are_noticed(users: OtherUsers) -> None:
    (top := users.folder / "sabotage").mkdir()
    answer = users.run(RUN.format(top=str(top), sabotage=True), user=0)
    assert answer["error"] == ""
    wrong = answer["found"]["wrong"]
    for what in (
        "a plan as a link: a plan",
        "a link to the victim's files: files changed",
        "plans as a link: files changed",
        "the graph as a link: a plan",
        "the graph as a link: files changed",
        "below a folder of the attacker: prices",
        "a link among temporary files: a library",
        "prices as a link: prices",
        "a library as a link: a library",
    ):
        assert what in wrong
