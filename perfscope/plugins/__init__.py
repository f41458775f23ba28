"""Plug-ins of perfscope: one room a capability, each registered in pyproject.toml as those of other packages are."""
