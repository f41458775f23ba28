"""Example programs to profile. Each defect has a twin that computes the same numbers without it.

``python -m perfscope.workloads.attention``, ``.moe``, ``.ssm``, ``.transformer``, ``.loop``, ``.generate``,
``.decode``, ``.lora``, ``.hybrid``, ``.vision.classifier`` and ``.ranks``; ``--help`` lists variants and defects. They
need the extra ``torch`` and import nothing of perfscope but each other: ordinary programs.
"""
