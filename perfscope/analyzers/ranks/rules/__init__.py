"""Rules on the ranks of a job: stragglers, exposed or small collectives, links and load."""
