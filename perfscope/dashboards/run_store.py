"""The run store is optional: commands and pages take it from here, and this module alone imports it."""

from perfscope.profiler import store

LATEST = store.LATEST
"""The schema that this perfscope writes."""
RunStore = store.RunStore
address = store.address
check_name = store.check_name
export = store.export
fetch = store.fetch
import_file = store.import_file
looks_like_export = store.looks_like_export
pack = store.pack
unpack = store.unpack
