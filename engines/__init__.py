"""Execution: simulation, workloads, analysis, live serving, gateway and adapters. Read `simulation.simulator` first."""
