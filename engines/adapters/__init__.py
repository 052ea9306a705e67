"""Adapters that apply a policy inside other people's engines. Read `common` first."""
