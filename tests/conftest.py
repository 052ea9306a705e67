"""What all tests share: budgets, and whose warnings are errors."""

import pytest
from hypothesis import settings

# Reduced: the same examples on every run, so that a change is what turns a test red.  Full: fresh examples each night.
settings.register_profile("fairsched-reduced", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("fairsched-full", max_examples=2_000, deadline=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--full-budget`."""
    parser.addoption("--full-budget", action="store_true", help="run nightly checks and properties at full length")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the Hypothesis profile before any test module is imported, since `@settings` inherits from it then."""
    settings.load_profile("fairsched-full" if config.getoption("--full-budget") else "fairsched-reduced")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let somebody else's engine warn without failing our tests."""
    for item in items:
        if item.get_closest_marker("integration"):
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def full_budget(pytestconfig: pytest.Config) -> bool:
    """Whether a `nightly` check may take its full time, or must do with a reduced number of cases."""
    return bool(pytestconfig.getoption("--full-budget"))
