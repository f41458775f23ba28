"""Programs that generate text: batches of requests, sampling, speculative decoding."""
