"""The life of one request, from its log: where it was, what kept it waiting, and which requests went first. Read
`explanation` first, the value and its text.
"""

from fairsched.engines.analysis.explained.explainer import ExplainError, explain
from fairsched.engines.analysis.explained.explanation import COLUMNS, Explanation

__all__ = ["COLUMNS", "ExplainError", "Explanation", "explain"]
