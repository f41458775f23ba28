"""Parts of the Kineto reader: bytes -> chunks -> events -> columns -> tables."""
