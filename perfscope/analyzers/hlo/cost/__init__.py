"""FLOPs, memory traffic and bytes on the wire of HLO instructions and modules."""
