"""The gateway before OpenAI-compatible servers: queue, gate and window, and the HTTP around them."""
