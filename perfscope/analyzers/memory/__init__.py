"""The model of memory over time: blocks with an owner, whatever recorded them."""
