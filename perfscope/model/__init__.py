"""Types that all layers share: traces, programs, findings, documents, units and errors."""
