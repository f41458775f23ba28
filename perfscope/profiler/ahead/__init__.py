"""Ahead of time: compile or plan a program for an absent machine.

The command resolves the target and writes a `Request`; a child process runs the user's program without data or devices,
compiles the functions it jits and writes each program when it is finished; this process watches the child and writes
the manifest.
"""
