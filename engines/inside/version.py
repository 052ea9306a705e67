"""Which releases of an engine its shim was run with: the interface is not public, so that any other may break it."""

import attrs


class VersionError(ValueError):
    """A release that was not tested."""


@attrs.frozen
class Tested:
    """The releases of an `engine` that were tested: from `first` on, below `below`.  `anyway` is how to try others."""

    engine: str
    first: tuple[int, int, int]
    below: tuple[int, int, int]
    anyway: str

    def require(self, version: str, accept_untested: bool = False) -> None:
        """Raise `VersionError` for an untested version, unless it is accepted.

        >>> Tested("vLLM", (0, 32, 0), (0, 33, 0), "...").require("0.32.0+cpu")
        """
        if not accept_untested and not self.includes(version):
            first, below = (".".join(map(str, each)) for each in (self.first, self.below))
            raise VersionError(
                f"fairsched was tested with {self.engine} from {first} to below {below}, and this is {version}; "
                f"the setting {self.anyway} tries it all the same"
            )

    def includes(self, version: str) -> bool:
        """Whether a version is among those that were tested; pre-releases are not."""
        parts = version.split("+")[0].split(".")
        if len(parts) != 3 or not all(part.isdecimal() for part in parts):
            return False
        return self.first <= tuple(int(part) for part in parts) < self.below
