"""Pallas kernels of the JAX workloads, each with the numbers and gradients of its plain version.

Triton on CUDA and ROCm, Mosaic on TPU, interpreted on the CPU: right there, and slow. All state their cost, so that
reports have their FLOPs and bytes. They need a jax newer than 0.6.
"""
