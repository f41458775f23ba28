"""Rules on the time of a step: idle devices, slow steps, copies, input and compilation."""
