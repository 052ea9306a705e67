"""Routers for split phases."""

from fairsched.policies.routers.phases.heavy_light import HeavyLight

__all__ = ["HeavyLight"]
