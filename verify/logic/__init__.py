"""Claims, transition systems, and the ways in which a kernel's text is read: exact, symbolic, as SMT-LIB. Read
`system` first.
"""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.verify.logic.claims import (
        ArithmeticClaim,
        Bug,
        Condition,
        PlainWorld,
        RefutedClaim,
        SampledClaim,
        Shown,
        Shows,
        WorldClaim,
        WorldFile,
        WorldReplay,
        arithmetic,
        at_least,
        broken,
        claim_named,
        refuted,
        replay_saved,
        sampled,
        world_document,
    )
    from fairsched.verify.logic.counterexample import (
        Counterexample,
        Document,
        Happening,
        NotPermittedError,
        Replay,
        Saved,
        counterexample_document,
        decoded,
        minimised,
        read_counterexample,
        replay_counterexample,
    )
    from fairsched.verify.logic.kernel_language import closure, definition_of, kernels_of, violations
    from fairsched.verify.logic.patching import changed, unchecked, with_names, with_text
    from fairsched.verify.logic.smtlib import Answer, Script, Seen, script
    from fairsched.verify.logic.symbolic import (
        PATH_WORDS,
        Paths,
        PathVector,
        SymbolicInt,
        explore,
        if_then,
        one_if,
        truth,
    )
    from fairsched.verify.logic.system import (
        CONCLUSION,
        INTERPRETATIONS,
        Claim,
        Clause,
        Contract,
        Event,
        Formula,
        Functions,
        Kind,
        Need,
        Rule,
        Step,
        System,
        Term,
        Values,
        World,
        Written,
        and_also,
        confirmed,
        decided,
        hypotheses,
        implies,
        module_of,
        one_step,
        only,
        product,
        refuted_by,
        same,
        spread,
        state_after,
        step_named,
        steps,
        total,
        with_derived,
    )
    from fairsched.verify.logic.term_algebra import (
        CLIENT,
        ClosedFormValue,
        FixedAlgebra,
        KernelError,
        Point,
        Value,
        Z3Algebra,
        lifted,
        point,
        scalar,
    )
    from fairsched.verify.logic.witness import BEGIN, RATES, NotAWitness, RunStep, Witness, attained, one, served
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "BEGIN", "CLIENT", "CONCLUSION", "INTERPRETATIONS", "PATH_WORDS", "RATES", "Answer", "ArithmeticClaim", "Bug",
    "Claim", "Clause", "ClosedFormValue", "Condition", "Contract", "Counterexample", "Document", "Event",
    "FixedAlgebra", "Formula", "Functions", "Happening", "KernelError", "Kind", "Need", "NotAWitness",
    "NotPermittedError", "PathVector", "Paths", "PlainWorld", "Point", "RefutedClaim", "Replay", "Rule", "RunStep",
    "SampledClaim", "Saved", "Script", "Seen", "Shown", "Shows", "Step", "SymbolicInt", "System", "Term", "Value",
    "Values", "Witness", "World", "WorldClaim", "WorldFile", "WorldReplay", "Written", "Z3Algebra", "and_also",
    "arithmetic", "at_least", "attained", "broken", "changed", "claim_named", "closure", "confirmed",
    "counterexample_document", "decided", "decoded", "definition_of", "explore", "hypotheses", "if_then", "implies",
    "kernels_of", "lifted", "minimised", "module_of", "one", "one_if", "one_step", "only", "point", "product",
    "read_counterexample", "refuted", "refuted_by", "replay_counterexample", "replay_saved", "same", "sampled",
    "scalar", "script", "served", "spread", "state_after", "step_named", "steps", "total", "truth", "unchecked",
    "violations", "with_derived", "with_names", "with_text", "world_document"
]  # fmt: skip
