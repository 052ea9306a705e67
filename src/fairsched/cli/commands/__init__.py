"""The commands, a file each, or a few that belong together: a typed function a command, which calls the library and
prints.  Read `compare.py` first."""
