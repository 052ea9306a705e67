"""What all tests share: budgets, and whose warnings are errors."""

import pytest
from hypothesis import settings

from fairsched.verify.conformance.strategies import FULL, REDUCED


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--full-budget`."""
    parser.addoption("--full-budget", action="store_true", help="run nightly checks and properties at full length")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the Hypothesis profile before any test module is imported, since `@settings` inherits from it then."""
    settings.load_profile(FULL if config.getoption("--full-budget") else REDUCED)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let somebody else's engine warn without failing our tests."""
    for item in items:
        if item.get_closest_marker("integration"):
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def full_budget(pytestconfig: pytest.Config) -> bool:
    """Whether a `nightly` check may take its full time, or must do with a reduced number of cases."""
    return bool(pytestconfig.getoption("--full-budget"))
