"""Comparisons of two compiled or planned programs: matched instructions, FLOPs, bytes, memory and exchanges."""
