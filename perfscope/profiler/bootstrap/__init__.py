"""Put on ``PYTHONPATH`` by ``perfscope run``: Python imports ``sitecustomize`` from here as it starts."""
