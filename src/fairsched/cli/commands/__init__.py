"""The commands, a file each, or a few that belong together: `add_NAME` declares a command's arguments, and `run_NAME`
calls the library and prints.  Read `compare.py` first."""
