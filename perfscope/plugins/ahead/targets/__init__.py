"""Compiler plug-ins for the devices that a program can be compiled for."""
