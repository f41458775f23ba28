"""Twins in JAX of the programs in ``perfscope.workloads``: the same model, numbers, flags and kinds of defects.

``python -m perfscope.workloads.jax.attention``, ``.moe``, ``.ssm``, ``.transformer`` and ``.decode``; ``--help`` lists
variants and defects. They need the extra ``jax`` and import nothing of perfscope but each other: ordinary programs.
"""

if __name__ == "jax":
    # `python perfscope/workloads/moe.py` puts this folder's parent on the path, where `import jax` would find it.
    raise ImportError("this folder holds example programs, it is not the library jax")
