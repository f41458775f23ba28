"""The dashboard's server: open items, access control, and the child processes that read items."""
