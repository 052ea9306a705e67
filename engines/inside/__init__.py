"""What shims inside other people's engines share: the policy that may fail, names of clients, settings, versions."""
