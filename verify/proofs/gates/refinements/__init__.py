"""Gates to which more happens: one takes over from another while it runs (`state_transfer`), or looks at every step
(`in_batch`), or several spend credit of one account (`leases`, `lease_holders`, `lease_messages`).
"""
