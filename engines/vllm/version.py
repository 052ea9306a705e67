"""Which releases of vLLM the scheduler was run with: its interface is not public, so that any other may break it."""

FIRST, BELOW = (0, 32, 0), (0, 33, 0)
"""The releases that were tested, on CPU: from FIRST on, below BELOW."""


class VersionError(ValueError):
    """A vLLM that was not tested."""


def require_tested(version: str, accept_untested: bool = False) -> None:
    """Raise `VersionError` for an untested version, unless it is accepted.

    >>> require_tested("0.32.0+cpu")
    >>> require_tested("0.33.0", accept_untested=True)
    """
    if not accept_untested and not is_tested(version):
        first, below = (".".join(map(str, each)) for each in (FIRST, BELOW))
        raise VersionError(
            f"fairsched was tested with vLLM from {first} to below {below}, and this is {version}; "
            'the setting "accept_untested_version": true tries it all the same'
        )


def is_tested(version: str) -> bool:
    """Whether a version is among those that were tested; pre-releases are not."""
    parts = version.split("+")[0].split(".")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        return False
    return FIRST <= tuple(int(part) for part in parts) < BELOW
