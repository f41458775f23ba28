"""Traces of AMD's rocprofv3: CSV tables of a process, or one JSON document."""
