"""Every false statement is found in the variant that was printed, and what ships is free of it."""

from pathlib import Path

import msgspec
import pytest

from fairsched.verify import logic as v
from fairsched.verify import proofs
from fairsched.verify.proofs import SUITE, claims_of
from fairsched.verify.report import refutations

pytestmark = pytest.mark.kept("tests/replays")

SAVED = Path(__file__).parents[2] / "replays" / "refutations"
KERNELS = ("CE1", "CE2", "CE3", "CE4", "CE5", "CV1", "CV2", "CV3")
NAMES = (*KERNELS, *(false.claim.theorem.id for _, false in proofs.refuted_claims()))
REFUTATIONS = {each.id: each for each in refutations.refutations()}


def confirmed(path: Path) -> bool:
    """Whether a saved world breaks now what it broke when it was saved."""
    found = v.replay_saved(path)
    return found is not None and found.confirmed


def test_every_named_refutation_is_found() -> None:
    """Found in the variant; what is true of what ships instead is one of the theorems, which are proved elsewhere."""
    assert tuple(REFUTATIONS) == NAMES
    assert [name for name, each in REFUTATIONS.items() if not each.shows()] == []
    assert {each.shipped for each in REFUTATIONS.values()} <= {*claims_of(SUITE), refutations.SHIPPED_REFILL}


@pytest.mark.nightly
@pytest.mark.usefixtures("by_night")
def test_the_report_shows_every_refutation(tmp_path: Path) -> None:
    """Each with a world that can be replayed, and its theorem about what ships proved in the same run."""
    rows = refutations.report(tmp_path)
    assert tuple(row.id for row in rows) == NAMES
    assert [row.id for row in rows if not row.found] == []
    for row in rows:
        assert row.replay is not None
        assert REFUTATIONS[row.id].world is None or confirmed(Path(row.replay))


@pytest.mark.parametrize("path", sorted(SAVED.glob("*.json")), ids=lambda path: path.stem)
def test_saved_worlds_still_break_their_claims(path: Path) -> None:
    """On numpy arrays and on exact integers alike, or in the shipped Python and its variants."""
    assert confirmed(path)


def test_every_world_is_saved() -> None:
    """One file a refutation that has a world, as it is now."""
    for name, each in REFUTATIONS.items():
        assert each.world is None or (SAVED / f"{name.lower()}.json").read_bytes() == each.world().to_json()
    assert {path.stem for path in SAVED.glob("*.json")} == {
        name.lower() for name, each in REFUTATIONS.items() if each.world is not None
    }


CE1 = v.read_counterexample(SAVED / "ce1.json")


def test_ce1_s_lead_is_the_debt_that_was_forgiven() -> None:
    """Seven to three, six times."""
    end = v.replay_counterexample(CE1).states[-1]
    assert end["W"] == (18, 42)


def test_ce1_s_run_is_impossible_where_debt_is_kept() -> None:
    """Without the reset g is in debt when it comes back, and is not the one who is let in."""
    kept = tuple(
        v.Happening("arrive", happening.facts) if happening.event.startswith("arrive") else happening
        for happening in CE1.events
    )
    with pytest.raises(v.NotPermittedError, match="admit"):
        v.replay_counterexample(msgspec.structs.replace(CE1, events=kept, without=()))


def test_a_variant_that_holds_is_not_found() -> None:
    """The shipped refill, asked the question that CE3 and CE4 are false answers to, is not refuted."""
    assert refutations._holds("D-refill-serves")
    assert refutations._holds("D-4.2")
