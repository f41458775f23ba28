"""The dashboard's server: what is open, who may ask, and the children that read it."""
