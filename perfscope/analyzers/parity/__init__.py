"""Two recordings of a model compared layer by layer: translated weights, errors, and where they part. numpy only."""
