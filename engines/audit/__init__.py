"""An audit of a log that exists: who waited, who got how much, who starved, and whether what was promised held."""
