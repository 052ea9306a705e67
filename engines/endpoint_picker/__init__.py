"""An endpoint picker for Envoy, by the protocol of the Gateway API Inference Extension."""
