# written by hand
"""Evidence: proofs about the shipped kernels, and conformance batteries for policies. Read
`proofs.gates.deficit` first.

The package can be called: `fairsched.verify("dlpm")` is `fairsched.verify.report.verify("dlpm")`, since a package and a
function cannot both be `fairsched.verify`.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from fairsched.model import extra_named

if TYPE_CHECKING:
    from fairsched.verify.report import Report


class _Callable(ModuleType):
    @extra_named()
    def __call__(self, *arguments: object, **options: object) -> "Report":
        from fairsched.verify.report import verify

        call: Callable[..., Report] = verify
        return call(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
