"""Ahead of time: a program is compiled, or planned, for a machine that is not there.

The command resolves the target and writes a `Request`; a child process runs the user's program without data or devices,
compiles what it jits and writes each program as it is finished; this process watches the child and writes the manifest.
"""
