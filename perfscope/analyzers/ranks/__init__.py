"""Facts over the traces of one job: its ranks, their groups, clocks and collectives."""
