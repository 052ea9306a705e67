"""fairsched inside vLLM's V1 engine: a policy chooses who of those that wait is let in next, and events tell what
vLLM did."""
