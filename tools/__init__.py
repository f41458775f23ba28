"""Programs of maintainers that write constants of the product."""
