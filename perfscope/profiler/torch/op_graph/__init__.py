"""Recorder of the ops of one step, with their tensors, modules and source lines."""
