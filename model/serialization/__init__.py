"""States and configurations as JSON documents and hashes. Read `state` first; `fingerprint` describes what a
certificate is about.
"""

from fairsched.model.serialization.fingerprint import configuration, differences, document_sha256, named, text_sha256
from fairsched.model.serialization.state import SCHEMA, StateError, digest, from_json, to_json

__all__ = [
    "SCHEMA", "StateError", "configuration", "differences", "digest", "document_sha256", "from_json", "named",
    "text_sha256", "to_json"
]  # fmt: skip
