"""States and configurations as JSON documents and hashes. Read `state` first; `documents` and `code` describe what a
certificate is about: a configuration, and all code that runs.
"""

from fairsched.model.serialization.code import changed_code, code_changes, code_sha256
from fairsched.model.serialization.documents import configuration, differences, document_sha256, parse
from fairsched.model.serialization.state import SCHEMA, Derived, StateError, digest, from_json, to_json

__all__ = [
    "SCHEMA", "Derived", "StateError", "changed_code", "code_changes", "code_sha256", "configuration", "differences",
    "digest", "document_sha256", "from_json", "parse", "to_json"
]  # fmt: skip
