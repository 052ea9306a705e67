"""What describes a policy: equal parameters give equal documents, and whatever differs is named."""

import attrs
import pytest

from fairsched.model.serialization import configuration, differences, document_sha256
from fairsched.policies.catalog import DLPM, DLPMPrinted
from fairsched.policies.registry import LOCAL_POLICIES, with_parameters


def test_each_policy_has_its_own_description() -> None:
    """The shipped policies differ in theirs, and the same policy made twice does not."""
    hashes = {document_sha256(configuration(policy)) for policy in LOCAL_POLICIES.values()}
    assert len(hashes) == len(LOCAL_POLICIES)
    assert document_sha256(configuration(DLPM())) == document_sha256(configuration(DLPM()))


def test_every_difference_is_named() -> None:
    """A parameter is named by its place, and so is a class of somebody's own that looks the same."""
    here = with_parameters(DLPM(), {"quantum": "77", "max_running": "3"})
    assert list(differences(configuration(DLPM()), configuration(here))) == [
        "batching.max_running: 256 is certified, and here it is 3",
        f"gate.quantum: {DLPM().gate.quantum} is certified, and here it is 77",  # type: ignore[attr-defined]
    ]
    found = list(differences(configuration(DLPM()), configuration(DLPMPrinted())))
    assert "gate.rejoin: 'keep' is certified, and here it is 'reset'" in found


def test_functions_are_no_configuration() -> None:
    """Nobody could say whether two functions do the same."""

    @attrs.frozen
    class Odd:
        rule: object

    with pytest.raises(ValueError, match="a configuration holds no function"):
        configuration(Odd(configuration))
