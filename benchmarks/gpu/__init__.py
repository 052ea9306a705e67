"""What a machine with a GPU can tell of this package, in one command under ten minutes: `make gpu-check`.

Each part of the check is a process of its own with a limit of time; a part that fails, dies or does not end is a row
that says so.  Read `__main__` first, which needs nothing but Python; `part` is what runs in such a process.
"""
