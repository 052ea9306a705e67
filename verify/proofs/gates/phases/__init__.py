"""Gates before prefill and decode workers: `bounds` proves S-gap, `scenarios` refutes gates of their own."""
