"""The Triton kernels and their launches. Importing a module of this folder needs triton."""
