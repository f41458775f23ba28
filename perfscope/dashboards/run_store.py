"""Access to the optional run store: commands and pages use this module, the only one that imports the store."""

from perfscope.profiler import store

LATEST = store.LATEST
"""Schema version that this perfscope writes."""
RunStore = store.RunStore
address = store.address
check_name = store.check_name
export = store.export
fetch = store.fetch
import_file = store.import_file
looks_like_export = store.looks_like_export
pack = store.pack
unpack = store.unpack
