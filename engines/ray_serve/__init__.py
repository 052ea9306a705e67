"""Ray Serve: one policy for all handles of a deployment, in one actor that every handle's request router asks."""
