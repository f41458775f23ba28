"""Code hosts (GitHub, GitLab): the report of a change, posted as one comment that is kept up to date."""

from perfscope.dashboards.hosts.github import Event, GitHub, read_event
from perfscope.dashboards.hosts.gitlab import GitLab
from perfscope.dashboards.hosts.sticky import CodeHost, compose, post

__all__ = ["CodeHost", "Event", "GitHub", "GitLab", "compose", "post", "read_event"]
