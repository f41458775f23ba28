"""Code hosts (GitHub, GitLab): where the report of a change is posted, as one comment that is kept up to date."""
