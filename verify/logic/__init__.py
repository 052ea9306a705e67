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
        arithmetic,
        at_least,
        broken,
        claim_named,
        refuted,
        replay_saved,
        reworded_bugs,
        sampled,
        world_document,
    )
    from fairsched.verify.logic.counterexample import (
        Counterexample,
        Document,
        Happening,
        NotPermittedError,
        SavedDocument,
        counterexample_document,
        decoded,
        minimised,
        read_counterexample,
        replay_counterexample,
    )
    from fairsched.verify.logic.kernel_language import (
        closure,
        definition_of,
        formula_breaches,
        impurities,
        kernels_of,
        line_of,
        violations,
    )
    from fairsched.verify.logic.patching import changed, unchecked, with_names, with_text
    from fairsched.verify.logic.smtlib import Answer, Seen, SmtScript, script
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
        FLAG,
        MASK,
        POINT,
        SCALAR,
        VECTOR,
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
        of_one,
        one_step,
        ones,
        only,
        product,
        refuted_by,
        same,
        scalars,
        spread,
        state_after,
        step_named,
        steps,
        total,
        vectors,
        with_derived,
    )
    from fairsched.verify.logic.term_algebra import CLIENT, FixedAlgebra, KernelError, Point, Value, Z3Algebra, lifted
    from fairsched.verify.logic.witness import BEGIN, RATES, NotAWitness, RunStep, Witness, attained, one, served
    from fairsched.verify.logic.wording import worded
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "BEGIN", "CLIENT", "CONCLUSION", "FLAG", "MASK", "PATH_WORDS", "POINT", "RATES", "SCALAR", "VECTOR", "Answer",
    "ArithmeticClaim", "Bug", "Claim", "Clause", "Condition", "Contract", "Counterexample", "Document", "Event",
    "FixedAlgebra", "Formula", "Functions", "Happening", "KernelError", "Kind", "Need", "NotAWitness",
    "NotPermittedError", "PathVector", "Paths", "PlainWorld", "Point", "RefutedClaim", "Rule", "RunStep",
    "SampledClaim", "SavedDocument", "Seen", "Shown", "Shows", "SmtScript", "Step", "SymbolicInt", "System", "Term",
    "Value", "Values", "Witness", "World", "WorldClaim", "WorldFile", "Written", "Z3Algebra", "and_also", "arithmetic",
    "at_least", "attained", "broken", "changed", "claim_named", "closure", "confirmed", "counterexample_document",
    "decided", "decoded", "definition_of", "explore", "formula_breaches", "hypotheses", "if_then", "implies",
    "impurities", "kernels_of", "lifted", "line_of", "minimised", "module_of", "of_one", "one", "one_if", "one_step",
    "ones", "only", "product", "read_counterexample", "refuted", "refuted_by", "replay_counterexample", "replay_saved",
    "reworded_bugs", "same", "sampled", "scalars", "script", "served", "spread", "state_after", "step_named", "steps",
    "total", "truth", "unchecked", "vectors", "violations", "with_derived", "with_names", "with_text", "worded",
    "world_document"
]  # fmt: skip
