"""Parts of the reader of Perfetto's protobuf traces."""
