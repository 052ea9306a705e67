"""fairsched inside SGLang: a policy ranks the waiting queue before each batch, and what SGLang did becomes events."""
